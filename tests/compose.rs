//! Image, workspace and toolkits, stacked when a container is created.

use containerd::snapshots::snapshots_client::SnapshotsClient;
use containerd::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd::types::Mount;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use tests::image::{Image, tar};
use tests::node::Node;
use tests::tree::{listing, write};
use tonic::transport::Channel;

fn client(node: &Node) -> SnapshotsClient<Channel> {
    SnapshotsClient::new(containerd::channel(&node.path("sn.sock")))
}

async fn prepare(node: &Node, key: &str, parent: &str, labels: &[(&str, &str)]) -> Result<Vec<Mount>, tonic::Status> {
    let labels: HashMap<String, String> = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let request =
        PrepareSnapshotRequest { snapshotter: "lamina".into(), key: key.into(), parent: parent.into(), labels };
    Ok(client(node).prepare(request).await?.into_inner().mounts)
}

/// Commits every chain of an image, as containerd does when it unpacks. Gives the top one.
async fn pull(node: &Node, chains: &[String]) -> String {
    let mut parent = String::new();
    for chain in chains {
        let key = format!("default/1/extract-1 {chain}");
        let answer = prepare(node, &key, &parent, &[("containerd.io/snapshot.ref", chain)]).await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::AlreadyExists, "{chain} is lazy");
        parent.clone_from(chain);
    }
    parent
}

fn mount_at(mounts: &[Mount], target: &Path) {
    let [mount] = mounts else { panic!("one mount expected: {mounts:?}") };
    let mut command = Command::new("mount");
    match mount.r#type.as_str() {
        "bind" => command.arg("--bind").arg(&mount.source),
        kind => command.args(["-t", kind, "-o", &mount.options.join(",")]).arg(&mount.source),
    };
    assert!(command.arg(target).status().unwrap().success(), "{mounts:?}");
}

fn umount(target: &Path) {
    assert!(Command::new("umount").arg(target).status().unwrap().success());
}

fn layer_files(node: &Node) -> Vec<(String, std::time::SystemTime)> {
    let mut files = Vec::new();
    for shard in fs::read_dir(node.path("store/layers")).unwrap() {
        for file in fs::read_dir(shard.unwrap().path()).unwrap() {
            let file = file.unwrap();
            files.push((file.file_name().into_string().unwrap(), file.metadata().unwrap().modified().unwrap()));
        }
    }
    files.sort();
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_a_workspace_and_two_toolkits_are_one_tree_and_the_later_wins() {
    if !tests::possible("composition") {
        return;
    }
    let mut node = Node::default();
    let image = Image::new(vec![
        tar(&[("etc/who", b"image"), ("etc/base", b"base"), ("gone", b"x")]),
        tar(&[("etc/second", b"second layer"), (".wh.gone", b"")]),
    ]);
    let source = image.write(&node.path("image"), "composed.local/base:1");
    node.convert(&source, &[]);
    let workspace = node.new_dir("workspace");
    write(&workspace.join("etc/who"), "workspace");
    write(&workspace.join("work/code.py"), "print(1)");
    node.convert_dir(&workspace, "workspace/task:1");
    let toolkit = node.new_dir("toolkit");
    write(&toolkit.join("etc/who"), "toolkit one");
    write(&toolkit.join("opt/tool"), "one");
    write(&toolkit.join("opt/one"), "only in one");
    node.convert_dir(&toolkit, "toolkit/one:1");
    fs::write(node.path("two.tar"), tar(&[("etc/who", b"toolkit two"), ("opt/tool", b"two")])).unwrap();
    node.convert(&format!("tar:{}", node.path("two.tar").display()), &["--tag", "toolkit/two:1"]);

    node.start_daemon();
    node.start_snapshotter();
    let top = pull(&node, &image.chain_ids()).await;
    let labels = [
        ("containerd.io/snapshot/lamina.workspace", "tag:workspace/task:1"),
        ("containerd.io/snapshot/lamina.toolkits", "tag:toolkit/one:1,toolkit/two:1"),
    ];
    let mounts = prepare(&node, "default/2/c1", &top, &labels).await.unwrap();
    let target = node.new_dir("mnt");
    mount_at(&mounts, &target);
    let expected = [
        ("etc", "directory"),
        ("etc/base", "base"),
        ("etc/second", "second layer"),
        ("etc/who", "toolkit two"),
        ("opt", "directory"),
        ("opt/one", "only in one"),
        ("opt/tool", "two"),
        ("work", "directory"),
        ("work/code.py", "print(1)"),
    ];
    let expected: Vec<(String, String)> = expected.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
    assert_eq!(listing(&target), expected);
    write(&target.join("etc/who"), "the container");
    assert_eq!(fs::read_to_string(target.join("etc/who")).unwrap(), "the container");
    umount(&target);

    // The same image without them, at the same time: it is not changed by what another container stacked.
    let mounts = prepare(&node, "default/3/c2", &top, &[]).await.unwrap();
    mount_at(&mounts, &target);
    assert_eq!(fs::read_to_string(target.join("etc/who")).unwrap(), "image");
    assert!(!target.join("opt").exists());
    umount(&target);

    // Converting any of them again touches nothing of the others.
    let before = layer_files(&node);
    write(&workspace.join("work/code.py"), "print(2)");
    node.convert_dir(&workspace, "workspace/task:2");
    let after = layer_files(&node);
    assert_eq!(after.len(), before.len() + 1, "one more layer");
    assert!(before.iter().all(|old| after.contains(old)), "and the old ones as they were");
    for key in ["default/2/c1", "default/3/c2"] {
        let request = RemoveSnapshotRequest { snapshotter: "lamina".into(), key: key.into() };
        client(&node).remove(request).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_that_name_workspaces_are_refused_on_an_images_layers_and_name_tags_and_layers_only() {
    if !tests::possible("composition labels") {
        return;
    }
    let mut node = Node::default();
    let image = Image::new(vec![tar(&[("a", b"a")])]);
    let source = image.write(&node.path("image"), "labels.local/base:1");
    node.convert(&source, &[]);
    node.start_daemon();
    node.start_snapshotter();
    let chain = image.chain_ids().remove(0);
    let labels =
        [("containerd.io/snapshot.ref", chain.as_str()), ("containerd.io/snapshot/lamina.workspace", "workspace/x:1")];
    let refused = prepare(&node, &format!("default/1/extract-1 {chain}"), "", &labels).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
    let top = pull(&node, &[chain]).await;
    for bad in ["image:labels.local/base:1", "file:/etc/passwd", "/etc", "tag:workspace/none:1"] {
        let labels = [("containerd.io/snapshot/lamina.workspace", bad)];
        let refused = prepare(&node, "default/2/c", &top, &labels).await.unwrap_err();
        assert_ne!(refused.code(), tonic::Code::AlreadyExists, "{bad}: {refused}");
    }
    // And nothing of them is left in the way.
    prepare(&node, "default/2/c", &top, &[]).await.unwrap();
}

/// containerd shortens the lower directories to names relative to their common parent when the options would pass a page.
fn mount_shortened(mounts: &[Mount], root: &Path, target: &Path) {
    let [mount] = mounts else { panic!("one mount expected: {mounts:?}") };
    let base = root.join("s");
    let prefix = format!("{}/", base.display());
    let shorten = |option: &String| match option.strip_prefix("lowerdir=") {
        Some(lowers) => format!("lowerdir={}", lowers.replace(&prefix, "")),
        None => option.clone(),
    };
    let options = mount.options.iter().map(shorten).collect::<Vec<_>>().join(",");
    assert!(options.len() < 4096, "{} bytes of options", options.len());
    // By a program, which can stand where it wants to.
    let mount = ["-i", "-t", "overlay", "-o", &options, "overlay"];
    let status = Command::new("mount").args(mount).arg(target).current_dir(base).status().unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_starts_on_a_hundred_and_twenty_eight_lazy_layers() {
    if !tests::possible("128 lazy layers") {
        return;
    }
    let mut node = Node::default();
    let layer = |n: usize| {
        let (own, content) = (format!("d/{n}"), n.to_string());
        tar(&[(own.as_str(), content.as_bytes()), ("shared", content.as_bytes())])
    };
    let image = Image::new((0..128).map(layer).collect());
    node.convert(&image.write(&node.path("image"), "deep.local/image:1"), &[]);
    node.start_daemon();
    node.start_snapshotter();
    let top = pull(&node, &image.chain_ids()).await;
    let mounts = prepare(&node, "default/2/c1", &top, &[]).await.unwrap();
    let target = node.new_dir("mnt");
    mount_shortened(&mounts, &node.path("sn"), &target);
    assert_eq!(fs::read_to_string(target.join("shared")).unwrap(), "127");
    assert_eq!(fs::read_dir(target.join("d")).unwrap().count(), 128);
    assert_eq!(fs::read_to_string(target.join("d/0")).unwrap(), "0");
    umount(&target);
}
