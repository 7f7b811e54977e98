//! What layers mean to the model by itself: shapes that must not cost more than their size.

use super::layer::Item;
use super::paths::PathId;
use super::*;

fn file(size: u64) -> Inode {
    Inode { kind: Kind::File { size, content: [0; 32] }, ..implied_directory() }
}

fn numbered(model: &mut Model, directory: PathId, number: usize) -> PathId {
    model.child(directory, number.to_string().as_bytes())
}

#[test]
fn a_long_chain_of_hard_links_is_followed_once() {
    const LINKS: usize = 200_000;
    let mut model = Model::default();
    // Each link waits for the next, the last for a file.
    let link = |model: &mut Model, number: usize| {
        let path = numbered(model, PathId::ROOT, number);
        Item::Link(path, (number + 1).to_string().into_bytes().into())
    };
    let mut items: Vec<_> = (0..LINKS).map(|number| link(&mut model, number)).collect();
    items.push(Item::Entry(numbered(&mut model, PathId::ROOT, LINKS), file(7)));
    model.apply(items).unwrap();
    let inodes = |model: &Model| -> std::collections::HashSet<InodeId> {
        model.paths.children(PathId::ROOT).into_iter().map(|path| model.paths.get(path).unwrap().inode).collect()
    };
    assert_eq!((inodes(&model).len(), model.paths.children(PathId::ROOT).len()), (1, LINKS + 1));

    // Over it, one whose file lies below, and one in a circle.
    let mut items: Vec<_> = (1..LINKS).map(|number| link(&mut model, number)).collect();
    items.push(Item::Link(numbered(&mut model, PathId::ROOT, LINKS), b"0".as_slice().into()));
    let was = model.paths.find(PathId::ROOT, b"0").map(|path| model.paths.get(path).unwrap().inode);
    model.apply(items).unwrap();
    assert_eq!((inodes(&model).len(), model.paths.children(PathId::ROOT).len()), (1, LINKS + 1));
    assert!(!inodes(&model).contains(&was.unwrap()), "a copy");
    let circle: Vec<_> = (0..LINKS).map(|number| link(&mut model, number)).collect();
    let last = Item::Link(numbered(&mut model, PathId::ROOT, LINKS), b"0".as_slice().into());
    model.apply(circle.into_iter().chain([last]).collect()).unwrap();
    assert_eq!((inodes(&model).len(), model.inodes.len() <= 2 * LINKS + 2), (1, true));
}

#[test]
fn a_chain_of_hard_links_to_nothing_is_refused_by_name() {
    let mut model = Model::default();
    let [a, b] = [b"a", b"b"].map(|name| model.child(PathId::ROOT, name));
    let items = vec![Item::Link(a, b"b".as_slice().into()), Item::Link(b, b"d/c".as_slice().into())];
    let error = model.apply(items).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("'d/c', which is not in the image"), "{error}");
}

#[test]
fn entries_in_a_deep_directory_cost_their_names() {
    const ENTRIES: usize = 20_000;
    const DEPTH: usize = 1_900;
    let mut model = Model::default();
    let deep = model.paths.at([b"d"; DEPTH]);
    let mut items: Vec<_> =
        (0..ENTRIES).map(|number| Item::Entry(numbered(&mut model, deep, number), file(1))).collect();
    items.push(Item::Whiteout(numbered(&mut model, deep, ENTRIES)));
    model.apply(items).unwrap();
    assert_eq!((model.paths.len(), model.inodes.len()), (1 + DEPTH + ENTRIES + 1, 1 + DEPTH + ENTRIES));
    let mut told = 0;
    assert_eq!(model.compare(&model.clone(), ["a", "b"], &mut |_, _| told += 1), (1 + DEPTH + ENTRIES) as u64);
    assert_eq!(told, 0);
    // Whole paths would be 76 MB.
    let names: usize = model.paths.iter().map(|path| model.paths.name(path).len()).sum();
    assert!(names < 10 * ENTRIES);
}

#[test]
fn what_layers_replace_or_hide_is_forgotten() {
    let mut model = Model::default();
    for layer in 0..50 {
        let directory = model.child(PathId::ROOT, b"d");
        let mut items: Vec<_> = (0..100)
            .map(|number| Item::Entry(numbered(&mut model, directory, layer * 100 + number), file(1)))
            .collect();
        items.push(Item::Opaque(directory));
        model.apply(items).unwrap();
    }
    let directory = model.paths.find(PathId::ROOT, b"d").unwrap();
    assert_eq!(model.paths.children(directory).len(), 100);
    assert!(model.paths.len() <= 210 && model.inodes.len() <= 210, "{} {}", model.paths.len(), model.inodes.len());
}

#[test]
fn a_directory_that_comes_and_goes_is_looked_into_once_each_time() {
    let mut model = Model::default();
    let (directory, mut items) = (model.child(PathId::ROOT, b"d"), Vec::new());
    // With whatever was in it at any time, each replacement would take thousands of steps.
    for number in 0..20_000 {
        items.push(Item::Entry(numbered(&mut model, directory, number), file(1)));
    }
    for number in 0..20_000 {
        items.push(Item::Entry(directory, file(2)));
        items.push(Item::Entry(numbered(&mut model, directory, number), file(1)));
    }
    model.apply(items).unwrap();
    assert_eq!(model.paths.children(model.paths.find(PathId::ROOT, b"d").unwrap()).len(), 1);
}

#[test]
fn the_paths_that_links_lead_to_are_bounded() {
    // Each link leads into ten directories that no entry names, by an entry below it.
    let apply = |links: usize, most: usize| {
        let mut model = Model::default();
        let mut items = Vec::new();
        for number in 0..links {
            let link = numbered(&mut model, PathId::ROOT, number);
            let target = format!("t{number}{}", "/d".repeat(9)).into_bytes();
            items.push(Item::Entry(link, Inode { kind: Kind::Symlink(target), ..implied_directory() }));
            items.push(Item::Entry(model.child(link, b"x"), file(1)));
        }
        model.apply_within(items, most)
    };
    // With the entries themselves.
    apply(5, 5 * 11).unwrap();
    let error = apply(5, 5 * 11 - 2).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("more than 53 paths"), "{error}");
}
