//! The containerd plugin.

fn main() -> std::process::ExitCode {
    cli::snapshotter()
}
