//! The data plane's daemon.

fn main() -> std::process::ExitCode {
    cli::laminad()
}
