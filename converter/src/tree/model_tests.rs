//! Random layers against the model, the plain reading of the specification: both see the same entries, and must show the same
//! tree or both refuse.

use super::tests::upper;
use super::*;
use crate::compare::shown;
use crate::model::Model;
use crate::stored::StoredContents;
use crate::tar::Reader;
use std::sync::LazyLock;
use tokio::runtime::Runtime;

/// The layer as a tar; the texts are those of [`upper`].
pub(crate) fn tar(entries: &[String]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for text in entries {
        let (text, uid) = text.split_once(':').unwrap_or((text, "0"));
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o700);
        header.set_uid(uid.parse().unwrap());
        header.set_gid(0);
        header.set_mtime(9);
        header.set_size(0);
        let (name, target, kind) = if let Some((name, target)) = text.split_once(" -> ") {
            (name, target, tar::EntryType::Symlink)
        } else if let Some((name, target)) = text.split_once(" = ") {
            (name, target, tar::EntryType::Link)
        } else if let Some(name) = text.strip_prefix('!') {
            (name, "", tar::EntryType::Char)
        } else {
            let kind = if text.ends_with('/') { tar::EntryType::Directory } else { tar::EntryType::Regular };
            (text, "", kind)
        };
        header.set_entry_type(kind);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, std::io::empty()).unwrap();
    }
    builder.into_inner().unwrap()
}

pub(super) fn apply(model: &mut Model, layer: &[String]) -> crate::Result<()> {
    model.apply_reader(&mut Reader::new(&tar(layer)[..]))
}

/// How the tree of the converter differs from the model.
pub(super) fn differences(merged: &Merged, model: &Model) -> Vec<String> {
    // All files are empty: nothing is read.
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    let tree = shown(merged, &mut StoredContents::new(&[], RUNTIME.handle())).unwrap();
    let mut found = Vec::new();
    tree.compare(model, ["tree", "model"], &mut |path, what| {
        found.push(format!("{}: {what}", String::from_utf8_lossy(path)));
    });
    found
}

pub(super) fn random_layer(random: &mut impl FnMut(usize) -> usize) -> Vec<String> {
    let paths = ["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "b/a/b", "a/b/a/b"];
    let entry = |random: &mut dyn FnMut(usize) -> usize| {
        let path = paths[random(paths.len())];
        let (directory, name) = path.rsplit_once('/').map_or((String::new(), path), |(d, n)| (format!("{d}/"), n));
        match random(12) {
            0 | 1 => format!("{directory}.wh.{name}"),
            2 if random(3) > 0 || directory.is_empty() => format!("{path}/.wh..wh..opq"),
            2 => format!("{directory}.wh..wh..opq"),
            3..=5 => format!("{path}/:{}", random(5) + 1),
            6 => format!("{path} = {}", paths[random(paths.len())]),
            // Nothing below it: where links lead is told in `symlink_tests`.
            7 if random(2) > 0 => format!("{directory}s -> target:{}", random(5) + 1),
            7 => format!("!{path}"),
            8 if random(3) == 0 => format!("./:{}", random(5) + 1),
            _ => format!("{path}:{}", random(5) + 1),
        }
    };
    (0..random(7) + 1).map(|_| entry(random)).collect()
}

pub(super) fn random(seed: &str) -> impl FnMut(usize) -> usize + use<> {
    let mut bytes = blake3::Hasher::new().update(seed.as_bytes()).finalize_xof();
    move |below: usize| {
        let mut byte = [0; 2];
        bytes.fill(&mut byte);
        usize::from(u16::from_le_bytes(byte)) % below
    }
}

fn settle(layer: &[String], below: &Merged) -> crate::Result<Settled> {
    let texts: Vec<&str> = layer.iter().map(String::as_str).collect();
    upper(&texts)?.settle(below)
}

/// Whether both see a stack in the same way, as far as it is not refused; else why not.
fn judge(layers: &[Vec<String>]) -> Result<bool, String> {
    let (mut model, mut merged) = (Model::default(), Merged::new());
    for layer in layers {
        let settled = match (settle(layer, &merged), apply(&mut model, layer)) {
            (Ok(settled), Ok(())) => settled,
            (Err(_), Err(_)) => return Ok(false),
            (a, b) => return Err(format!("tree {:?}, model {b:?}", a.map(drop))),
        };
        // What was copied from below holds nowhere, not even here.
        let wrong = settled.assumes.iter().find(|assume| assume.found != Found::Copied && !merged.holds(assume));
        if let Some(assume) = wrong {
            return Err(format!("{assume:?} does not hold"));
        }
        merged.overlay(&settled.tree, settled.root_opaque).unwrap();
        let differences = differences(&merged, &model);
        if !differences.is_empty() {
            return Err(differences.join(", "));
        }
    }
    Ok(true)
}

#[test]
pub(super) fn random_layers_show_what_the_specification_says() {
    let mut random = random("layers");
    let (mut whole, mut wrong) = (0, Vec::new());
    for _ in 0..ROUNDS {
        let layers: Vec<_> = (0..4).map(|_| random_layer(&mut random)).collect();
        match judge(&layers) {
            Ok(accepted) => whole += usize::from(accepted),
            Err(why) => wrong.push(format!("{layers:?}: {why}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {ROUNDS}:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
    assert!(whole > ROUNDS / 4, "{whole} of {ROUNDS} stacks were not refused");
}

#[test]
fn what_is_no_directory_makes_room_also_below_a_link() {
    let layers = |layers: &[&[&str]]| -> Vec<Vec<String>> {
        layers.iter().map(|layer| layer.iter().map(|&entry| entry.to_owned()).collect()).collect()
    };
    for stack in [
        &[&["s -> b/c", "s/a", "s/a/a"][..]][..],
        &[&["s -> b/c", "b/c/a", "s/a/a"]],
        &[&["s -> b/c", "s/a/a", "s/a"]],
        &[&["s -> b/c", "s/a", "s/a/"]],
        &[&["s -> b/c", "b/c/a"], &["s/a/a"]],
        &[&["s -> b/c", "b/c/a"], &["s/a/.wh.a", "x"]],
        &[&["s -> b/c", "b/c/a"], &["s/a/.wh..wh..opq", "x"]],
        &[&["s -> b/c", "s/a", "s/a/a/a"]],
        &[&["s -> b/c", "b/c/a", "b/c/a/x -> /y"], &["s/a/x/z"]],
    ] {
        assert_eq!(judge(&layers(stack)), Ok(true), "{stack:?}");
    }
    for stack in [
        &[&["s -> b/c", "b"][..], &["s/a"]][..],
        &[&["s -> b/c", "b/c/a", "x = s/a/a"]],
        &[&["s -> b/c", "b/c/l -> f", "b/c/f"], &["s/l/x"]],
    ] {
        assert_eq!(judge(&layers(stack)), Ok(false), "{stack:?}");
    }
}

const ROUNDS: usize = 3000;

#[test]
fn a_layer_is_right_over_every_tree_where_its_assumptions_hold() {
    let mut random = random("again");
    let mut used = 0;
    for round in 0..5000 {
        let (layer, lower) = (random_layer(&mut random), random_layer(&mut random));
        let (mut model, mut here, mut there) = (Model::default(), Merged::new(), Merged::new());
        let (Ok(first), Ok(second)) = (settle(&random_layer(&mut random), &here), settle(&lower, &there)) else {
            continue;
        };
        here.overlay(&first.tree, false).unwrap();
        there.overlay(&second.tree, false).unwrap();
        let Ok(settled) = settle(&layer, &here) else { continue };
        if settled.assumes.iter().all(|assumption| there.holds(assumption)) {
            apply(&mut model, &lower).unwrap();
            apply(&mut model, &layer).unwrap();
            used += 1;
            there.overlay(&settled.tree, settled.root_opaque).unwrap();
            assert_eq!(differences(&there, &model), [""; 0], "{round}: {layer:?} over {lower:?}");
        }
    }
    assert!(used > 200, "{used} of 5000 layers were used again");
}
