//! The command line, for CI and for the administrator of images, cache and store.

/// Layers with millions of entries are converted in little memory: see `environment::large_arrays_on_disk`.
#[global_allocator]
static ALLOCATOR: spill::Spill = spill::Spill;

fn main() -> std::process::ExitCode {
    cli::lamina()
}
