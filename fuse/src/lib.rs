//! `laminad`, the node's data plane: block devices for layers over FUSE, EROFS mounts of them, stacks.
//!
//! * [`run`] is the daemon as it is started: the *holder*, which owns the FUSE connection and keeps a worker running.
//! * [`work`] is the *worker*, the holder's child: control API, fetching, answers to the kernel.
//! * [`serve_mounts`] is the *mounter*, the worker's child: the only process that touches paths on our own mounts.
//!
//! The rooms: `holder`, `connection` and `leftovers` (a daemon's life), `worker`, `node`, `service`, `status` (the process,
//! its parts and its API), `head`, `layers`, `table` (a layer opened, attached, known), `leases` (what the store must keep),
//! `device`, `reads` (what the kernel reads), `stack` (`lamina mount`), `mount` (system calls about mounts), `profile` (what
//! starts read, and are expected to read), `trace` (who wants to know what readers wait for), `administration` (`lamina
//! cache`), `turns` (who waits for whom), `probe` (what this kernel can do), `config`, `error`, `meters`, `sys` (all unsafe
//! code).
//!
//! This crate knows EROFS as something that is checked and mounted, and chunks as something that the fetcher has. It
//! knows nothing of containerd or of images.

mod administration;
mod config;
mod connection;
mod device;
mod error;
mod head;
mod holder;
mod layers;
mod leases;
mod leftovers;
mod meters;
mod mount;
mod node;
mod probe;
mod profile;
mod reads;
mod service;
mod stack;
mod status;
mod sys;
mod table;
mod trace;
mod turns;
mod worker;

pub use config::{Config, Face};
pub use error::{Error, Kind};
pub use holder::{Program, run};
pub use mount::mounter::serve as serve_mounts;
pub use profile::{Options as ProfileOptions, Record};
pub use worker::work;

/// The argument with which the program becomes the mounter: the command line must call [`serve_mounts`] then.
pub const MOUNTER_ARGUMENT: &str = "--mounter";
/// The argument with which the program becomes a worker: the command line must call [`work`] then.
pub const WORKER_ARGUMENT: &str = "--worker";
