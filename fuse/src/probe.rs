//! What this kernel can do, found by trying, not by its version: distributions patch and configure.

use crate::Error;
use crate::config::{Config, Face};
use crate::connection;
use crate::mount::kernel;
use crate::mount::request::ErofsForm;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};

/// One thing that was tried, and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Feature {
    pub(crate) name: &'static str,
    pub(crate) present: bool,
    pub(crate) detail: String,
}

/// The form to mount layers in, and everything that was tried for it.
#[derive(Debug)]
pub(crate) struct Probed {
    pub(crate) form: ErofsForm,
    pub(crate) features: Vec<Feature>,
    /// The mount options of every overlay here.
    pub(crate) overlay_options: Vec<String>,
}

/// Mounts an empty layer in each form that `config.face` allows, the best first, in a scratch directory.
///
/// # Errors
/// When none works: the text lists each with its reason.
pub(crate) fn probe(config: &Config) -> Result<Probed, Error> {
    let forms: &[ErofsForm] = match config.face {
        Face::Auto => &[ErofsForm::FileDirect, ErofsForm::File, ErofsForm::Loop],
        Face::File => &[ErofsForm::FileDirect, ErofsForm::File],
        Face::Loop => &[ErofsForm::Loop],
    };
    // In the cache's file system: whether a file can be mounted depends on what it lies on.
    let scratch = match Scratch::new(&config.cache_dir) {
        // A successor must start on a full disk too: what is mounted already is read all the same.
        Err(e) if cannot_write(&e) => {
            tracing::warn!(dir = %config.cache_dir.display(), error = %e, "the cache takes no file; probing elsewhere");
            Scratch::new(&config.run).map_err(|e| Error::path(&config.run, e))?
        }
        scratch => scratch.map_err(|e| Error::path(&config.cache_dir, e))?,
    };
    let mut features = Vec::new();
    let mut chosen = None;
    for form in forms {
        let tried = scratch.try_form(*form);
        let detail = tried.as_ref().err().map_or_else(|| "works".to_owned(), ToString::to_string);
        features.push(Feature { name: form.name(), present: tried.is_ok(), detail });
        if tried.is_ok() {
            chosen = Some(*form);
            break;
        }
    }
    features.push(resend());
    // Where nothing could be tried, what ought to be taken: a stack without it would be less safe.
    let overlay_options = overlay::probe(&scratch.0).ok().flatten().unwrap_or_else(overlay::wished);
    features.push(Feature { name: "overlay", present: true, detail: overlay_options.join(",") });
    match chosen {
        Some(form) => Ok(Probed { form, features, overlay_options }),
        None => {
            let tried: Vec<String> = features.iter().map(|f| format!("{}: {}", f.name, f.detail)).collect();
            Err(Error::NoFace { tried: tried.join("; ") })
        }
    }
}

fn cannot_write(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

fn resend() -> Feature {
    let (major, minor) = connection::kernel_version();
    let present = connection::can_resend();
    let detail = match present {
        true => "a dead worker's readers are answered by the next".to_owned(),
        false => format!("Linux {major}.{minor} is before 6.9: when a worker dies, its readers get EIO"),
    };
    Feature { name: "fuse-resend", present, detail }
}

/// An empty layer's two files and a mount point; gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path) -> std::io::Result<Self> {
        let scratch = Self(parent.join(format!("probe.{}", std::process::id())));
        std::fs::create_dir_all(scratch.0.join("mount"))?;
        let root = erofs::Attributes { mode: 0o755, ..Default::default() };
        let mut metadata = erofs::write(&erofs::Tree::new(root), 1).map_err(std::io::Error::other)?.into_bytes();
        erofs::attach_device(&mut metadata).map_err(std::io::Error::other)?;
        std::fs::write(scratch.0.join("metadata"), metadata)?;
        std::fs::write(scratch.0.join("device"), [0; 4096])?;
        Ok(scratch)
    }

    fn try_form(&self, form: ErofsForm) -> std::io::Result<()> {
        let point = self.0.join("mount");
        kernel::erofs(form, &self.0.join("metadata"), &self.0.join("device"), &point)?;
        Ok(rustix::mount::unmount(&point, UnmountFlags::empty())?)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
