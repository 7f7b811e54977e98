//! The mounter: a child process that makes and unmakes mounts, one at a time, and the handle by which the worker asks it.

use super::kernel;
use super::request::{Answer, Request};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;

/// A mount waits for at most this many reads of its device, each of which has the fetcher's deadline.
const READS: u32 = 4;

/// Why a mount was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    /// The kernel said no.
    #[error("{what}")]
    Kernel {
        /// The errno, 0 when there was none.
        errno: i32,
        /// What was being done, and the error in words.
        what: String,
    },
    /// The mounter itself is at fault.
    #[error("the mounter process: {0}")]
    Mounter(#[from] io::Error),
}

impl MountError {
    /// Whether the kernel's answer was this one.
    pub(crate) fn is(&self, wanted: rustix::io::Errno) -> bool {
        matches!(self, Self::Kernel { errno, .. } if *errno == wanted.raw_os_error())
    }
}

/// The child's side: serves requests on stdin until it ends.
///
/// # Errors
/// When stdin or stdout fail: the worker is gone, and so is the work.
pub fn serve() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str::<Request>(&line?) {
            Ok(request) => kernel::perform(&request),
            Err(e) => Answer::Failed { errno: 0, what: format!("not a request: {e}") },
        };
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

/// The worker's side. Requests are done one after the other; a mounter that died is started again.
#[derive(Debug)]
pub(crate) struct Mounter {
    program: PathBuf,
    deadline: Duration,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    /// Ended when the worker drops it.
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Mounter {
    /// A mounter that runs `program` with the argument that makes it one; `read` is the deadline of a device's read.
    pub(crate) fn new(program: PathBuf, read: Duration) -> Self {
        Self { program, deadline: read * READS, running: Mutex::new(None) }
    }

    /// Has one request done.
    pub(crate) async fn ask(&self, request: &Request) -> Result<(), MountError> {
        let mut slot = self.running.lock().await;
        let running = match slot.take().map(|mut running| (running.child.try_wait(), running)) {
            Some((Ok(None), running)) => running,
            _ => self.start()?,
        };
        let (running, answer) = match self.within_deadline(running, request).await {
            // It died before it had read the request, so nothing was done yet.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.within_deadline(self.start()?, request).await?,
            done => done?,
        };
        *slot = Some(running);
        match answer {
            Answer::Done => Ok(()),
            Answer::Failed { errno, what } => Err(MountError::Kernel { errno, what }),
        }
    }

    async fn within_deadline(&self, running: Running, request: &Request) -> io::Result<(Running, Answer)> {
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer; giving it up");
        tokio::time::timeout(self.deadline, exchange(running, request)).await.map_err(late)?
    }

    fn start(&self) -> io::Result<Running> {
        let mut child = Command::new(&self.program)
            .arg(crate::MOUNTER_ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("started without pipes"));
        };
        Ok(Running { child, requests, answers: BufReader::new(answers) })
    }
}

/// Takes the running child and gives it back only after a whole answer, so that a broken exchange ends it.
async fn exchange(mut running: Running, request: &Request) -> io::Result<(Running, Answer)> {
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    running.requests.write_all(line.as_bytes()).await?;
    let mut reply = String::new();
    if running.answers.read_line(&mut reply).await? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer"));
    }
    Ok((running, serde_json::from_str(&reply)?))
}
