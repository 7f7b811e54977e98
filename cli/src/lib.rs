//! The `lamina` command, and the entry points of `laminad` and `lamina-snapshotter`.
//!
//! * `args`: what can be typed. * `config`: the TOML file, parsed here and nowhere else. * `environment`: what variables say.
//!   The crates below get typed values. * `registries`: what the converter is told of them.
//! * `command`: one file a subcommand. * `daemons`: the two daemons. * `failure`: exit statuses. * `output`: logs, progress
//!   and results.

mod args;
mod command;
mod config;
mod daemons;
mod environment;
mod failure;
mod output;
mod registries;

pub use command::lamina;
pub use daemons::{laminad, snapshotter};
