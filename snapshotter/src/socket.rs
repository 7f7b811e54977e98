//! The unix socket that containerd dials.

use crate::error::{Context, Error, Result};
use std::fs;
use std::io::ErrorKind::NotFound;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// A listening socket; its file goes when this is dropped, unless another has taken its place.
pub(crate) struct Socket {
    path: PathBuf,
    inode: u64,
}

impl Socket {
    /// Listens at `path`. A socket there on which nobody listens any more is removed; one that is served is an error, and
    /// so is any other file.
    pub(crate) fn bind(path: &Path) -> Result<(Self, UnixListener)> {
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            let made = fs::DirBuilder::new().recursive(true).mode(0o711).create(above);
            made.context(|| format!("cannot make {}", above.display()))?;
        }
        remove_stale(path)?;
        let what = || format!("cannot listen on {}", path.display());
        let listener = UnixListener::bind(path).context(what)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).context(what)?;
        let inode = fs::symlink_metadata(path).context(what)?.ino();
        Ok((Self { path: path.to_owned(), inode }, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_stale(path: &Path) -> Result<()> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == NotFound => return Ok(()),
        Err(error) => return Err(Error::caused(format!("cannot look at {shown}"), error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::internal(format!("{shown} is there and is no socket: it is left alone")));
        }
        Ok(_) => {}
    }
    if UnixStream::connect(path).is_ok() {
        return Err(Error::internal(format!("another process serves {shown}")));
    }
    fs::remove_file(path).context(|| format!("cannot remove the stale socket {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_a_served_one_and_a_file_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/s");
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("stale")).unwrap());
        Socket::bind(&dir.path().join("stale")).unwrap();
        let (socket, _listener) = Socket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Socket::bind(&path).is_err());
        drop(socket);
        assert!(!path.exists());
        fs::write(&path, "x").unwrap();
        assert!(Socket::bind(&path).is_err());
    }
}
