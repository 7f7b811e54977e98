//! Ordinary snapshots, where containerd's conformance suite does not look.

use crate::node::{Node, chain, code, lowers};
use containerd::snapshots::{ListSnapshotsRequest, UsageRequest};
use std::path::Path;
use std::time::Duration;
use tonic::Code::{AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Ok as Fine};

#[tokio::test]
async fn every_refusal_has_the_code_that_containerd_decides_by() {
    let Some(node) = Node::start().await else { return };
    node.prepare("a", "", &[]).await.unwrap();
    node.commit("base", "a").await.unwrap();
    node.prepare("a", "base", &[]).await.unwrap();
    node.view("v", "base").await.unwrap();
    assert_eq!(code(node.prepare("x", "none", &[]).await), NotFound);
    assert_eq!(code(node.prepare("x", "a", &[]).await), InvalidArgument);
    assert_eq!(code(node.view("a", "base").await), AlreadyExists);
    assert_eq!(code(node.prepare("base", "base", &[]).await), AlreadyExists);
    assert_eq!(code(node.mounts("none").await), NotFound);
    assert_eq!(code(node.mounts("base").await), FailedPrecondition);
    assert_eq!(code(node.commit("base", "a").await), AlreadyExists);
    assert_eq!(code(node.commit("x", "none").await), NotFound);
    assert_eq!(code(node.commit("x", "v").await), FailedPrecondition);
    assert_eq!(code(node.commit("x", "base").await), FailedPrecondition);
    assert_eq!(code(node.remove("none").await), NotFound);
    assert_eq!(code(node.remove("base").await), FailedPrecondition);
    assert_eq!(code(node.stat("none").await), NotFound);
    let bad = ListSnapshotsRequest { filters: vec!["name=x".into()], ..Default::default() };
    assert_eq!(code(node.client().list(bad).await), InvalidArgument);
    assert_eq!(code(node.client().usage(UsageRequest { key: "none".into(), ..Default::default() }).await), NotFound);
}

#[tokio::test]
async fn a_commit_can_give_a_parent_to_what_had_none() {
    let Some(node) = Node::start().await else { return };
    for name in ["base", "other"] {
        node.prepare("k", "", &[]).await.unwrap();
        node.commit(name, "k").await.unwrap();
    }
    node.prepare("k", "", &[]).await.unwrap();
    assert_eq!(code(node.commit_on("x", "k", "none").await), NotFound);
    assert_eq!(code(node.commit_on("x", "k", "k").await), FailedPrecondition);
    assert_eq!(code(node.commit_on("x", "k", "base").await), Fine);
    assert_eq!(node.stat("x").await.unwrap().parent, "base");
    assert_eq!(code(node.remove("base").await), FailedPrecondition);
    let mount = node.prepare("k", "x", &[]).await.unwrap();
    assert_eq!(lowers(&mount), 2);
    assert_eq!(code(node.commit_on("y", "k", "other").await), InvalidArgument);
    assert_eq!(code(node.commit_on("y", "k", "x").await), Fine);
}

#[tokio::test]
async fn usage_is_what_the_snapshot_itself_holds() {
    let Some(node) = Node::start().await else { return };
    let usage = async |key: &str| {
        let request = UsageRequest { key: key.into(), ..Default::default() };
        node.client().usage(request).await.unwrap().into_inner()
    };
    let mount = node.prepare("k", "", &[]).await.unwrap();
    std::fs::write(Path::new(&mount.source).join("file"), vec![1; 100_000]).unwrap();
    let active = usage("k").await;
    assert!(active.size >= 100_000 && active.inodes == 2, "{active:?}");
    node.commit("base", "k").await.unwrap();
    assert_eq!(usage("base").await, active);
    node.prepare("k", "base", &[]).await.unwrap();
    assert_eq!(usage("k").await.inodes, 1);
}

#[tokio::test]
async fn what_a_client_began_is_finished_when_the_client_goes() {
    let Some(node) = Node::start().await else { return };
    let one = chain("c1");
    node.stack(&one, &["a"]);
    assert_eq!(code(node.unpack(&one, "").await), AlreadyExists);
    node.fake.lock().delay = Duration::from_secs(3600);
    let begun = async {
        while node.fake.lock().attached.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = node.prepare("c", &one, &[]) => panic!("it was to take longer"),
        () = begun => {}
    }
    node.fake.lock().delay = Duration::ZERO;
    while code(node.stat("c").await) == NotFound {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(code(node.mounts("c").await), Fine);
}
