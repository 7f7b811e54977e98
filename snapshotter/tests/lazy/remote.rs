//! Chains that need no unpack.

use crate::node::{Mounted, Node, TARGET, chain, code, lowers};
use containerd::snapshots::Kind;
use tonic::Code::{AlreadyExists, FailedPrecondition, NotFound, Ok as Fine};

#[tokio::test]
async fn an_image_in_the_store_is_recorded_at_once_and_mounted_when_a_container_needs_it() {
    let Some(node) = Node::start().await else { return };
    let (one, two) = (chain("c1"), chain("c2"));
    node.stack(&one, &["a"]);
    node.stack(&two, &["a", "b"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    assert_eq!(code(node.unpack(&two, &one).await), AlreadyExists);
    assert!(node.fake.lock().attached.is_empty(), "nothing is mounted yet");
    let filter = format!("labels.\"containerd.io/snapshot.ref\"=={two},parent==\"{one}\"");
    let listed = node.list(&filter).await;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].kind), (two.as_str(), Kind::Committed as i32));
    assert_eq!(code(node.stat(&format!("default/1/extract-1 {two}")).await), NotFound);

    let mount = node.prepare("c", &two, &[]).await.unwrap();
    assert_eq!(lowers(&mount), 2);
    for option in ["xino=on", "redirect_dir=nofollow", "metacopy=off"] {
        assert!(mount.options.iter().any(|given| given == option), "{option}");
    }
    assert_eq!(node.read(&mount, "top").as_deref(), Some("b"));
    assert_eq!(node.read(&mount, "a").as_deref(), Some("a"));
    assert_eq!(node.fake.lock().attached.len(), 2);
    assert_eq!(node.fake.lock().started.len(), 1, "both for one start");
    node.prepare("d", &two, &[]).await.unwrap();
    assert_eq!(node.fake.lock().attached.len(), 2, "what is mounted is shared");
    let view = node.view("v", &one).await.unwrap();
    assert_eq!((view.r#type.as_str(), &view.options), ("bind", &vec!["ro".to_owned(), "rbind".to_owned()]));
    assert_eq!(node.read(&view, "b"), None);
}

#[tokio::test]
async fn when_nothing_names_a_layer_any_more_it_is_unmounted() {
    let Some(node) = Node::start().await else { return };
    let (one, two) = (chain("c1"), chain("c2"));
    node.stack(&one, &["a"]);
    node.stack(&two, &["a", "b"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    assert_eq!(code(node.unpack(&two, &one).await), AlreadyExists);
    node.prepare("c", &two, &[]).await.unwrap();
    assert_eq!(code(node.remove(&two).await), FailedPrecondition);
    node.remove("c").await.unwrap();
    node.remove(&two).await.unwrap();
    node.cleanup().await;
    assert_eq!(node.fake.lock().mounted.len(), 1, "the first chain still names its layer");
    node.remove(&one).await.unwrap();
    node.cleanup().await;
    assert!(node.fake.lock().mounted.is_empty());
    assert!(node.dirs().is_empty());
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists, "it can come again");
}

#[tokio::test]
async fn one_chain_with_two_parents_is_two_snapshots() {
    let Some(node) = Node::start().await else { return };
    let (one, two) = (chain("c1"), chain("c2"));
    node.stack(&two, &["a", "b"]);
    // The lower layer was unpacked in one namespace, and found in the store for another.
    let plain = node.prepare("one/1/extract-1 x", "", &[]).await.unwrap();
    std::fs::write(std::path::Path::new(&plain.source).join("plain"), "plain").unwrap();
    node.commit("one/2/c1", "one/1/extract-1 x").await.unwrap();
    node.stack(&one, &["a"]);
    assert_eq!(code(node.unpack(&two, "one/2/c1").await), AlreadyExists);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    assert_eq!(code(node.unpack(&two, &one).await), AlreadyExists);
    assert_eq!(code(node.unpack(&two, &one).await), AlreadyExists);
    let listed = node.list(&format!("labels.\"{TARGET}\"=={two}")).await;
    let found: Vec<_> = listed.iter().map(|info| (info.name.clone(), info.parent.as_str())).collect();
    assert_eq!(found, [(two.clone(), "one/2/c1"), (format!("{two}@2"), one.as_str())]);
    // A chain names its whole stack: what was unpacked below it is not looked at.
    let mount = node.prepare("c", &two, &[]).await.unwrap();
    assert_eq!((lowers(&mount), node.read(&mount, "plain")), (2, None));
}

#[tokio::test]
async fn plain_snapshots_stand_on_remote_ones() {
    let Some(node) = Node::start().await else { return };
    let one = chain("c1");
    node.stack(&one, &["a"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    let mount = node.unpack(&chain("not there"), &one).await.unwrap();
    {
        let mounted = Mounted::new(&mount, &node.dir.path().join("mnt"));
        std::fs::write(mounted.path().join("top"), "unpacked").unwrap();
        std::fs::remove_file(mounted.path().join("a")).unwrap();
    }
    let key = format!("default/1/extract-1 {}", chain("not there"));
    node.commit("default/2/upper", &key).await.unwrap();
    let mount = node.prepare("c", "default/2/upper", &[]).await.unwrap();
    assert_eq!(lowers(&mount), 2);
    assert_eq!(node.read(&mount, "top").as_deref(), Some("unpacked"));
    assert_eq!(node.read(&mount, "a"), None);
}

#[tokio::test]
async fn an_unpack_on_what_is_not_there_or_not_committed_is_refused() {
    let Some(node) = Node::start().await else { return };
    node.stack(&chain("c1"), &["a"]);
    assert_eq!(code(node.unpack(&chain("c1"), "nowhere").await), NotFound);
    node.prepare("active", "", &[]).await.unwrap();
    assert_eq!(code(node.unpack(&chain("c1"), "active").await), tonic::Code::InvalidArgument);
    assert_eq!(code(node.prepare("active", "", &[]).await), AlreadyExists);
}

#[tokio::test]
async fn a_reference_that_is_no_chain_id_is_never_asked_for() {
    let Some(node) = Node::start().await else { return };
    node.stack("tag:base/x:1", &["a"]);
    assert_eq!(code(node.prepare("k", "", &[(TARGET, "tag:base/x:1")]).await), Fine);
    assert!(node.fake.lock().resolved.is_empty());
}

#[tokio::test]
async fn containers_that_start_together_mount_each_layer_once() {
    let Some(node) = Node::start().await else { return };
    let one = chain("c1");
    node.stack(&one, &["a", "b", "c"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    node.fake.lock().delay = std::time::Duration::from_millis(100);
    let keys: Vec<_> = (0..16).map(|n| format!("c{n}")).collect();
    let mut starting: Vec<_> = keys.iter().map(|key| Box::pin(node.prepare(key, &one, &[]))).collect();
    // Polled together, in one task.
    std::future::poll_fn(|context| {
        starting.retain_mut(|start| match start.as_mut().poll(context) {
            std::task::Poll::Ready(outcome) => {
                outcome.unwrap();
                false
            }
            std::task::Poll::Pending => true,
        });
        if starting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(node.fake.lock().attached.len(), 3);
}
