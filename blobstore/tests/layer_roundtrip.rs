//! Layers written and read back: by this crate, by zstd's stream decoder, by the zstd program.

use crate::support::{Input, content};
use blobstore::layer::{self, Flags, Front, Index, LayerError, Options, Section, Writer};
use blobstore::store::{FileStore, Metered, Store};
use bytes::Bytes;
use proptest::prelude::*;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const KEY: &str = "layers/00/layer";

/// Reads everything through the index, as a lazy reader would.
fn read_lazily(file: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let head = layer::parse_head(file, None).unwrap();
    let data = head.index.chunks().flat_map(|at| {
        let stored = &file[at.file_offset as usize..][..at.entry.stored_len as usize];
        layer::decode(stored, &at.entry).unwrap()
    });
    (head.metadata, data.collect())
}

fn sample() -> Input {
    let mut input = Input::new(1100, &[1, 64, 3, 64, 17, 64, 64, 2]);
    input.flags = Flags::SELF_CONTAINED | Flags::ROOT_OPAQUE;
    input.sections = vec![Section { kind: 3, must_understand: false, bytes: b"[1]".to_vec() }];
    input
}

#[test]
fn the_file_is_the_image_as_one_zstd_stream() {
    let input = sample();
    let (_, file) = input.write(2);
    assert!(zstd::decode_all(&file[..]).unwrap() == input.image());
}

#[test]
fn the_zstd_program_decompresses_it_to_the_image() {
    let input = sample();
    let (_, file) = input.write(2);
    let mut path = tempfile::NamedTempFile::new().unwrap();
    path.write_all(&file).unwrap();
    match std::process::Command::new("zstd").args(["-d", "-q", "-c"]).arg(path.path()).output() {
        Err(error) => eprintln!("SKIPPED: needs the zstd program ({error})"),
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == input.image());
        }
    }
}

#[test]
fn the_index_tells_what_was_written() {
    let input = sample();
    let (summary, file) = input.write(2);
    let index = Index::parse(file.clone().into()).unwrap();
    assert_eq!(index.id(), summary.id);
    assert_eq!(index.id().as_bytes(), blake3::hash(&file[..index.frame_len() as usize]).as_bytes());
    assert_eq!(index.flags(), input.flags);
    assert_eq!((index.head_len(), index.file_len()), (summary.head_len, file.len() as u64));
    assert_eq!((index.first_data_block(), index.image_blocks()), (1100, 1100 + 279));
    assert_eq!((index.chunk_count(), summary.chunks), (8, 8));
    assert_eq!((summary.data_bytes, summary.stored_bytes), (279 * 4096, summary.file_len - summary.head_len));
    assert_eq!(index.generation(), layer::WRITER_GENERATION);
    assert_eq!(index.section(3), Some(&b"[1]"[..]));
    assert_eq!(index.section(4), None);
    assert_eq!(index.metadata_frames().count(), 2, "4 MiB, and 76 blocks");
}

#[test]
fn every_byte_of_the_data_is_located() {
    let blocks: Vec<usize> = (0..200).map(|n| 1 + n % 3).collect();
    let (_, file) = Input::new(1, &blocks).write(2);
    let index = Index::parse(file.into()).unwrap();
    let all: Vec<_> = index.chunks().collect();
    assert_eq!(all.len(), 200);
    for at in &all {
        assert_eq!(index.chunk_at(at.chunk), Some(*at));
        assert_eq!(index.chunk(at.chunk), Some(at.entry));
        for offset in [at.data_start, at.data_start + 1, at.data_start + u64::from(at.entry.data_len) - 1] {
            assert_eq!(index.locate(offset), Some(*at), "byte {offset}");
        }
    }
    assert_eq!(index.locate(index.data_len()), None);
    assert_eq!(index.locate(u64::MAX), None);
    assert_eq!((index.chunk(200), index.chunk_at(200), index.chunk_at(u32::MAX)), (None, None, None));
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let mut input = Input::new(2100, &[64; 40]);
    input.chunks.extend((0..50).map(|n| content(n, 4096 * (1 + n as usize % 20))));
    let (one, bytes) = input.write(1);
    for threads in [2, 8] {
        let (many, others) = input.write(threads);
        assert_eq!(one, many);
        assert!(bytes == others, "{threads} threads");
    }
}

#[test]
fn a_layer_may_have_no_data() {
    let input = Input::new(1, &[]);
    let (summary, file) = input.write(1);
    assert_eq!(summary.head_len, summary.file_len);
    let index = Index::parse(file.clone().into()).unwrap();
    assert_eq!((index.chunk_count(), index.locate(0), index.chunks().count()), (0, None, 0));
    assert!(read_lazily(&file) == (input.metadata, Vec::new()));
}

#[test]
fn incompressible_chunks_of_the_largest_size_fit() {
    let mut noise = vec![0; 8 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    let mut input = Input::new(1, &[]);
    input.chunks = vec![noise, vec![0; 8 << 20]];
    let (_, file) = input.write(2);
    assert!(read_lazily(&file).1 == input.data());
}

#[test]
fn what_the_format_cannot_hold_is_refused_when_written() {
    let refused = |input: &Input, what: &str| {
        let result = input.write_to(2, tempfile::tempfile().unwrap());
        assert!(matches!(result, Err(LayerError::Malformed(_))), "{what}");
    };
    let mut input = Input::new(1, &[]);
    for length in [0, 1, 4095, 4097, (8 << 20) + 4096] {
        input.chunks = vec![vec![0; length]];
        refused(&input, &format!("a chunk of {length}"));
    }
    for length in [0, 100, 4097] {
        let input = Input { metadata: vec![0; length], ..Input::new(1, &[]) };
        refused(&input, &format!("metadata of {length}"));
    }
    let section = |kind| Section { kind, must_understand: false, bytes: vec![] };
    for sections in [vec![section(1)], vec![section(2)], vec![section(9), section(9)]] {
        refused(&Input { sections: sections.clone(), ..Input::new(1, &[]) }, &format!("{sections:?}"));
    }
}

#[test]
fn as_many_chunks_are_taken_as_were_announced() {
    let front = Front { metadata: &[0; 4096], flags: Flags::empty(), sections: &[], chunks: 1 };
    let writer = || Writer::new(&Options::default(), &front, tempfile::tempfile().unwrap()).unwrap();
    assert!(matches!(writer().finish(), Err(LayerError::Malformed(_))));
    let mut writer = writer();
    writer.push(vec![0; 4096]).unwrap();
    assert!(matches!(writer.push(vec![0; 4096]), Err(LayerError::Malformed(_))));
}

#[test]
fn a_layer_that_was_not_finished_is_none() {
    let front = Front { metadata: &[0; 4096], flags: Flags::empty(), sections: &[], chunks: 2 };
    let path = tempfile::NamedTempFile::new().unwrap();
    let mut writer = Writer::new(&Options::default(), &front, path.reopen().unwrap()).unwrap();
    writer.push(vec![0; 4096]).unwrap();
    drop(writer);
    let file = std::fs::read(path.path()).unwrap();
    assert!(!file.is_empty() && layer::parse_head(&file, None).is_err());
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let result = Input::new(1, &[1]).write_to(2, full);
    assert!(matches!(result, Err(LayerError::Io { .. })), "{result:?}");
}

#[tokio::test]
async fn a_head_takes_one_request_when_its_length_is_known_and_three_when_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = Metered::new(Arc::new(FileStore::new(dir.path())));
    let input = sample();
    let (summary, file) = input.write(2);
    store.create(KEY, file.into()).await.unwrap();
    let cases = [
        (Some(summary.head_len), 1),
        (Some(summary.head_len + 100), 1),
        (Some(summary.head_len - 1), 2),
        (Some(1), 3),
        (None, 3),
    ];
    for (head_len, requests) in cases {
        let before = store.counts().requests.load(Relaxed);
        let head = layer::read_head(&store, KEY, Some(&summary.id), head_len).await.unwrap();
        assert_eq!(store.counts().requests.load(Relaxed) - before, requests, "{head_len:?}");
        assert_eq!(head.index.id(), summary.id);
        assert!(head.metadata == input.metadata);
    }
}

#[tokio::test]
async fn a_whole_layer_verifies_in_a_file_and_in_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::new(dir.path());
    let mut input = sample();
    input.chunks.extend((0..12).map(|seed| content(seed, 4 << 20)));
    let (summary, mut file) = input.write(2);
    file.extend_from_slice(&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3]);
    let key = format!("layers/{}", summary.id);
    store.create(&key, file.into()).await.unwrap();
    let by_file = layer::verify_file(&dir.path().join(&key), Some(&summary.id)).unwrap();
    let by_store = layer::verify_object(&store, &key, Some(&summary.id)).await.unwrap();
    assert_eq!(by_file, by_store);
    assert_eq!(by_file.id, summary.id);
    assert_eq!((by_file.chunks, by_file.trailing), (20, 11));
    assert_eq!(by_file.image_bytes, input.image().len() as u64);
}

#[test]
fn the_index_of_a_file_is_mapped_not_read() {
    let mut path = tempfile::NamedTempFile::new().unwrap();
    let (summary, file) = sample().write(1);
    path.write_all(&file).unwrap();
    let index = Index::of_file(path.as_file()).unwrap();
    drop(path);
    assert_eq!(index.id(), summary.id);
    assert_eq!(index.chunks().count(), 8);
    assert_eq!(index.frame()[..], file[..index.frame_len() as usize]);
}

#[test]
fn a_part_of_a_file_is_mapped_wherever_it_starts() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&content(5, 20_000)).unwrap();
    for range in [0..20_000u64, 4096..8192, 5001..5002, 7..19_999, 3..3] {
        let expect = &content(5, 20_000)[range.start as usize..range.end as usize];
        assert_eq!(layer::map_file(&file, range).unwrap(), expect);
    }
    assert!(matches!(layer::map_file(&file, 0..20_001), Err(LayerError::Malformed(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_written_is_read_back(
        metadata in prop_oneof![1usize..20, 1022usize..1027],
        chunks in prop::collection::vec(1usize..4, 0..150),
        flags in 0u32..8,
        section in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        threads in 1usize..4,
    ) {
        let mut input = Input::new(metadata, &chunks);
        input.flags = Flags::from_bits(flags).unwrap();
        input.sections = section.into_iter().map(|bytes| Section { kind: 3, must_understand: false, bytes }).collect();
        let (summary, file) = input.write(threads);
        let index = Index::parse_as(Bytes::from(file.clone()), &summary.id).unwrap();
        prop_assert_eq!(index.flags(), input.flags);
        prop_assert_eq!(index.section(3), input.sections.first().map(|section| &section.bytes[..]));
        prop_assert!(read_lazily(&file) == (input.metadata.clone(), input.data()));
        prop_assert!(zstd::decode_all(&file[..]).unwrap() == input.image());
    }
}
