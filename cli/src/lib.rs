//! The `lamina` command, and the entry points of `laminad` and `lamina-snapshotter`.
//!
//! * `args`: what can be typed. * `config`: the TOML file. * `quantity`: sizes and times in both. * `environment`: what
//!   variables say. * `registries`: what the converter is told of them. The crates below get typed values.
//! * `command`: one file a subcommand. * `daemons`: the two daemons.
//! * `failure`: exit statuses. * `output`: logs and results. * `progress`: how far work is. * `signals`: being told to end.

mod args;
mod command;
mod config;
mod daemons;
mod environment;
mod failure;
mod output;
mod progress;
mod quantity;
mod registries;
mod signals;

pub use command::lamina;
pub use daemons::{laminad, snapshotter};
