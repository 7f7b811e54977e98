//! Workspaces and toolkits, asked for with labels on a container's Prepare.
//!
//! Labels of an image unpack can come from annotations in the image itself, so there they are refused: what an image
//! says about itself must not choose what it is stacked with. Elsewhere they come from who creates the container, and
//! may name tags and layers; not files or images, which would let a pod's annotation read what it should not.

use crate::error::{Error, Result};
use crate::record::{Labels, is_hash};
use crate::transitions::TARGET;

/// Names the workspace.
pub(crate) const WORKSPACE: &str = "containerd.io/snapshot/lamina.workspace";
/// Names the toolkits, separated by commas, the lowest first.
pub(crate) const TOOLKITS: &str = "containerd.io/snapshot/lamina.toolkits";

/// The references that `labels` ask for, bottom to top, in laminad's spelling.
pub(crate) fn requested(key: &str, labels: &Labels) -> Result<Vec<String>> {
    let wanted = |label: &str| labels.get(label).map(String::as_str).filter(|value| !value.is_empty());
    let (workspace, toolkits) = (wanted(WORKSPACE), wanted(TOOLKITS));
    if workspace.is_none() && toolkits.is_none() {
        return Ok(Vec::new());
    }
    if labels.contains_key(TARGET) || is_unpack(key) {
        let why = "an image cannot choose workspaces or toolkits: the labels are for containers";
        return Err(Error::invalid(format!("{WORKSPACE}, {TOOLKITS}: {why}")));
    }
    let toolkits = toolkits.into_iter().flat_map(|list| list.split(','));
    workspace.into_iter().chain(toolkits).map(|text| reference(text.trim())).collect()
}

/// An unpack's key is `extract-<unique> <chain id>`, after containerd's own `<namespace>/<sequence>/`.
fn is_unpack(key: &str) -> bool {
    let mut parts = key.splitn(3, '/');
    let own = match (parts.next(), parts.next(), parts.next()) {
        (_, Some(sequence), Some(own)) if sequence.bytes().all(|byte| byte.is_ascii_digit()) => own,
        _ => key,
    };
    own.starts_with("extract-") || key.starts_with("extract-")
}

fn reference(text: &str) -> Result<String> {
    let is_tag = |tag: &str| {
        let (kind, rest) = tag.split_once('/').unwrap_or_default();
        matches!(kind, "base" | "workspace" | "toolkit") && rest.contains(':')
    };
    let reference = match (text.strip_prefix("layer:"), text.strip_prefix("tag:")) {
        (Some(id), _) if is_hash(id) => text.to_owned(),
        (_, Some(tag)) if is_tag(tag) => text.to_owned(),
        (None, None) if is_hash(text) => format!("layer:{text}"),
        (None, None) if is_tag(text) => format!("tag:{text}"),
        _ => {
            let forms = "tag:KIND/NAME:VERSION or layer:ID";
            return Err(Error::invalid(format!("{text:?} cannot stand in a label: only {forms} may")));
        }
    };
    Ok(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn workspace_comes_first_and_toolkits_follow_in_their_order() {
        let id = "ab".repeat(32);
        let asked =
            labels(&[(TOOLKITS, &format!("toolkit/gcc:13,tag:toolkit/a/b:1, {id}")), (WORKSPACE, "workspace/w:2")]);
        let wanted = ["tag:workspace/w:2", "tag:toolkit/gcc:13", "tag:toolkit/a/b:1", &format!("layer:{id}")];
        assert_eq!(requested("k8s.io/3/c1", &asked).unwrap(), wanted);
        assert_eq!(requested("k8s.io/3/c1", &labels(&[])).unwrap(), [""; 0]);
    }

    #[test]
    fn an_image_unpack_asks_for_nothing() {
        let mut asked = labels(&[(TOOLKITS, "toolkit/gcc:13")]);
        assert!(requested("default/7/extract-123-Ab sha256:00", &asked).is_err());
        assert!(requested("extract-123-Ab sha256:00", &asked).is_err());
        assert!(requested("default/7/c-extract-1", &asked).is_ok());
        asked.insert(TARGET.into(), "sha256:00".into());
        assert!(requested("default/7/c", &asked).is_err());
    }

    #[test]
    fn only_tags_and_layers_may_be_named() {
        for bad in [
            "image:x",
            "file:/etc",
            "/etc",
            "./x",
            "sha256:ab",
            "busybox",
            "docker.io/x:1",
            "tag:",
            "layer:ab",
            "tag:image/x:1",
            "toolkit/gcc",
            "",
            "toolkit/a:1,",
        ] {
            assert!(requested("c", &labels(&[(TOOLKITS, bad)])).is_err() || bad.is_empty(), "{bad}");
        }
    }
}
