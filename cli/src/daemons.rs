//! `laminad` and `lamina-snapshotter`: in the foreground, logs on stderr, systemd told when ready.

use crate::config::{Config, FetchSection, ProfileSection};
use crate::failure::Failure;
use crate::output;
use crate::signals::{self, Signals};
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Debug, Parser)]
struct Arguments {
    /// Configuration file [default: /etc/lamina/config.toml if there is one, else the defaults that dist/config.toml
    /// lists]
    #[arg(long, value_name = "FILE", env = "LAMINA_CONFIG")]
    config: Option<PathBuf>,
    /// Store, over the configuration's
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// More logs
    #[arg(short, long)]
    verbose: bool,
    /// Started by the daemon itself: serve data for a holder
    #[arg(long, hide = true)]
    worker: bool,
}

/// Serves layers' data on this node: FUSE devices, EROFS mounts, the cache.
///
/// Runs in the foreground, logs on stderr, and tells systemd when it is ready. Speak to it with `lamina status`,
/// `lamina mount` and the like.
#[derive(Debug, Parser)]
#[command(name = "laminad", version)]
struct LaminadArguments {
    #[command(flatten)]
    common: Arguments,
}

/// containerd's snapshotter plugin `lamina`.
///
/// Runs in the foreground, logs on stderr, and tells systemd when it is ready. Needs laminad for lazy layers; without it,
/// it serves ordinary snapshots.
#[derive(Debug, Parser)]
#[command(name = "lamina-snapshotter", version)]
struct SnapshotterArguments {
    #[command(flatten)]
    common: Arguments,
    /// Directory of snapshots, over the configuration's
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Socket to serve, over the configuration's
    #[arg(long, value_name = "SOCK")]
    address: Option<PathBuf>,
}

impl Arguments {
    fn config(&self) -> Result<Config, Failure> {
        let mut config = Config::load(self.config.as_deref())?;
        if let Some(store) = &self.store {
            config.store.url = store.clone();
        }
        Ok(config)
    }

    fn log_level(&self) -> &'static str {
        if self.verbose { "debug,h2=info,hyper=info,tower=info,tonic=info" } else { "info,fuser=warn" }
    }
}

/// `laminad`.
pub fn laminad() -> ExitCode {
    // The mounter is asked before arguments are parsed: it is no command of the user's.
    if std::env::args_os().nth(1).is_some_and(|a| a == fuse::MOUNTER_ARGUMENT) {
        return finish("laminad: mounter", fuse::serve_mounts().map_err(|e| Failure::failed(e.to_string())));
    }
    let arguments = LaminadArguments::parse().common;
    output::start_logs(arguments.log_level());
    let config = arguments.config().and_then(|c| root().map(|()| daemon_config(&c)));
    let done = config.and_then(|config| {
        let done = if arguments.worker { fuse::work(config) } else { start(&config) };
        done.map_err(|e| Failure::failed(e.report()))
    });
    finish("laminad", done)
}

/// Both daemons mount: said once here, not as EPERM from wherever it strikes first.
fn root() -> Result<(), Failure> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Failure::failed("it mounts file systems: run it as root")),
    }
}

fn start(config: &fuse::Config) -> Result<(), fuse::Error> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).chain([fuse::WORKER_ARGUMENT.into()]).collect();
    let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("laminad"));
    fuse::run(config, fuse::Program { path, arguments })
}

fn daemon_config(config: &Config) -> fuse::Config {
    fuse::Config {
        store: config.store.url.clone(),
        store_settings: config.store_settings(),
        cache_dir: config.cache.dir.clone(),
        cache_size: config.cache.size,
        cache_reserve: config.cache.reserve,
        cache_domain: config.cache.domain.clone(),
        deadline: config.fetch.deadline,
        lease: config.store.lease,
        fetch: fetch_options(&config.fetch),
        profile: profile_options(&config.profile),
        run: config.daemon.run.clone(),
        face: config.daemon.face,
        metrics: (!config.daemon.metrics.is_empty()).then(|| config.daemon.metrics.clone()),
        store_delay: config.store.added_latency,
        successor_deadline: config.daemon.successor_deadline,
    }
}

fn fetch_options(fetch: &FetchSection) -> blobstore::fetch::Options {
    blobstore::fetch::Options {
        concurrency: fetch.concurrency,
        deadline: fetch.deadline,
        on_outage: fetch.on_outage,
        decoded: fetch.decoded,
        memory: fetch.memory,
        coalesce: fetch.coalesce,
        readahead: fetch.readahead,
        neighbours: fetch.neighbours,
        hedge: fetch.hedge,
        ..Default::default()
    }
}

fn profile_options(profile: &ProfileSection) -> fuse::ProfileOptions {
    fuse::ProfileOptions {
        record: profile.record,
        replay: profile.replay,
        quiet: profile.quiet,
        limit: profile.limit,
        node: (!profile.node.is_empty()).then(|| profile.node.clone()),
    }
}

/// `lamina-snapshotter`.
pub fn snapshotter() -> ExitCode {
    let arguments = SnapshotterArguments::parse();
    output::start_logs(arguments.common.log_level());
    let config = arguments.common.config().and_then(|c| root().map(|()| c));
    let done = config.and_then(|config| serve_snapshots(&arguments, &config));
    finish("lamina-snapshotter", done)
}

fn serve_snapshots(arguments: &SnapshotterArguments, config: &Config) -> Result<(), Failure> {
    let root = arguments.root.as_ref().unwrap_or(&config.snapshotter.root);
    let address = arguments.address.as_ref().unwrap_or(&config.snapshotter.address);
    let mut settings = snapshotter::Config::new(root, address, &config.socket());
    settings.metrics = Some(config.snapshotter.metrics.clone()).filter(|address| !address.is_empty());
    let runtime = tokio::runtime::Runtime::new().map_err(|e| Failure::because("starting", &e))?;
    let done = runtime.block_on(async {
        signals::outlive_file_limits();
        let mut signals = Signals::listen()?;
        let shutdown = async move {
            signals.next().await;
        };
        snapshotter::run(settings, shutdown).await.map_err(|e| Failure::failed(blobstore::causes(&e)))
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

fn finish(name: &str, done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(format_args!("{name}: {failure}"));
            ExitCode::from(failure.status)
        }
    }
}
