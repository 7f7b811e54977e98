//! The subcommands of `lamina`, one file each. Each says what was done; how it is printed is `output`'s business.

mod cache;
mod convert;
mod export;
mod inspect;
mod interrupt;
mod mount;
mod pull;
mod status;
mod store;
mod suggest;
mod trace;
mod verify;

use crate::args::{Command, Global, Lamina, StoreCommand};
use crate::config::Config;
use crate::environment;
use crate::failure::Failure;
use crate::output;
use crate::signals;
use blobstore::refs::Refs;
use blobstore::store::{Store, open_with};
use clap::Parser;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Named in the documentation as coming; a clear word is better than "unrecognized".
const NOT_YET: [&str; 3] = ["compose", "snapshot", "virtiofs"];

/// What every subcommand gets.
struct Context {
    config: Config,
    json: bool,
}

impl Context {
    fn new(global: &Global) -> Result<Self, Failure> {
        let mut config = Config::load(global.config.as_deref())?;
        if let Some(url) = &global.store {
            config.store.url = url.clone();
        }
        Ok(Self { config, json: global.json })
    }

    fn store(&self) -> Result<Arc<dyn Store>, Failure> {
        open_with(&self.config.store.url, &self.config.store_settings())
            .map_err(|e| Failure::usage(format!("cannot use the store: {}", blobstore::causes(&e))))
    }

    fn refs(&self) -> Result<Refs, Failure> {
        Ok(Refs::new(self.store()?))
    }

    fn daemon(&self) -> control::DaemonClient<tonic::transport::Channel> {
        control::client(&self.config.socket(), control::HAND_OVER)
    }

    fn cache(&self) -> control::CacheClient<tonic::transport::Channel> {
        control::cache_client(&self.config.socket(), control::HAND_OVER)
    }

    /// The daemon's answer, or a failure that says how to start one.
    fn answer<T>(&self, answer: Result<tonic::Response<T>, tonic::Status>) -> Result<T, Failure> {
        match answer {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => match control::unreachable(&status) {
                Some(why) => Err(no_daemon(&self.config.socket(), &why)),
                None => Err(status.into()),
            },
        }
    }
}

/// Why, as the system says it: who may not open the socket needs no other daemon.
fn no_daemon(socket: &Path, why: &str) -> Failure {
    let denied = std::os::unix::net::UnixStream::connect(socket)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
    let socket = socket.display();
    Failure::failed(match (denied, rustix::process::geteuid().is_root()) {
        (true, _) => format!("{socket} may not be opened ({why}): run this as root"),
        (false, true) => format!("no daemon answers at {socket} ({why}): {START}"),
        (false, false) => format!("no daemon answers at {socket} ({why}): {START}, and run this as root"),
    })
}

const START: &str = "start laminad (systemctl start laminad, or laminad --config FILE)";

/// As [`Context::answer`] of what was asked about references: what else may have been meant where one leads nowhere.
async fn answer_about<T>(
    context: &Context,
    references: &[String],
    answer: Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, Failure> {
    let unknown = answer.as_ref().is_err_and(|status| status.code() == tonic::Code::NotFound);
    match context.answer(answer) {
        Err(failure) if unknown => Err(suggest::not_found(context, references, failure).await),
        answer => answer,
    }
}

/// `lamina`.
pub fn lamina() -> ExitCode {
    let Lamina { global, command } = Lamina::parse();
    if global.quiet {
        output::be_quiet();
    }
    output::start_logs(match (global.verbose, global.quiet) {
        (true, _) => "debug,h2=info,hyper=info,hyper_util=info,reqwest=info,rustls=info,tower=info,tonic=info",
        (_, true) => "error",
        _ => "warn",
    });
    match run(&global, command).and_then(|()| output::finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(format_args!("lamina: {failure}"));
            ExitCode::from(failure.status)
        }
    }
}

fn run(global: &Global, command: Command) -> Result<(), Failure> {
    let context = Context::new(global)?;
    warn_of_unused_store(global, &command);
    let runtime = tokio::runtime::Runtime::new().map_err(|e| Failure::because("starting", &e))?;
    // Others take back what they have begun.
    let takes_back = match &command {
        Command::Convert(_) | Command::Export(_) | Command::Pull(_) | Command::Trace(_) => true,
        Command::Store(command) => matches!(command, StoreCommand::Gc(_)),
        _ => false,
    };
    {
        let _within = runtime.enter();
        signals::outlive_file_limits();
        if !takes_back {
            interrupt::end_at_once()?;
        }
    }
    if matches!(command, Command::Convert(_) | Command::Verify(_) | Command::Export(_)) {
        environment::large_arrays_on_disk();
    }
    let done = match command {
        Command::Convert(arguments) => convert::run(&context, &runtime, &arguments),
        Command::Verify(arguments) => runtime.block_on(verify::run(&context, &arguments)),
        Command::Inspect(arguments) => runtime.block_on(inspect::run(&context, &arguments)),
        Command::Export(arguments) => export::run(&context, &runtime, &arguments),
        Command::Pull(arguments) => runtime.block_on(pull::run(&context, &arguments)),
        Command::Mount(arguments) => runtime.block_on(mount::mount(&context, &arguments)),
        Command::Umount(arguments) => runtime.block_on(mount::umount(&context, &arguments)),
        Command::Cache(command) => runtime.block_on(cache::run(&context, &command)),
        Command::Store(command) => runtime.block_on(store::run(&context, &command)),
        Command::Trace(arguments) => runtime.block_on(trace::run(&context, &arguments)),
        Command::Status => runtime.block_on(status::run(&context)),
        Command::Other(words) => Err(other(words.first().map_or("", String::as_str))),
    };
    if done.as_ref().is_err_and(Failure::is_signal) {
        // Its end would wait for threads in the middle of a layer: they end with the process.
        std::mem::forget(runtime);
    }
    done
}

/// All commands take the option, but what laminad answers is of the store that it was started with.
fn warn_of_unused_store(global: &Global, command: &Command) {
    let name = match command {
        Command::Mount(_) => "mount",
        Command::Umount(_) => "umount",
        Command::Status => "status",
        Command::Cache(_) => "cache",
        Command::Trace(_) => "trace",
        _ => return,
    };
    if global.store.is_some() {
        tracing::warn!(
            "--store is of no use to lamina {name}: laminad answers it, from the store that it was started with (its own \
             --store, or [store] url in its configuration)"
        );
    }
}

fn other(name: &str) -> Failure {
    match NOT_YET.contains(&name) {
        true => Failure::failed(format!("'lamina {name}' is not built yet (the README lists what is not)")),
        false => Failure::usage(format!("there is no subcommand '{name}'; see lamina --help")),
    }
}
