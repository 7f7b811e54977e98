//! The holder: the process that `laminad` is first. It owns the FUSE connection and runs the worker as its child.
//!
//! It does next to nothing, so that it has no reason to die: it opens the connection, starts workers, and hands each the
//! connection as stdin and a socket as stdout. When a worker dies, the next one adopts the connection and no reader sees
//! more than a pause. When none is ready in time, or the kernel cannot send requests again, the connection is aborted:
//! readers get EIO instead of waiting for ever, and a fresh one begins.
//!
//! It never looks at a path below the connection's mount: that would wait for the worker.

use crate::config::Config;
use crate::connection;
use crate::mount::info;
use crate::{Error, leftovers};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// What a worker writes to its stdout, a line each: INIT was answered; everything is served. A holder can be older than
/// its worker: it passes over lines that it does not know.
pub(crate) const INITIALISED: &str = "initialised";
/// See [`INITIALISED`].
pub(crate) const READY: &str = "ready";
/// What the holder writes to its worker, a line, when the daemon is to end. Nobody else can say it: a signal, which anybody
/// can send, ends the worker alone, and the next one takes over. A worker that does not know the word ends too.
pub(crate) const STOP: &str = "stop";
/// Environment of a worker: "first" or "adopt", and how many adoptions there were.
pub(crate) const ROLE: &str = "LAMINAD_ROLE";
/// See [`ROLE`].
pub(crate) const TAKEOVERS: &str = "LAMINAD_TAKEOVERS";
/// Environment of a worker: the directories of [`Config::run`] and [`Config::cache_dir`] for as long as the holder lives.
pub(crate) const RUN: &str = "LAMINAD_RUN";
/// See [`RUN`].
pub(crate) const CACHE: &str = "LAMINAD_CACHE";

const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A worker that is asked to end unmounts what nobody uses; longer than this it is not waited for.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// How long a start waits for the cache, which a worker that lost its holder may still have.
const ORPHAN_DEADLINE: Duration = Duration::from_secs(3);

/// The program and the arguments that start a worker.
#[derive(Debug, Clone)]
pub struct Program {
    /// Path of the executable: looked up anew at each start, so a replaced file is an upgrade.
    pub path: PathBuf,
    /// Arguments with which it becomes a worker.
    pub arguments: Vec<std::ffi::OsString>,
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// When another daemon has the run directory, or the connection cannot be opened.
pub fn run(config: &Config, program: Program) -> Result<(), Error> {
    let config = &config.clone().settled()?;
    let _lock = lock(config)?;
    wait_for_cache(config)?;
    // First of all: nothing can be said of a path that a dead connection is mounted on.
    leftovers::clean(config)?;
    make(&config.devices())?;
    make(&config.stacks())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::system)?;
    runtime.block_on(async { Holder::new(config, program)?.supervise().await })
}

fn lock(config: &Config) -> Result<std::fs::File, Error> {
    let path = config.run.join("lock");
    let file = std::fs::File::create(&path).map_err(|e| Error::path(&path, e))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| Error::Busy { run: config.run.clone() })?;
    Ok(file)
}

/// Mounts whose metadata lie in our cache are ours, and are about to be taken away as a dead daemon's. A living one with
/// another run directory must not use the same cache then. The worker of a holder that was killed may take a moment to end.
fn wait_for_cache(config: &Config) -> Result<(), Error> {
    let deadline = std::time::Instant::now() + ORPHAN_DEADLINE;
    loop {
        match blobstore::cache::check_unowned(&config.cache_dir) {
            Ok(()) => return Ok(()),
            Err(_) if std::time::Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            Err(e) => return Err(Error::CacheTaken(e)),
        }
    }
}

fn make(path: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(path).map_err(|e| Error::path(path, e))
}

/// Why supervision goes on with another worker.
enum Ended {
    /// SIGTERM or SIGINT came and the worker has ended.
    Asked,
    /// It died by itself.
    Died(ExitStatus),
    /// It was not ready in time, and was killed.
    Late,
}

struct Holder<'a> {
    config: &'a Config,
    program: Program,
    connection: OwnedFd,
    /// Whether a worker has answered the connection's INIT.
    initialised: bool,
    takeovers: u32,
    /// Whether the running worker was given a connection that another one had.
    adopting: bool,
    pause: Duration,
    /// When the connection without a ready worker is aborted.
    abort_at: Option<Instant>,
    terminate: Signal,
    interrupt: Signal,
}

/// A write past the limit on file sizes (`ulimit -f`), of the cache or a log, is a failure of that write and not the end of all
/// mounts.
pub(crate) fn outlive_file_limits() -> Result<(), Error> {
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop).map_err(Error::system)
}

impl<'a> Holder<'a> {
    fn new(config: &'a Config, program: Program) -> Result<Self, Error> {
        outlive_file_limits()?;
        let connection = connection::open(&config.devices()).map_err(|e| Error::path(&config.devices(), e))?;
        Ok(Self {
            config,
            program,
            connection,
            initialised: false,
            takeovers: 0,
            adopting: false,
            pause: Duration::ZERO,
            abort_at: None,
            terminate: signal(SignalKind::terminate()).map_err(Error::system)?,
            interrupt: signal(SignalKind::interrupt()).map_err(Error::system)?,
        })
    }

    async fn supervise(mut self) -> Result<(), Error> {
        let mut ever_ready = false;
        loop {
            let (ended, ready) = self.one_worker().await?;
            ever_ready |= ready;
            match ended {
                Ended::Asked => return self.finish(),
                // Nothing to hold yet, and the reason stands in the worker's own last words.
                Ended::Died(_) if !ever_ready => {
                    self.finish()?;
                    return Err(Error::Worker);
                }
                // Somebody ended it: that is how a new binary is taken up.
                Ended::Died(status) if status.success() => tracing::info!("the worker handed over; starting another"),
                Ended::Died(status) => tracing::error!(%status, "the worker died; starting another"),
                Ended::Late => tracing::error!("the worker was not ready in time; starting another"),
            }
            let overdue = self.abort_at.is_some_and(|at| Instant::now() >= at);
            if !connection::can_resend() || overdue || matches!(ended, Ended::Late) {
                self.start_clean()?;
            }
            if self.wait_before_next().await {
                return self.finish();
            }
        }
    }

    /// Runs one worker to its end. Also says whether it was ready.
    async fn one_worker(&mut self) -> Result<(Ended, bool), Error> {
        let (mut child, mut status) = self.start()?;
        let (mut ready, mut open) = (false, true);
        loop {
            let late = self.abort_at.filter(|_| !ready);
            tokio::select! {
                line = status.next_line(), if open => match line {
                    Ok(Some(line)) if line == INITIALISED => self.initialised = true,
                    Ok(Some(line)) if line == READY => {
                        ready = true;
                        self.worker_ready();
                    }
                    // The worker may be of a newer build than its holder.
                    Ok(Some(line)) => tracing::debug!(line, "the worker says something that this holder does not know"),
                    // Closed: the child's end is near, which the next branch sees.
                    Ok(None) | Err(_) => open = false,
                },
                died = child.wait() => return Ok((Ended::Died(died.map_err(Error::system)?), ready)),
                _ = self.terminate.recv() => { stop(&mut child, &mut status).await; return Ok((Ended::Asked, ready)); }
                _ = self.interrupt.recv() => { stop(&mut child, &mut status).await; return Ok((Ended::Asked, ready)); }
                () = until(late) => {
                    let _ = child.kill().await;
                    return Ok((Ended::Late, ready));
                }
            }
        }
    }

    fn start(&mut self) -> Result<(Child, Words), Error> {
        let (ours, theirs) = StdUnixStream::pair().map_err(Error::system)?;
        ours.set_nonblocking(true).map_err(Error::system)?;
        let role = if self.initialised { "adopt" } else { "first" };
        self.adopting = self.initialised;
        let child = Command::new(&self.program.path)
            .args(&self.program.arguments)
            .env(ROLE, role)
            .env(TAKEOVERS, (self.takeovers + u32::from(self.adopting)).to_string())
            .env(RUN, &self.config.run)
            .env(CACHE, &self.config.cache_dir)
            .stdin(Stdio::from(self.connection.try_clone().map_err(Error::system)?))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Error::path(&self.program.path, e))?;
        let lines = BufReader::new(UnixStream::from_std(ours).map_err(Error::system)?).lines();
        Ok((child, lines))
    }

    fn worker_ready(&mut self) {
        self.pause = Duration::ZERO;
        self.abort_at = None;
        self.takeovers += u32::from(self.adopting);
        // No NOTIFY_SOCKET, no systemd: nothing to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!(takeovers = self.takeovers, "the worker is ready");
    }

    /// Waits a little longer before each further try; true when the daemon was asked to end meanwhile.
    async fn wait_before_next(&mut self) -> bool {
        let now = Instant::now();
        let abort_at = *self.abort_at.get_or_insert(now + self.config.successor_deadline);
        // A worker must have time left to become ready in.
        let pause = self.pause.min(abort_at.saturating_duration_since(now) / 2);
        self.pause = (self.pause * 2).clamp(Duration::from_millis(100), LONGEST_PAUSE);
        tokio::select! {
            () = tokio::time::sleep(pause) => false,
            _ = self.terminate.recv() => true,
            _ = self.interrupt.recv() => true,
        }
    }

    /// Gives the connection up, with all that hangs on it, and opens another.
    fn start_clean(&mut self) -> Result<(), Error> {
        tracing::error!("aborting the connection: what reads lazily from it now gets EIO");
        self.abort()?;
        leftovers::clean(self.config)?;
        self.connection =
            connection::open(&self.config.devices()).map_err(|e| Error::path(&self.config.devices(), e))?;
        self.initialised = false;
        self.abort_at = None;
        self.pause = Duration::ZERO;
        Ok(())
    }

    /// Ends the connection. Where the control file system is not mounted, closing our descriptor does it a little later.
    fn abort(&self) -> Result<(), Error> {
        let mounts = info::mounts().map_err(Error::system)?;
        let Some(line) = info::at(&mounts, &self.config.devices()) else { return Ok(()) };
        match connection::abort(line.minor) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::path(&self.config.devices(), e)),
            _ => Ok(()),
        }
    }

    fn finish(&self) -> Result<(), Error> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        // Whoever still reads gets EIO now, and not a wait for a worker that will not come.
        self.abort()?;
        leftovers::clean(self.config)
    }
}

/// What a worker says, and the way to it.
type Words = Lines<BufReader<UnixStream>>;

async fn stop(child: &mut Child, worker: &mut Words) {
    // One that has just ended hears nothing, and need not.
    let _ = worker.get_mut().get_mut().write_all(format!("{STOP}\n").as_bytes()).await;
    if tokio::time::timeout(STOP_DEADLINE, child.wait()).await.is_err() {
        tracing::error!("the worker did not end when asked; killing it");
        let _ = child.kill().await;
    }
}

async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}
