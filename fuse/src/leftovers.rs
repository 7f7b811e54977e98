//! What a daemon that was killed leaves behind: mounts whose data nobody serves any more.
//!
//! Found in mountinfo, so nothing has to be remembered: the connection's own mount, every EROFS mount whose metadata file
//! lies in our cache, and the stacks under the run directory. Containers that still stand on them keep what they hold;
//! what they had not read yet is EIO for them.

use crate::config::Config;
use crate::mount::info::{self, MountLine};
use crate::{Error, stack};
use rustix::mount::UnmountFlags;
use std::path::Path;

/// Detaches all of it, newest first. For the holder, when no worker runs.
pub(crate) fn clean(config: &Config) -> Result<(), Error> {
    stack::forget_all(config)?;
    let mounts = info::mounts().map_err(Error::system)?;
    for mount in mounts.iter().rev().filter(|m| is_ours(m, config)) {
        tracing::info!(target = %mount.target.display(), "unmounting");
        detach(&mount.target);
    }
    let _ = std::fs::remove_file(config.journal());
    let _ = std::fs::remove_file(config.socket());
    Ok(())
}

fn is_ours(mount: &MountLine, config: &Config) -> bool {
    match mount.fs_type.as_str() {
        "fuse.lamina" => mount.target == config.devices(),
        _ => info::layer_metadata(mount, &config.cache_dir).is_some(),
    }
}

fn detach(target: &Path) {
    // The mount is detached at once, whoever uses it; that touches no data.
    if let Err(e) = rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        tracing::warn!(target = %target.display(), error = %e, "cannot unmount");
    }
}
