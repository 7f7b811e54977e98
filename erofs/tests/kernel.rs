//! The Linux kernel as the judge: what it shows of our images is what was written.
use crate::judge::{self, Files, Loop, Mount, compare};
use crate::sample::{Sample, attributes, everything};
use erofs::{Content, Kind, Tree};

#[test]
fn the_flat_image_shows_everything() {
    if judge::root() {
        let (sample, files) = (everything(), Files::new());
        compare(&sample, Mount::by_loop(&files.flat(&sample), "ro,loop").path());
    }
}

#[test]
fn metadata_and_data_in_two_files_show_everything() {
    if judge::root() {
        let (sample, files) = (everything(), Files::new());
        let (metadata, data) = files.pair(&sample);
        match Mount::by_file(&metadata, &format!("device={}", data.display())) {
            Ok(mount) => {
                compare(&sample, mount.path());
                let blocks = rustix::fs::statfs(mount.path()).unwrap().f_blocks;
                assert_eq!(blocks as u64, sample.expect(&sample.write()).image_blocks, "statfs");
            }
            Err(error) => eprintln!("SKIPPED: needs file-backed mounts of EROFS (Linux 6.12): {error}"),
        }
    }
}

#[test]
fn metadata_and_data_on_two_loop_devices_show_everything() {
    if judge::root() {
        let (sample, files) = (everything(), Files::new());
        let (metadata, data) = files.pair(&sample);
        let data = Loop::new(&data);
        compare(&sample, Mount::by_loop(&metadata, &format!("ro,loop,device={}", data.device)).path());
    }
}

#[test]
fn an_empty_image_needs_no_data() {
    if judge::root() {
        let (mut sample, files) = (Sample::new(), Files::new());
        compare(&sample, Mount::by_loop(&files.flat(&sample), "ro,loop").path());
        sample.file(Tree::ROOT, "empty", attributes(0o644), b"");
        let (metadata, data) = files.pair(&sample);
        match Mount::by_file(&metadata, &format!("device={}", data.display())) {
            Ok(mount) => compare(&sample, mount.path()),
            Err(error) => eprintln!("SKIPPED: needs file-backed mounts of EROFS (Linux 6.12): {error}"),
        }
    }
}

#[test]
fn a_directory_of_seventy_thousand_entries_is_listed_and_searched() {
    if judge::root() {
        let (mut sample, files) = (Sample::new(), Files::new());
        let directory = sample.directory(Tree::ROOT, "large");
        for at in 0..70_000 {
            sample.file(directory, &format!("{at}"), attributes(0o644), b"");
        }
        compare(&sample, Mount::by_loop(&files.flat(&sample), "ro,loop").path());
    }
}

#[test]
fn a_sparse_terabyte_costs_a_kilobyte() {
    let (mut sample, files) = (Sample::new(), Files::new());
    let empty = sample.write().bytes().len();
    sample.sparse(Tree::ROOT, "lastlog", 1_250_000_000_000, &[]);
    assert!(sample.write().bytes().len() <= empty, "it fits into the first block");
    let start = sample.store(b"end");
    let size = 8 << 40;
    let mut chunks = vec![None; 256];
    chunks[255] = Some(start);
    // The last chunk is as long as the file goes: a block.
    let content = Content::Sparse { size: size - (32 << 30) + 4000, chunk_bits: 23, chunks };
    sample.add(Tree::ROOT, "end", attributes(0o600), Kind::File(content));
    if judge::root() {
        compare(&sample, Mount::by_loop(&files.flat(&sample), "ro,loop").path());
    }
}
