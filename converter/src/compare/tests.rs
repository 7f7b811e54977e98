//! Layers that keep their marks, as they are converted and as the model sees them.

use super::*;
use crate::entries::read_entries;
use crate::pack::Spool;
use crate::tree::{Upper, model_tests};
use tokio::runtime::Runtime;

/// A tar of entries whose owner is no implied directory's.
fn tar(entries: &[String]) -> Vec<u8> {
    model_tests::tar(&entries.iter().map(|text| format!("{text}:1")).collect::<Vec<_>>())
}

/// How what a conversion with its marks makes of a tar differs from the model; `None` where it makes nothing of it.
fn differences(tar: &[u8], mut model: Model) -> Option<Vec<String>> {
    let temp = tempfile::tempdir().unwrap();
    let (mut upper, mut spool) = (Upper::new(), Spool::new(temp.path()).unwrap());
    upper.keep_marks();
    read_entries(&mut Reader::new(tar), &mut upper, &mut spool).ok()?;
    let mut merged = Merged::new();
    let settled = upper.settle(&merged).ok()?;
    merged.overlay(&settled.tree, settled.root_opaque).unwrap();
    // All files are empty: nothing is read.
    let runtime = Runtime::new().unwrap();
    let tree = shown(&merged, &mut StoredContents::new(&[], runtime.handle())).unwrap();
    if let Err(e) = model.apply_tar(tar) {
        return Some(vec![format!("the model refuses it: {e}")]);
    }
    let mut found = Vec::new();
    tree.compare(&model, ["store", "source"], &mut |path, what| {
        found.push(format!("/{}: {what}", crate::error::show(path)));
    });
    Some(found)
}

#[test]
fn marks_that_are_kept_make_the_directories_that_they_are_in_and_no_others() {
    for (entries, without) in [
        (&["d/.wh.x"][..], &["/d: is missing in the source, and a directory in the store"][..]),
        (&["d/e/.wh..wh..opq"], &["/d: is missing", "/d/e: is missing"]),
        (&[".wh.d", "d/e/.wh.x"], &[]),
        (&["d/.wh..wh..opq", "d/e/.wh.x"], &["/d: is missing"]),
        (&["d", "d/e/.wh.x"], &[]),
        (&["d/e/.wh.x", "d", "d/"], &[]),
        (&["d -> t", "d/.wh.x"], &["/t: is missing"]),
        (&["d/.wh.x", "d -> t"], &[]),
        (&["d/.wh.x", "d/"], &[]),
        (&[".wh..wh..opq", "d/.wh.x"], &[]),
        (&["!d/c", "!d/e", "d/e/.wh.x"], &[]),
    ] {
        let tar = tar(&entries.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        assert_eq!(differences(&tar, Model::keeping_marks()).unwrap(), [""; 0], "{entries:?}");
        let found = differences(&tar, Model::default()).unwrap();
        assert_eq!(found.len(), without.len(), "{entries:?}: {found:?}");
        assert!(found.iter().zip(without).all(|(found, start)| found.starts_with(start)), "{entries:?}: {found:?}");
    }
}

#[test]
fn random_layers_that_keep_their_marks_are_what_the_model_says() {
    let mut bytes = blake3::Hasher::new().update(b"marks").finalize_xof();
    let mut random = |below: usize| {
        let mut byte = [0; 2];
        bytes.fill(&mut byte);
        usize::from(u16::from_le_bytes(byte)) % below
    };
    let directories = ["", "a/", "b/", "a/a/", "a/b/", "a/a/b/", "s/", "s/a/"];
    let (mut compared, mut implied) = (0, 0);
    for _ in 0..5000 {
        let mut layer = Vec::new();
        for _ in 0..random(6) + 1 {
            // Only marks go through the link: what it means for entries is told elsewhere.
            let kind = random(10);
            let most = directories.len() - if kind < 6 { 0 } else { 2 };
            let (directory, name) = (directories[random(most)], ["a", "b", "c"][random(3)]);
            layer.push(match kind {
                0..4 => format!("{directory}.wh.{name}"),
                4 | 5 => format!("{directory}.wh..wh..opq"),
                6 => format!("{directory}{name}/"),
                7 => format!("{directory}{name} = {}{name}", directories[random(6)]),
                8 => format!("!{directory}{name}"),
                _ => format!("{directory}{name}"),
            });
        }
        // Before all others, for the same reason.
        if random(2) == 0 {
            layer.insert(0, format!("s -> {}", ["a", "b/c", "/c", "a/a/."][random(4)]));
        }
        let tar = tar(&layer);
        let Some(found) = differences(&tar, Model::keeping_marks()) else { continue };
        assert_eq!(found, [""; 0], "{layer:?}");
        compared += 1;
        implied += usize::from(differences(&tar, Model::default()) != Some(Vec::new()));
    }
    assert!(compared > 3000 && implied > 1000, "{compared} compared, {implied} where marks made directories");
}
