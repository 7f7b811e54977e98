//! The command line, for CI and for the administrator of images, cache and store.

fn main() -> std::process::ExitCode {
    cli::lamina()
}
