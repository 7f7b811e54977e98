//! Layers that are damaged, cut, from the future, or made to hurt: errors of the right kind, never a panic.

use crate::support::Input;
use blobstore::layer::{self, ChunkEntry, Flags, Index, LayerError, Section};
use blobstore::store::{Action, Fault, FileStore, Store};
use bytes::Bytes;
use proptest::prelude::*;
use std::sync::Arc;

const KEY: &str = "layers/00/layer";

fn small() -> Input {
    let mut input = Input::new(2, &[1, 2, 1]);
    input.sections = vec![Section { kind: 3, must_understand: false, bytes: b"{}".to_vec() }];
    input
}

/// `file` with `bytes` at offset `at` of the index's content.
fn edited(file: &[u8], at: usize, bytes: &[u8]) -> Bytes {
    let mut file = file.to_vec();
    file[8 + at..8 + at + bytes.len()].copy_from_slice(bytes);
    file.into()
}

#[track_caller]
fn malformed<T>(result: Result<T, LayerError>, says: &str) {
    match result {
        Err(LayerError::Malformed(what)) => assert!(what.contains(says), "{what:?} does not say {says:?}"),
        Err(other) => panic!("{says}: {other}"),
        Ok(_) => panic!("{says}: it was accepted"),
    }
}

#[track_caller]
fn unsupported<T>(result: Result<T, LayerError>) {
    assert!(matches!(result, Err(LayerError::Unsupported(_))), "{:?}", result.err());
}

#[track_caller]
fn corrupt<T>(result: Result<T, LayerError>) -> Option<u32> {
    match result {
        Err(LayerError::Corrupt { chunk, .. }) => chunk,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was accepted"),
    }
}

#[tokio::test]
async fn any_byte_of_the_index_changed_is_another_layer() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::new(dir.path());
    let (summary, file) = small().write(1);
    let frame_len = Index::parse(file.clone().into()).unwrap().frame_len() as usize;
    for at in 0..frame_len {
        let mut wrong = file.clone();
        wrong[at] ^= 0x10;
        corrupt(Index::parse_as(wrong.clone().into(), &summary.id));
        corrupt(layer::parse_head(&wrong, Some(&summary.id)));
        if let Ok(index) = Index::parse(wrong.clone().into()) {
            assert_ne!(index.id(), summary.id, "byte {at}");
        }
        if at % 16 == 0 {
            store.put(KEY, wrong.into()).await.unwrap();
            corrupt(layer::read_head(&store, KEY, Some(&summary.id), None).await);
            corrupt(layer::read_head(&store, KEY, Some(&summary.id), Some(summary.head_len)).await);
        }
    }
}

#[test]
fn any_byte_of_metadata_or_data_changed_is_found_with_its_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let (summary, file) = small().write(1);
    let index = Index::parse(file.clone().into()).unwrap();
    let path = dir.path().join(summary.id.to_string());
    for at in index.frame_len() as usize..file.len() {
        let mut wrong = file.clone();
        wrong[at] ^= 1;
        let expect = index.chunks().find(|chunk| {
            (chunk.file_offset..chunk.file_offset + u64::from(chunk.entry.stored_len)).contains(&(at as u64))
        });
        match expect {
            None => assert_eq!(corrupt(layer::parse_head(&wrong, Some(&summary.id))), None),
            Some(chunk) => {
                let stored = &wrong[chunk.file_offset as usize..][..chunk.entry.stored_len as usize];
                corrupt(layer::decode(stored, &chunk.entry));
            }
        }
        if at % 64 == 0 {
            std::fs::write(&path, &wrong).unwrap();
            assert_eq!(corrupt(layer::verify_file(&path, None)), expect.map(|chunk| chunk.chunk));
        }
    }
}

#[tokio::test]
async fn a_layer_cut_anywhere_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::new(dir.path());
    let (summary, file) = small().write(1);
    let path = dir.path().join("cut");
    for length in 0..file.len() {
        let cut = Bytes::copy_from_slice(&file[..length]);
        if (length as u64) < summary.head_len {
            assert!(layer::parse_head(&cut, None).is_err(), "{length} bytes");
        }
        if length % 32 == 0 {
            std::fs::write(&path, &cut).unwrap();
            assert!(layer::verify_file(&path, None).is_err(), "{length} bytes");
            store.put(KEY, cut.clone()).await.unwrap();
            assert!(layer::verify_object(&store, KEY, None).await.is_err(), "{length} bytes");
        }
        let frame_len = Index::parse(file.clone().into()).unwrap().frame_len();
        assert_eq!(Index::parse(cut).is_err(), (length as u64) < frame_len);
    }
}

#[test]
fn a_wrong_name_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (summary, file) = small().write(1);
    let (other, _) = Input::new(3, &[]).write(1);
    let path = dir.path().join(other.id.to_string());
    std::fs::write(&path, &file).unwrap();
    corrupt(layer::verify_file(&path, None));
    assert!(layer::verify_file(&path, Some(&summary.id)).is_ok());
    std::fs::write(dir.path().join("any-name"), &file).unwrap();
    assert!(layer::verify_file(&dir.path().join("any-name"), None).is_ok());
    corrupt(layer::verify_file(&dir.path().join("any-name"), Some(&other.id)));
}

#[tokio::test]
async fn a_damaged_object_names_its_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::new(dir.path());
    let (summary, file) = small().write(1);
    let index = Index::parse(file.clone().into()).unwrap();
    for at in index.chunks() {
        let mut wrong = file.clone();
        wrong[at.file_offset as usize] ^= 0x80;
        store.put(KEY, wrong.into()).await.unwrap();
        assert_eq!(corrupt(layer::verify_object(&store, KEY, Some(&summary.id)).await), Some(at.chunk));
    }
    store.put(KEY, Bytes::from(file).slice(summary.head_len as usize..)).await.unwrap();
    corrupt(layer::verify_object(&store, KEY, Some(&summary.id)).await);
}

#[tokio::test]
async fn only_skippable_frames_may_follow() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::new(dir.path());
    let (_, file) = small().write(1);
    let frame = zstd::bulk::compress(b"more", 3).unwrap();
    for tail in [&frame[..], b"x", &[0x50, 0x2A, 0x4D, 0x18, 9, 0, 0, 0], &[0x50, 0x2A, 0x4D, 0x18, 0, 0]] {
        let file = [&file[..], tail].concat();
        let path = dir.path().join("file");
        std::fs::write(&path, &file).unwrap();
        malformed(layer::verify_file(&path, None), "skippable");
        store.put(KEY, file.into()).await.unwrap();
        malformed(layer::verify_object(&store, KEY, None).await, "skippable");
    }
}

#[test]
fn versions_flags_and_sections_of_the_future_are_unsupported() {
    let (_, file) = small().write(1);
    unsupported(Index::parse(edited(&file, 8, &[2])));
    unsupported(Index::parse(edited(&file, 12, &[8])));
    unsupported(Index::parse(edited(&file, 15, &[0x80])));
    // The third section's type and flags.
    unsupported(Index::parse(edited(&file, 56 + 48, &[16, 0, 0, 0, 1])));
    unsupported(Index::parse(edited(&file, 56 + 48 + 4, &[2])));
    unsupported(Index::parse(edited(&file, 56 + 4, &[3])));
    let mut input = small();
    input.sections = vec![Section { kind: 17, must_understand: true, bytes: vec![1, 2, 3] }];
    unsupported(Index::parse(input.write(1).1.into()));
}

#[test]
fn a_higher_minor_and_unknown_optional_sections_are_accepted() {
    let (_, file) = small().write(1);
    let index = Index::parse(edited(&file, 10, &[7, 1])).unwrap();
    assert_eq!(index.chunk_count(), 3);
    let index = Index::parse(edited(&file, 56 + 48, &[99, 1, 0, 0])).unwrap();
    assert_eq!((index.section(3), index.section(355)), (None, Some(&b"{}"[..])));
    let mut input = small();
    input.flags = Flags::NOT_PLAIN;
    input.sections.push(Section { kind: 20, must_understand: false, bytes: vec![9; 13] });
    let index = Index::parse(input.write(1).1.into()).unwrap();
    assert_eq!((index.flags(), index.section(20)), (Flags::NOT_PLAIN, Some(&[9; 13][..])));
}

#[test]
fn numbers_that_do_not_fit_together_are_malformed() {
    let (_, file) = small().write(1);
    let parse = |at: usize, bytes: &[u8]| Index::parse(edited(&file, at, bytes));
    malformed(parse(0, b"X"), "no index");
    malformed(parse(16, &[0; 8]), "head length");
    malformed(parse(24, &[0xff; 8]), "chunks hold");
    malformed(parse(32, &[0; 8]), "image blocks");
    malformed(parse(32, &[0xff; 8]), "image blocks");
    malformed(parse(40, &[0; 8]), "metadata of 0 blocks");
    malformed(parse(40, &[0xff; 8]), "blocks; 1 to");
    malformed(parse(40, &[1]), "not 4096");
    malformed(parse(40, &[3]), "not 12288");
    malformed(parse(52, &[0xff; 4]), "sections; 256 at most");
    malformed(parse(52, &[0; 4]), "behind the last section");
    malformed(parse(52, &[2]), "section 1:");
    malformed(parse(52, &[100]), "section table cut short");
    malformed(parse(56, &[2]), "stands twice");
    malformed(parse(56, &[3, 0, 0, 0, 0]), "stands twice");
    malformed(parse(56 + 4, &[0]), "not marked");
    malformed(parse(56 + 8, &[0xff; 8]), "not at 128");
    malformed(parse(56 + 8, &[136]), "not at 128");
    malformed(parse(56 + 16, &[0xff; 8]), "not at 128");
    malformed(parse(56 + 16, &[39]), "not zero before section 2");
    malformed(parse(56 + 48 + 16, &[1]), "behind the last section");
    // The first entries of the metadata frame table (at 128) and of the chunk table (at 168).
    malformed(parse(128, &[0; 4]), "metadata frame 0 holds 0");
    malformed(parse(128 + 4, &[0; 4]), "metadata frame 0: nothing stored");
    malformed(parse(128 + 4, &[0xff; 4]), "metadata frame 0: 4294967295 bytes stored");
    malformed(parse(168, &[0; 4]), "chunk 0 holds 0");
    malformed(parse(168, &[1]), "chunk 0 holds 4097");
    malformed(parse(168, &[0, 0x10, 0x80, 0]), "chunk 0 holds 8392704");
    malformed(parse(168 + 4, &[0; 4]), "chunk 0: nothing stored");
    malformed(parse(168, &[0, 0x20, 0, 0]), "chunks hold");
    let mut short = file.clone();
    short[4..8].copy_from_slice(&55u32.to_le_bytes());
    malformed(Index::parse(short.clone().into()), "an index of 55 bytes");
    short[4..8].copy_from_slice(&((1u32 << 30) + 1).to_le_bytes());
    malformed(Index::parse(short.into()), "at most");
    malformed(Index::parse(Bytes::from_static(b"\x28\xb5\x2f\xfd\0\0\0\0")), "index frame");
}

/// An entry that names `stored` and says that it holds `data_len` bytes.
fn entry(stored: &[u8], data_len: u32) -> ChunkEntry {
    ChunkEntry { data_len, stored_len: stored.len() as u32, hash: *blake3::hash(stored).as_bytes() }
}

#[test]
fn frames_that_lie_are_refused_before_they_are_decompressed() {
    let good = zstd::bulk::compress(&[7; 8192], 3).unwrap();
    assert_eq!(layer::decode(&good, &entry(&good, 8192)).unwrap(), [7; 8192]);
    malformed(layer::decode(&good, &entry(&good, 4096)), "holds 8192");
    malformed(layer::decode(&good, &entry(&good, 0)), "a frame of 0");
    let bomb = zstd::bulk::compress(&vec![0; 9 << 20], 3).unwrap();
    malformed(layer::decode(&bomb, &entry(&bomb, 9 << 20)), "a frame of 9437184");
    let two = [&good[..], &good[..]].concat();
    malformed(layer::decode(&two, &entry(&two, 8192)), "not one whole");
    let tail = [&good[..], b"x"].concat();
    malformed(layer::decode(&tail, &entry(&tail, 8192)), "not one whole");
    let cut = &good[..good.len() - 1];
    malformed(layer::decode(cut, &entry(cut, 8192)), "not one whole");
    malformed(layer::decode(b"nothing", &entry(b"nothing", 4096)), "not a zstd frame");
    let skippable = [0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0];
    malformed(layer::decode(&skippable, &entry(&skippable, 4096)), "");
    // A stream does not state its size unless told to.
    let mut stream = zstd::Encoder::new(Vec::new(), 3).unwrap();
    std::io::Write::write_all(&mut stream, &[7; 8192]).unwrap();
    std::io::Write::flush(&mut stream).unwrap();
    let unsized_frame = stream.finish().unwrap();
    malformed(layer::decode(&unsized_frame, &entry(&unsized_frame, 8192)), "does not state its size");
}

#[test]
fn bytes_that_do_not_match_never_reach_the_decompressor() {
    let good = zstd::bulk::compress(&[7; 8192], 3).unwrap();
    let named = entry(&good, 8192);
    corrupt(layer::decode(&[], &named));
    corrupt(layer::decode(&good[1..], &named));
    corrupt(layer::decode(&vec![0; good.len()], &named));
    let error = layer::decode(&[], &named).unwrap_err().at_chunk(7);
    assert!(error.to_string().contains("chunk 7: 0 stored bytes"), "{error}");
}

#[tokio::test]
async fn a_store_that_answers_wrong_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let files = Arc::new(FileStore::new(dir.path()));
    let (summary, file) = small().write(1);
    files.create(KEY, file.into()).await.unwrap();
    let head_len = Some(summary.head_len);
    for at in (0..summary.head_len as usize).step_by(7) {
        let store = Fault::script(files.clone(), [Action::WrongByte(at)]);
        corrupt(layer::read_head(&store, KEY, Some(&summary.id), head_len).await);
        layer::read_head(&store, KEY, Some(&summary.id), head_len).await.unwrap();
    }
    for length in [0, 1, 63, 64, 200, summary.head_len as usize - 1] {
        for at in 0..3 {
            let actions = (0..3).map(|n| if n == at { Action::Short(length) } else { Action::Pass });
            let store = Fault::script(files.clone(), actions);
            // A body that is too short may still be all that was asked for; what counts is that it is right or refused.
            if let Ok(head) = layer::read_head(&store, KEY, Some(&summary.id), None).await {
                assert_eq!(head.metadata, small().metadata);
            }
        }
    }
    let store = Fault::script(files.clone(), [Action::NotFound, Action::Error(std::io::ErrorKind::TimedOut)]);
    for _ in 0..2 {
        let result = layer::read_head(&store, KEY, None, None).await;
        assert!(matches!(result, Err(LayerError::Store(_))), "{result:?}");
    }
}

proptest! {
    #[test]
    fn an_index_with_any_bytes_changed_is_an_error_or_usable(
        edits in prop::collection::vec((0usize..340, any::<u8>()), 1..6),
        offset in any::<u64>(),
    ) {
        let (_, mut file) = small().write(1);
        for (at, byte) in edits {
            file[at] = byte;
        }
        if let Ok(index) = Index::parse(file.into()) {
            let _ = index.locate(offset % (1 << 20));
            prop_assert_eq!(index.chunks().count(), index.chunk_count() as usize);
            prop_assert!(index.chunks().all(|at| index.locate(at.data_start) == Some(at)));
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_an_index(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut frame = vec![0x5D, 0x2A, 0x4D, 0x18];
        frame.extend((bytes.len() as u32).to_le_bytes());
        frame.extend(bytes);
        let _ = Index::parse(frame.into());
    }
}
