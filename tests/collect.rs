//! `lamina store rm`, `revoke` and `gc`: what nothing needs goes, and nothing else, whoever is at work meanwhile and whoever is
//! killed.

// Tests fail by panicking.
use containerd::snapshots::PrepareSnapshotRequest;
use containerd::snapshots::snapshots_client::SnapshotsClient;
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tests::image::{Image, layer_file, tar};
use tests::node::Node;
use tests::registry::layers;
use tests::s3::{S3, section};
use tests::tree::{files, noise};

/// Deletes without a grace, and without waiting for nodes: runs come one after the other here.
const GC: [&str; 7] = ["store", "gc", "--delete", "--grace", "0s", "--settle", "0s"];

/// The name of an image of a layer that many share and of one of its own.
fn name(n: u64) -> String {
    format!("gc.local/image{n}:1")
}

fn image(n: u64) -> Image {
    let (base, own) = (noise(1, 300_000), noise(100 + n, 200_000));
    Image::new(vec![tar(&[("base", &base)]), tar(&[("own", &own), ("n", n.to_string().as_bytes())])])
}

fn write(node: &Node, n: u64) -> String {
    image(n).write(&node.path(&format!("image{n}")), &name(n))
}

fn layers_in(node: &Node) -> Vec<String> {
    let listed = node.json(&["store", "ls", "--layers"]);
    listed["layers"].as_array().unwrap().iter().map(|l| l["layer"].as_str().unwrap().to_owned()).collect()
}

fn whole(node: &Node) {
    let report = node.json(&["store", "fsck", "--deep"]);
    assert_eq!(report["faults"], 0, "{report:#}");
}

/// From two images to one: what `gc` says before, and what is left after.
fn a_whole_cycle(node: &Node) {
    let (one, two) = (write(node, 1), write(node, 2));
    let (one, two) = (layers(&node.convert(&one, &[])), layers(&node.convert(&two, &[])));
    assert_eq!(one[0], two[0], "they share their lower layer");
    let tag = node.convert_dir(&node.new_dir("tools"), "toolkit/tools:1");
    let nothing = node.json(&["store", "gc"]);
    assert_eq!((&nothing["needed_layers"]["objects"], &nothing["images"]), (&4.into(), &2.into()), "{nothing:#}");
    assert_eq!(nothing["objects"], Value::Array(Vec::new()), "{nothing:#}");

    node.run(&["store", "rm", &name(1)]);
    let told = node.json(&["store", "gc"]);
    assert_eq!((&told["dry_run"], &told["deleted"]["objects"]), (&true.into(), &0.into()), "{told:#}");
    // The layer, the manifest, and as blobs the manifest and the config.
    assert_eq!(told["marked"]["objects"], 4, "{told:#}");
    let text = node.run(&["store", "gc"]);
    assert!(text.contains(&format!("layer:{}", one[1])) && text.contains("nothing was changed"), "{text}");

    // With the usual grace, nothing goes; without one, nothing goes that was not marked by an earlier run.
    assert_eq!(node.json(&["store", "gc", "--delete"])["marked"]["objects"], 4);
    assert_eq!(node.json(&["store", "gc", "--delete"])["waiting"]["objects"], 4);
    assert_eq!(layers_in(node).len(), 4);
    let done = node.json(&GC);
    assert_eq!((&done["deleted"]["objects"], &done["waiting"]["objects"]), (&4.into(), &0.into()), "{done:#}");
    // The chain, the diff and the digest reference of its own layer.
    assert_eq!(done["references"], 3, "{done:#}");
    let mut left = vec![two[0].clone(), two[1].clone(), tag];
    left.sort();
    let mut there = layers_in(node);
    there.retain(|layer| *layer != one[1]);
    there.sort();
    assert!(left.iter().all(|layer| there.contains(layer)) && there.len() == 3, "{there:?} {left:?}");
    whole(node);
    node.run(&["verify", &name(2)]);
    assert!(node.fail(1, &["inspect", &name(1)]).contains("no such image"));

    // As if it had never been there.
    let again = node.convert(&write(node, 1), &[]);
    assert_eq!(layers(&again), one);
    assert_eq!(
        (&again["images"][0]["layers"][0]["reused"], &again["images"][0]["layers"][1]["reused"]),
        (&true.into(), &false.into())
    );
    whole(node);
}

#[test]
fn of_two_images_one_is_removed_and_what_only_it_needed_goes() {
    let node = Node::default();
    a_whole_cycle(&node);
    nothing_is_left_of_collections(&node);
}

/// Half-written files are for `fsck --repair`, when they are a day old.
fn nothing_is_left_of_collections(node: &Node) {
    let left = files(&node.path("store"));
    let of_collections = |key: &&PathBuf| key.starts_with("tombstones") || key.starts_with("node");
    let half = |key: &PathBuf| key.file_name().unwrap().to_string_lossy().starts_with(".tmp-");
    let left: Vec<_> = left.keys().filter(of_collections).filter(|key| !half(key)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_same_in_a_bucket() {
    let Some(s3) = S3::start("collecting in a bucket") else { return };
    let node = Node::default();
    node.use_store("s3://bucket/lamina", &section(s3.address));
    a_whole_cycle(&node);
}

#[test]
fn names_are_removed_together_or_not_at_all_and_only_names() {
    let node = Node::default();
    node.convert(&write(&node, 1), &[]);
    let before = files(&node.path("store"));
    assert!(node.fail(1, &["store", "rm", &name(1), &name(7)]).contains("nothing was removed"));
    let layer = &layers_in(&node)[0];
    assert!(node.fail(2, &["store", "rm", layer]).contains("gc"));
    assert!(files(&node.path("store")) == before);
    let long = node.json(&["store", "ls", "--long", "image:gc.local/"]);
    assert_eq!(long["images"][0]["platforms"][0]["layers"], 2, "{long:#}");
    assert_eq!(node.json(&["store", "ls", "tag:"])["images"], Value::Array(Vec::new()));
    assert_eq!(node.json(&["store", "rm", &name(1)])["removed"][0], format!("image:{}", name(1)));
    assert!(node.fail(1, &["store", "rm", &name(1)]).contains("no such name"));
    // Where nothing is mounted, nothing is collected.
    assert!(node.fail(1, &["--store", "file:///not/there", "store", "gc", "--delete"]).contains("there is no store"));
    assert!(!Path::new("/not").exists());
}

#[test]
fn a_revoked_layer_gets_no_new_mount_and_says_what_has_it() {
    let node = Node::default();
    let ids = layers(&node.convert(&write(&node, 1), &[]));
    let told = node.json(&["store", "revoke", &ids[1][..16], "--reason", "a key in it"]);
    assert_eq!((&told["revoked"], &told["names"][0]), (&ids[1].clone().into(), &format!("image:{}", name(1)).into()));
    assert!(node.fail(1, &["inspect", &name(1)]).contains("revoked"));
    assert!(node.fail(2, &["store", "revoke", &name(1)]).contains("is no layer"));
}

#[test]
fn what_is_revoked_is_listed_refused_to_conversions_and_can_be_taken_back() {
    let node = Node::default();
    let source = write(&node, 1);
    let ids = layers(&node.convert(&source, &[]));
    node.run(&["store", "revoke", &ids[1], "--reason", "a key \u{1b} in it"]);
    let listed = node.json(&["store", "ls", "--revoked"]);
    assert_eq!(
        (&listed["revoked"][0]["layer"], listed["revoked"].as_array().unwrap().len()),
        (&ids[1].clone().into(), 1)
    );
    assert!(listed["revoked"][0]["time"].as_u64().unwrap() > 0);
    assert_eq!(node.run(&["store", "ls", "--revoked"]), format!("layer:{}  a key \\u{{1b}} in it\n", ids[1]));
    // A conversion comes to the same layer, whatever there is to be reused; so does that of the image under another name.
    let before = files(&node.path("store"));
    for options in [&[][..], &["--again"], &["--name", "gc.local/other:1"]] {
        let said = node.fail(3, &[&["convert", &source], options].concat());
        assert!(said.contains(&format!("store unrevoke {}", ids[1])) && said.contains("ls --revoked"), "{said}");
    }
    assert!(files(&node.path("store")) == before, "nothing was written, and no lease is left");
    // Another image that only shares the layer below is made.
    node.convert(&write(&node, 2), &[]);

    assert!(node.fail(1, &["store", "unrevoke", &ids[0]]).contains("not revoked"));
    assert!(node.fail(2, &["store", "unrevoke", &name(1)]).contains("is no layer"));
    assert_eq!(node.json(&["store", "unrevoke", &ids[1][..12]])["unrevoked"], ids[1].as_str());
    assert!(node.fail(1, &["store", "unrevoke", &ids[1]]).contains("not revoked"));
    assert_eq!(node.run(&["store", "ls", "--revoked"]), "");
    node.run(&["inspect", &name(1)]);
    assert_eq!(layers(&node.convert(&source, &[])), ids);
    // A directory's layer, and one that several became.
    let tools = node.new_dir("tools");
    let tag = node.convert_dir(&tools, "toolkit/tools:1");
    node.run(&["store", "revoke", &tag]);
    let convert = ["convert", &format!("dir:{}", tools.display()), "--tag", "toolkit/tools:2"];
    assert!(node.fail(3, &convert).contains(&tag));
    let collapsed = node.json(&["convert", &source, "--collapse", "1GiB"]);
    let one = collapsed["images"][0]["collapsed"]["stack"][0].as_str().unwrap();
    node.run(&["store", "revoke", one]);
    assert!(node.fail(3, &["convert", &source, "--collapse", "1GiB"]).contains(one));
    node.run(&["convert", &source]);
}

#[test]
fn what_collectors_cannot_read_keeps_them_from_deleting_anything() {
    let node = Node::default();
    node.convert(&write(&node, 1), &[]);
    node.convert(&write(&node, 2), &[]);
    node.run(&["store", "rm", &name(1)]);
    node.run(&GC);
    let lease = node.path("store/node/leases/somebody/used");
    fs::create_dir_all(lease.parent().unwrap()).unwrap();
    fs::write(&lease, "{").unwrap();
    assert!(node.fail(3, &GC).contains("node/leases/somebody/used"));
    assert!(node.fail(1, &["store", "fsck"]).contains("1 fault"));
    fs::remove_file(&lease).unwrap();
    let series = node.path("store/images/gc.local/image2/_/1/0000000001");
    let kept = fs::read(&series).unwrap();
    fs::write(&series, "{").unwrap();
    assert!(node.fail(3, &GC).contains("images/gc.local/image2"));
    fs::write(&series, kept).unwrap();
    // Any node can write there, and more than memory holds.
    fs::File::create(&lease).unwrap().set_len(1 << 40).unwrap();
    assert!(node.fail(3, &GC).contains("node/leases/somebody/used"));
    fs::remove_file(&lease).unwrap();
    assert_eq!(layers_in(&node).len(), 3);
    node.run(&GC);
    assert_eq!(layers_in(&node).len(), 2);
}

#[test]
fn a_conversion_does_not_wait_for_a_collector_that_was_killed_on_its_machine() {
    let node = Node::default();
    let source = write(&node, 1);
    let ids = layers(&node.convert(&source, &[]));
    let mut process = Command::new("true").spawn().unwrap();
    process.wait().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let place = format!("{} {}", boot.trim(), fs::read_link("/proc/self/ns/pid").unwrap().display());
    let keys: Vec<String> = ids.iter().map(|id| format!("layers/{}/{id}", &id[..2])).collect();
    let sweep = serde_json::json!({
        "version": 1, "host": "here", "process": {"place": place, "pid": process.id()}, "keys": keys,
    });
    let sweeps = node.path("store/tombstones/sweeps");
    fs::create_dir_all(&sweeps).unwrap();
    fs::write(sweeps.join("killed"), sweep.to_string()).unwrap();
    // Otherwise this takes a quarter of an hour.
    node.convert(&source, &[]);
    node.run(&["verify", &name(1)]);
}

#[test]
fn what_a_clock_that_was_wrong_has_dated_ahead_is_neither_kept_for_ever_nor_let_go_at_once() {
    let node = Node::default();
    node.convert(&write(&node, 1), &[]);
    node.convert(&write(&node, 2), &[]);
    node.run(&["store", "rm", &name(1)]);
    let own = &layers_in(&node);
    node.run(&GC);
    let ahead = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() + Duration::from_secs(365 * 24 * 3600)).unwrap();
    };
    let marks = || files(&node.path("store/tombstones")).into_keys().map(|key| node.path("store/tombstones").join(key));
    marks().for_each(|mark| ahead(&mark));
    node.run(&GC);
    assert_eq!(&layers_in(&node), own, "its grace begins again");
    let now = std::time::SystemTime::now() + Duration::from_secs(60);
    assert!(marks().all(|mark| fs::metadata(mark).unwrap().modified().unwrap() < now));
    node.run(&GC);
    assert_eq!(layers_in(&node).len(), own.len() - 1);
    // A lease of a node that is gone, from the future and from long ago: it holds what nothing else needs, for its time.
    let last = layers_in(&node);
    let keys: Vec<String> = last.iter().map(|id| format!("layers/{}/{id}", &id[..2])).collect();
    node.run(&["store", "rm", &name(2)]);
    let lease = node.path("store/node/leases/somebody/used");
    fs::create_dir_all(lease.parent().unwrap()).unwrap();
    fs::write(&lease, serde_json::json!({"version": 1, "ttl": 2, "keys": keys}).to_string()).unwrap();
    ahead(&lease);
    (0..2).for_each(|_| drop(node.run(&GC)));
    assert_eq!(layers_in(&node), last);
    node.wait("its end", |node| {
        node.run(&GC);
        layers_in(node).is_empty()
    });
    node.run(&GC);
    assert!(!lease.exists() && files(&node.path("store/tombstones")).is_empty());
}

#[test]
fn what_a_manifest_names_goes_with_it_and_not_before_also_where_a_collector_was_killed_while_it_marked() {
    let node = Node::default();
    node.convert(&write(&node, 1), &[]);
    node.run(&["store", "rm", &name(1)]);
    node.run(&GC);
    // As if it had been killed before it came to the manifest.
    fs::remove_dir_all(node.path("store/tombstones/manifests")).unwrap();
    node.run(&GC);
    whole(&node);
    assert_eq!(files(&node.path("store/blobs")).len(), 2);
    node.run(&GC);
    whole(&node);
    assert!(files(&node.path("store/blobs")).is_empty() && files(&node.path("store/manifests")).is_empty());
}

#[test]
fn a_layer_that_a_node_uses_stays_until_it_does_not() {
    if !tests::possible("a layer in use") {
        return;
    }
    let mut node = Node::default();
    node.reconfigure("added_latency = \"0s\"", "lease = \"4s\"");
    let ids = layers(&node.convert(&write(&node, 1), &[]));
    node.start_daemon();
    let target = node.new_dir("mnt");
    node.run(&["mount", &name(1), target.to_str().unwrap()]);
    node.wait("a lease of what is mounted", |node| {
        let leases = files(&node.path("store/node/leases"));
        leases.values().any(|body| ids.iter().all(|id| String::from_utf8_lossy(body).contains(id)))
    });
    node.run(&["store", "rm", &name(1)]);
    for _ in 0..3 {
        node.run(&GC);
    }
    assert_eq!(layers_in(&node).len(), 2, "both layers are held");
    assert!(fs::read(target.join("own")).unwrap() == noise(101, 200_000), "what was not read yet is there");
    node.run(&["umount", target.to_str().unwrap()]);
    // What was looked up is held for a while; the lease of a node that has gone ends.
    assert!(node.stop_daemon());
    node.wait("the end of the lease", |node| {
        node.run(&GC);
        layers_in(node).is_empty()
    });
    assert_eq!(files(&node.path("store/node/leases")).len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_pulled_and_never_started_stays_on_its_node() {
    if !tests::possible("a pulled image") {
        return;
    }
    let mut node = Node::default();
    let ids = layers(&node.convert(&write(&node, 1), &[]));
    node.start_daemon();
    node.start_snapshotter();
    let mut client = SnapshotsClient::new(containerd::channel(&node.path("sn.sock")));
    let mut parent = String::new();
    for (n, chain) in image(1).chain_ids().into_iter().enumerate() {
        let labels = HashMap::from([("containerd.io/snapshot.ref".to_owned(), chain.clone())]);
        let key = format!("default/{n}/extract-{n} x");
        let request = PrepareSnapshotRequest { snapshotter: "lamina".into(), key, parent: parent.clone(), labels };
        assert_eq!(client.prepare(request).await.unwrap_err().code(), tonic::Code::AlreadyExists);
        parent = chain;
    }
    let held = |node: &Node| {
        let leases = files(&node.path("store/node/leases"));
        let of_snapshots = leases.iter().find(|(name, _)| name.ends_with("snapshots"));
        of_snapshots.is_some_and(|(_, body)| ids.iter().all(|id| String::from_utf8_lossy(body).contains(id)))
    };
    node.wait("a lease of what snapshots name", held);
    node.run(&["store", "rm", &name(1)]);
    // Its own lease, not that of what was looked up a moment ago.
    for (name, _) in files(&node.path("store/node/leases")) {
        if name.ends_with("used") {
            fs::remove_file(node.path("store/node/leases").join(name)).unwrap();
        }
    }
    node.run(&GC);
    node.run(&GC);
    let labels = HashMap::new();
    let request = PrepareSnapshotRequest { snapshotter: "lamina".into(), key: "default/9/c".into(), parent, labels };
    assert_eq!(client.prepare(request).await.unwrap().into_inner().mounts[0].r#type, "overlay");
    assert!(ids.iter().all(|id| layer_file(&node.path("store"), id).exists()));
}

#[test]
fn a_node_that_may_not_write_the_store_says_so_once() {
    if !tests::possible("a store that cannot be written") {
        return;
    }
    let mut node = Node::default();
    node.convert(&write(&node, 1), &[]);
    let web = tests::web::serve(&node.path("store"), true);
    node.use_store(&format!("http://{}", web.address), "");
    node.start_daemon();
    for n in 0..2 {
        let target = node.new_dir(&format!("mnt{n}"));
        node.run(&["mount", &name(1), target.to_str().unwrap()]);
    }
    node.wait("a word about it", |node| node.log("laminad").contains("node/leases/"));
    assert_eq!(node.log("laminad").matches("may not write").count(), 1);
    for n in 0..2 {
        node.run(&["umount", node.path(&format!("mnt{n}")).to_str().unwrap()]);
    }
}

/// Converts and removes the same images over and over, in several processes, while collectors run without any grace.
fn beside_converters(node: &Node) {
    const IMAGES: u64 = 4;
    let sources: Vec<String> = (0..IMAGES).map(|n| write(node, n)).collect();
    node.run(&["convert", &sources[0]]);
    let ended = std::sync::atomic::AtomicU64::new(0);
    let (ended, mut deleted) = (&ended, 0);
    std::thread::scope(|scope| {
        let converters: Vec<_> = sources
            .iter()
            .enumerate()
            .map(|(n, source)| {
                scope.spawn(move || {
                    for round in 0..6 {
                        let mut command = node.command(&["convert", "--json", source]);
                        // Of its own, so that layers are not handed from one to the other outside the store.
                        let output = command.env("TMPDIR", node.new_dir(&format!("work{n}"))).output().unwrap();
                        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                        node.run(&["verify", &name(n as u64)]);
                        node.run(&["store", "rm", &name(n as u64)]);
                        // In some rounds what is not named has time to be marked and deleted, in others half of that, or none.
                        let until = ended.load(std::sync::atomic::Ordering::Relaxed) + (n as u64 + round) % 4;
                        let since = std::time::Instant::now();
                        while ended.load(std::sync::atomic::Ordering::Relaxed) < until && since.elapsed().as_secs() < 60
                        {
                            std::thread::sleep(std::time::Duration::from_millis(10));
                        }
                    }
                    node.run(&["convert", source]);
                })
            })
            .collect();
        while converters.iter().any(|converter| !converter.is_finished()) {
            deleted += node.json(&GC)["deleted"]["objects"].as_u64().unwrap();
            ended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let runs = ended.load(std::sync::atomic::Ordering::Relaxed);
    println!("{runs} collections deleted {deleted} objects beside {} conversions", 7 * IMAGES);
    assert!(deleted > 0, "nothing was ever deleted");
    for n in 0..IMAGES {
        node.run(&["verify", &name(n)]);
    }
    whole(node);
    node.run(&GC);
    node.run(&GC);
    assert_eq!(layers_in(node).len() as u64, IMAGES + 1);
    for n in 0..IMAGES {
        node.run(&["verify", &sources[n as usize]]);
    }
}

#[test]
fn converters_and_a_collector_beside_each_other_lose_nothing() {
    beside_converters(&Node::default());
}

#[test]
fn converters_and_a_collector_beside_each_other_in_a_bucket_lose_nothing() {
    let Some(s3) = S3::start("collecting beside converters in a bucket") else { return };
    let node = Node::default();
    node.use_store("s3://bucket/lamina", &section(s3.address));
    beside_converters(&node);
}

#[test]
fn a_collector_that_is_killed_at_any_moment_is_made_up_for_by_the_next() {
    let node = Node::default();
    node.convert(&write(&node, 0), &[]);
    let mut killed = 0;
    for moment in 0..25u64 {
        let source = write(&node, 1 + moment % 3);
        node.run(&["convert", &source]);
        node.run(&["store", "rm", &name(1 + moment % 3)]);
        node.run(&GC);
        let mut collector = node.command(&GC).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 * moment));
        collector.kill().unwrap();
        killed += u32::from(collector.wait().unwrap().code().is_none());
        whole(&node);
        node.run(&["verify", &name(0)]);
        // The next run takes over what is left of a process of this machine at once.
        node.run(&GC);
        node.run(&GC);
        assert_eq!(layers_in(&node).len(), 2, "killed after {} ms", 2 * moment);
    }
    println!("{killed} of 25 were killed before they ended");
    assert!(killed > 0);
    nothing_is_left_of_collections(&node);
}

#[test]
fn a_collection_that_is_told_to_end_takes_its_word_back_though_nobody_reads_its_last_one() {
    let node = Node::default();
    let dir = node.new_dir("dir");
    std::fs::write(dir.join("file"), "content").unwrap();
    node.convert_dir(&dir, "toolkit/tools:1");
    node.run(&["store", "rm", "tag:toolkit/tools:1"]);
    node.run(&["store", "gc", "--delete", "--grace", "0s", "--settle", "0s"]);
    let layers = files(&node.path("store/layers"));
    assert_eq!(layers.len(), 1);
    let sweeps = |node: &Node| files(&node.path("store/tombstones/sweeps"));

    let mut command = node.command(&["store", "gc", "--delete", "--grace", "0s", "--settle", "600s"]);
    let mut collector = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(collector.stderr.take());
    let says_what_goes = |node: &Node| sweeps(node).values().any(|word| word.windows(7).any(|part| part == b"layers/"));
    node.wait("the collector's word", says_what_goes);
    rustix::process::kill_process(rustix::process::Pid::from_child(&collector), rustix::process::Signal::TERM).unwrap();
    assert_eq!(collector.wait().unwrap().code(), Some(128 + 15));
    assert!(sweeps(&node).is_empty(), "others would wait for it");
    assert!(files(&node.path("store/layers")) == layers, "nothing was deleted");
    node.run(&["store", "gc", "--delete", "--grace", "0s", "--settle", "0s"]);
    assert!(files(&node.path("store/layers")).is_empty());
}
