//! Workspaces and toolkits, by labels.

use crate::node::{Node, chain, code, digest, lowers};
use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unavailable};

const WORKSPACE: &str = "containerd.io/snapshot/lamina.workspace";
const TOOLKITS: &str = "containerd.io/snapshot/lamina.toolkits";

async fn with_image() -> Option<(Node, String)> {
    let node = Node::start().await?;
    let image = chain("image");
    node.stack(&image, &["base"]);
    assert_eq!(code(node.unpack(&image, "").await), AlreadyExists);
    node.stack("tag:workspace/w:1", &["w1", "w2"]);
    node.stack("tag:toolkit/gcc:13", &["gcc"]);
    let id = node.layer("late");
    node.stack(&format!("layer:{id}"), &["late"]);
    Some((node, image))
}

#[tokio::test]
async fn they_are_stacked_in_their_order_above_the_image() {
    let Some((mut node, image)) = with_image().await else { return };
    let toolkits = format!("toolkit/gcc:13,{}", digest("late"));
    let labels = [(WORKSPACE, "tag:workspace/w:1"), (TOOLKITS, toolkits.as_str())];
    let mount = node.prepare("k8s.io/9/c", &image, &labels).await.unwrap();
    assert_eq!(lowers(&mount), 5);
    assert_eq!(node.read(&mount, "top").as_deref(), Some("late"));
    for name in ["base", "w1", "w2", "gcc", "late"] {
        assert_eq!(node.read(&mount, name).as_deref(), Some(name));
    }
    // It is recorded: the same after a restart, and below what is committed from it.
    node.stop_snapshotter().await;
    node.start_snapshotter().await;
    assert_eq!(node.mounts("k8s.io/9/c").await.unwrap(), mount);
    node.commit("k8s.io/10/saved", "k8s.io/9/c").await.unwrap();
    node.cleanup().await;
    let above = node.prepare("k8s.io/11/c", "k8s.io/10/saved", &[]).await.unwrap();
    assert_eq!((lowers(&above), node.read(&above, "top").as_deref()), (6, Some("late")));
    node.remove("k8s.io/11/c").await.unwrap();
    node.remove("k8s.io/10/saved").await.unwrap();
    node.cleanup().await;
    assert_eq!(node.fake.lock().mounted.len(), 1, "only the image's layer is still named");
}

#[tokio::test]
async fn nothing_below_the_topmost_opaque_layer_is_stacked() {
    let Some((node, image)) = with_image().await else { return };
    node.fake.lock().opaque.insert(digest("w2"));
    let labels = [(WORKSPACE, "workspace/w:1"), (TOOLKITS, "toolkit/gcc:13")];
    let mount = node.prepare("c", &image, &labels).await.unwrap();
    assert_eq!(lowers(&mount), 2);
    assert_eq!((node.read(&mount, "base"), node.read(&mount, "w1")), (None, None));
    assert_eq!(node.fake.lock().attached.len(), 2, "what does not show is not mounted");
}

#[tokio::test]
async fn a_layer_named_twice_is_stacked_once_where_it_is_highest() {
    let Some((node, image)) = with_image().await else { return };
    let mount = node.prepare("c", &image, &[(TOOLKITS, "toolkit/gcc:13,workspace/w:1,toolkit/gcc:13")]).await.unwrap();
    assert_eq!((lowers(&mount), node.read(&mount, "top").as_deref()), (4, Some("gcc")));
}

#[tokio::test]
async fn the_root_directory_is_the_image_s() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let Some((node, image)) = with_image().await else { return };
    let source = |name: &str| node.dir.path().join("layers").join(name);
    std::fs::set_permissions(source("base"), std::fs::Permissions::from_mode(0o1751)).unwrap();
    std::os::unix::fs::chown(source("base"), Some(7), Some(8)).unwrap();
    std::fs::set_permissions(source("gcc"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let mount = node.prepare("c", &image, &[(TOOLKITS, "toolkit/gcc:13")]).await.unwrap();
    let upper = mount.options.iter().find_map(|option| option.strip_prefix("upperdir=")).unwrap();
    let found = std::fs::metadata(upper).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o1751, 7, 8));
}

#[tokio::test]
async fn an_image_cannot_ask_for_them() {
    let Some((node, image)) = with_image().await else { return };
    let labels = [(TOOLKITS, "toolkit/gcc:13")];
    let key = format!("default/3/extract-7 {}", chain("x"));
    assert_eq!(code(node.prepare(&key, &image, &labels).await), InvalidArgument);
    let (target, there) = (chain("x"), chain("there"));
    node.stack(&there, &["base", "over"]);
    for chain in [&target, &there] {
        let labels = [(TOOLKITS, "toolkit/gcc:13"), (crate::node::TARGET, chain.as_str())];
        assert_eq!(code(node.prepare("default/4/c", &image, &labels).await), InvalidArgument);
    }
    assert_eq!(code(node.stat(&there).await), NotFound);
}

#[tokio::test]
async fn what_cannot_be_had_fails_and_leaves_nothing() {
    let Some((mut node, image)) = with_image().await else { return };
    let before = node.dirs();
    for bad in ["image:busybox", "file:/etc", "/etc", "sha256:00", "busybox"] {
        assert_eq!(code(node.prepare("c", &image, &[(WORKSPACE, bad)]).await), InvalidArgument, "{bad}");
    }
    assert_eq!(code(node.prepare("c", &image, &[(WORKSPACE, "workspace/none:1")]).await), FailedPrecondition);
    node.stop_daemon();
    assert_eq!(code(node.prepare("c", &image, &[(WORKSPACE, "workspace/w:1")]).await), Unavailable);
    assert_eq!(code(node.stat("c").await), NotFound);
    assert_eq!(node.dirs(), before);
}
