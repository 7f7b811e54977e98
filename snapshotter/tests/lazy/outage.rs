//! laminad away, slow, failing or started again; the node started again.

use crate::node::{Node, chain, code, lowers};
use std::time::Duration;
use tonic::Code::{AlreadyExists, NotFound, Ok as Fine, Unavailable};

#[tokio::test]
async fn without_laminad_images_are_unpacked() {
    let Some(mut node) = Node::start().await else { return };
    node.stack(&chain("c1"), &["a"]);
    node.stop_daemon();
    assert_eq!(code(node.unpack(&chain("c1"), "").await), Fine);
    // It is asked again as soon as it is there.
    node.start_daemon();
    node.stack(&chain("c2"), &["a", "b"]);
    assert_eq!(code(node.unpack(&chain("c2"), "").await), AlreadyExists);
}

#[tokio::test]
async fn a_no_is_remembered_and_so_is_silence() {
    let Some(mut node) = Node::start().await else { return };
    for key in ["k1", "k2", "k3"] {
        let none = chain("none");
        assert_eq!(code(node.prepare(key, "", &[(crate::node::TARGET, &none)]).await), Fine);
    }
    assert_eq!(node.fake.lock().resolved.len(), 1);
    node.stop_snapshotter().await;
    node.resolve_deadline = Duration::from_millis(500);
    node.start_snapshotter().await;
    node.fake.lock().delay = Duration::from_secs(3600);
    assert_eq!(code(node.unpack(&chain("slow"), "").await), Fine);
    assert_eq!(code(node.unpack(&chain("another"), "").await), Fine);
    assert_eq!(node.fake.lock().resolved.len(), 2, "nothing is asked for a while after no answer came");
}

#[tokio::test]
async fn a_layer_that_cannot_be_mounted_leaves_nothing_half_done() {
    let Some(node) = Node::start().await else { return };
    let one = chain("c1");
    node.stack(&one, &["a", "b"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    node.fake.lock().broken = true;
    let error = node.prepare("c", &one, &[]).await.unwrap_err();
    assert_eq!(error.code(), Unavailable);
    assert!(error.message().contains("on fire"), "{}", error.message());
    assert_eq!(code(node.stat("c").await), NotFound);
    node.fake.lock().broken = false;
    let mount = node.prepare("c", &one, &[]).await.unwrap();
    assert_eq!(node.read(&mount, "top").as_deref(), Some("b"));
}

#[tokio::test]
async fn mounts_lost_with_the_node_are_made_again() {
    let Some(mut node) = Node::start().await else { return };
    let one = chain("c1");
    node.stack(&one, &["a", "b"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    let mount = node.prepare("c", &one, &[]).await.unwrap();
    node.stop_snapshotter().await;
    node.fake.unmount_all();
    node.start_snapshotter().await;
    assert_eq!(node.mounts("c").await.unwrap(), mount);
    assert_eq!(node.read(&mount, "a").as_deref(), Some("a"));
    // Under a running snapshotter too.
    node.fake.unmount_all();
    assert_eq!(lowers(&node.prepare("d", &one, &[]).await.unwrap()), 2);
    assert_eq!(node.read(&mount, "b").as_deref(), Some("b"));
}

#[tokio::test]
async fn a_new_laminad_is_asked_again_and_an_absent_one_is_not_needed_for_what_is_mounted() {
    let Some(mut node) = Node::start().await else { return };
    let one = chain("c1");
    node.stack(&one, &["a"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    node.prepare("c", &one, &[]).await.unwrap();
    node.start_daemon();
    node.prepare("d", &one, &[]).await.unwrap();
    assert_eq!(node.fake.lock().attached.len(), 2, "its mounts may be dead: it says");
    node.stop_snapshotter().await;
    node.start_snapshotter().await;
    node.stop_daemon();
    assert_eq!(code(node.prepare("e", &one, &[]).await), Fine);
    node.fake.unmount_all();
    let failed = node.prepare("f", &one, &[]).await.unwrap_err();
    assert_eq!(failed.code(), Unavailable, "{failed}");
    // All that ctr and the kubelet's events show.
    let said = failed.message();
    assert!(said.contains("no laminad answers at /") && said.contains("systemctl start laminad"), "{said}");
    // One that comes back soon is waited for.
    let comes_back = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        node.fake.serve(&node.dir.path().join("laminad.sock"))
    };
    let (prepared, _serving) = tokio::join!(node.prepare("g", &one, &[]), comes_back);
    prepared.unwrap();
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_when_there_is_room_again_all_works() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let Some(mut node) = Node::start().await else { return };
    node.stop_snapshotter().await;
    let root = node.dir.path().join("root");
    mount("tmpfs", &root, "tmpfs", MountFlags::empty(), Some(c"size=8m")).unwrap();
    node.start_snapshotter().await;
    node.prepare("a", "", &[]).await.unwrap();
    node.commit("kept", "a").await.unwrap();
    let ballast = root.join("ballast");
    let filled = std::fs::write(&ballast, vec![1; 16 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Its pages are used up at some time, then changes fail; what is there can be read all the while.
    let mut failed = None;
    for n in 0..20_000 {
        if let Err(status) =
            node.prepare(&format!("k{n}"), "kept", &[("containerd.io/snapshot/x", &"x".repeat(3000))]).await
        {
            failed = Some(status);
            break;
        }
    }
    let failed = failed.expect("the disk is full");
    assert_eq!(failed.code(), tonic::Code::Internal, "{failed}");
    assert_eq!(code(node.stat("kept").await), Fine);
    std::fs::remove_file(&ballast).unwrap();
    node.prepare("after", "kept", &[]).await.unwrap();
    node.stop_snapshotter().await;
    node.start_snapshotter().await;
    assert_eq!(code(node.stat("kept").await), Fine);
    assert_eq!(code(node.mounts("after").await), Fine);
    node.stop_snapshotter().await;
    unmount(&root, UnmountFlags::DETACH).unwrap();
}
