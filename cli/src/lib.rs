//! The `lamina` command, and the entry points of `laminad` and `lamina-snapshotter`.
//!
//! * `args`: what can be typed. * `config`: the TOML file, parsed here and nowhere else; the crates below get typed
//!   values and read no environment. * `command`: one file a subcommand. * `registries`: where logins are.
//!   * `failure`: exit statuses. * `output`: logs, progress and results.

mod args;
mod command;
mod config;
mod daemons;
mod failure;
mod output;
mod registries;

pub use command::lamina;
pub use daemons::{laminad, snapshotter};
