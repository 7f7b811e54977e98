//! The mounter's protocol: one JSON line each way. It never leaves this program, so its form is free to change.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How the kernel is given a layer's two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ErofsForm {
    /// File-backed, with direct I/O on the data (Linux 6.15 and later).
    FileDirect,
    /// File-backed without that option (from 6.12).
    File,
    /// Two loop devices (from 5.16).
    Loop,
}

impl ErofsForm {
    /// Its name among what was probed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FileDirect => "erofs-file-directio",
            Self::File => "erofs-file",
            Self::Loop => "erofs-loop",
        }
    }

    /// The face that it is, as the configuration calls it.
    pub(crate) fn face(self) -> &'static str {
        match self {
            Self::FileDirect | Self::File => "file",
            Self::Loop => "loop",
        }
    }
}

/// What the mounter can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(crate) enum Request {
    /// Mounts a layer.
    Erofs { form: ErofsForm, metadata: PathBuf, device: PathBuf, target: PathBuf },
    /// Shows `source` at `target` too, if what is seen there is the mount with this id of mountinfo: another mount may
    /// lie over it, or over a directory above it. ESTALE if it is not.
    Bind { source: PathBuf, mount: u64, target: PathBuf },
    /// Stacks directories, bottom to top; each is named relative to `base`. `options` are those of every overlay here.
    Overlay { base: PathBuf, lowers: Vec<String>, target: PathBuf, upper: Option<Upper>, options: Vec<String> },
    /// Unmounts; with `detach` also what is in use, which lives on until its last user is gone.
    Unmount { target: PathBuf, detach: bool },
}

/// The writable side of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Upper {
    /// Gets `fs` and `work`, where they are missing.
    pub(crate) dir: PathBuf,
    /// Which of the lower directories lends its root's attributes to a new `fs`: that is what the merged root shows.
    pub(crate) like: String,
}

/// The mounter's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Done.
    Done,
    /// Not done: the errno (0 = none), what was being done, and the error in words.
    Failed { errno: i32, what: String },
}
