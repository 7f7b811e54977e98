//! `lamina mount` and `lamina umount`.

use super::{Context, answer_about};
use crate::args::{MOUNT_USAGE, Mount, Umount};
use crate::failure::Failure;
use crate::output;
use control::v1::{MountRequest, UnmountRequest};
use serde_json::json;
use std::path::{Path, PathBuf};

pub(super) async fn mount(context: &Context, arguments: &Mount) -> Result<(), Failure> {
    let (target, references) = match arguments.references_and_target.split_last() {
        Some((target, references @ [_, ..])) => (target, references),
        _ => {
            return Err(Failure::usage(format!(
                "what to mount, and the directory to mount it on, are needed: {MOUNT_USAGE}"
            )));
        }
    };
    let target = existing(Path::new(target))?;
    let upper = arguments.rw.as_deref().map(make_absolute).transpose()?;
    let request = MountRequest {
        references: references.to_vec(),
        target: text(&target)?,
        upper: upper.as_deref().map(text).transpose()?.unwrap_or_default(),
        face: arguments.face.clone(),
    };
    let reply = context.daemon().mount(request).await;
    let reply = answer_about(context, references, reply).await?;
    if context.json {
        let layers: Vec<_> = reply.layers.iter().map(|l| l.id.clone()).collect();
        return output::json(&json!({"target": target, "layers": layers, "face": reply.face}));
    }
    output::done(format!(
        "{} on {}, face {}",
        output::count(reply.layers.len() as u64, "layer"),
        target.display(),
        reply.face
    ));
    Ok(())
}

pub(super) async fn umount(context: &Context, arguments: &Umount) -> Result<(), Failure> {
    let target = std::path::absolute(&arguments.target).map_err(|e| named(&arguments.target, &e))?;
    // A link is followed, as mount does; what it leads to may be a mount.
    let target = if target.read_link().is_ok() { existing(&target)? } else { target };
    // Not canonicalised through the mount itself: its parent is, so that a dead mount can still be named.
    let parent = target.parent().and_then(|p| p.canonicalize().ok());
    let target = match (parent, target.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => target,
    };
    let reply = context.daemon().unmount(UnmountRequest { target: text(&target)? }).await;
    context.answer(reply)?;
    match context.json {
        true => output::json(&json!({"unmounted": target})),
        false => Ok(()),
    }
}

fn existing(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| named(path, &e))
}

fn make_absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::create_dir_all(path).map_err(|e| named(path, &e))?;
    existing(path)
}

fn named(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: {error}", path.display()))
}

fn text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::usage(format!("{}: the path is not UTF-8", path.display())))
}
