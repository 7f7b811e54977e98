//! Bytes that must never change: old layers are read for ever, and the writer's output is pinned.
//!
//! When the writer's bytes change on purpose (a new zstd, other rules), that is a new writer generation: raise
//! `WRITER_GENERATION`, write the new golden file beside the old one (`LAMINA_BLESS=1 cargo test -p blobstore --test
//! layer_golden`), pin its digests here, and keep the old file among those that must be read.

use crate::support::Input;
use blobstore::layer::{self, Flags, Section, WRITER_GENERATION};
use std::path::{Path, PathBuf};

/// File, layer id, BLAKE3 of the file, BLAKE3 of the image.
struct Golden {
    file: &'static str,
    id: &'static str,
    file_hash: &'static str,
    image_hash: &'static str,
}

/// One for each writer generation, the newest last.
const GOLDEN: [Golden; 4] = [
    Golden {
        file: "generation-1.layer",
        id: "91641a809b05986bab0e4df805d0c774e70a3f5275ba71a3bb15073f89a295ea",
        file_hash: "3286524b57dac08b137ab92f2b5e80715c1ea913ff1dea27e23567d717c775c8",
        image_hash: "912c2ea24985c35a3f7b90e34821d4f36c0843c34e01183b6a9289a09c238a11",
    },
    Golden {
        file: "generation-2.layer",
        id: "875f37aeb5c3cf1c76b2614fc5ca1011f392caaf1ee3a21e2885f5b1702672f9",
        file_hash: "c3d0390337190160c9a4d85768a377510d38692b9bce37dade8caaf758dc0c52",
        image_hash: "912c2ea24985c35a3f7b90e34821d4f36c0843c34e01183b6a9289a09c238a11",
    },
    Golden {
        file: "generation-3.layer",
        id: "25c317af2e0b9e5d6fa8aae37881e24593cc8c9be65254199677743b53716adc",
        file_hash: "58e435c9a82c7532693b53fa17bf265dec1aa94c026ded32d4a1a138aa743911",
        image_hash: "912c2ea24985c35a3f7b90e34821d4f36c0843c34e01183b6a9289a09c238a11",
    },
    Golden {
        file: "generation-4.layer",
        id: "d8414bccece7ce2aaf31358c3a11c6dedd3a69e5ba88c4f2d4a3fedc840062f0",
        file_hash: "ec972252af4b27e6eda3705b5607b0ea68a1ac6e72f83b3649f6ccc1bf673155",
        image_hash: "912c2ea24985c35a3f7b90e34821d4f36c0843c34e01183b6a9289a09c238a11",
    },
];

fn path(golden: &Golden) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(golden.file)
}

fn input() -> Input {
    let mut input = Input::new(3, &[1, 5, 2, 1]);
    input.chunks.push(vec![0; 64 << 10]);
    input.flags = Flags::SELF_CONTAINED;
    input.sections = vec![
        Section { kind: 3, must_understand: false, bytes: br#"[{"absent":"x"}]"#.to_vec() },
        Section { kind: 4000, must_understand: false, bytes: b"of no version".to_vec() },
    ];
    input
}

#[test]
fn the_writer_gives_the_bytes_it_always_gave() {
    let newest = GOLDEN.last().unwrap();
    let (summary, file) = input().write(2);
    if std::env::var_os("LAMINA_BLESS").is_some() {
        std::fs::write(path(newest), &file).unwrap();
    }
    assert_eq!(GOLDEN.len(), WRITER_GENERATION as usize);
    assert_eq!(blake3::hash(&input().image()).to_hex().as_str(), newest.image_hash);
    assert_eq!(summary.id.to_string(), newest.id);
    assert_eq!(blake3::hash(&file).to_hex().as_str(), newest.file_hash);
}

#[test]
fn layers_of_every_generation_are_read() {
    for (generation, golden) in (1..).zip(&GOLDEN) {
        let file = std::fs::read(path(golden)).unwrap();
        assert_eq!(blake3::hash(&file).to_hex().as_str(), golden.file_hash, "the golden file itself");
        let id = golden.id.parse().unwrap();
        let verified = layer::verify_file(&path(golden), Some(&id)).unwrap();
        assert_eq!((verified.chunks, verified.file_len), (5, file.len() as u64));

        let head = layer::parse_head(&file, Some(&id)).unwrap();
        assert_eq!(head.index.generation(), generation);
        assert_eq!(head.index.flags(), Flags::SELF_CONTAINED);
        assert_eq!(head.index.section(3), Some(&br#"[{"absent":"x"}]"#[..]));
        let mut image = head.metadata;
        for at in head.index.chunks() {
            let stored = &file[at.file_offset as usize..][..at.entry.stored_len as usize];
            image.extend(layer::decode(stored, &at.entry).unwrap());
        }
        assert_eq!(blake3::hash(&image).to_hex().as_str(), golden.image_hash);
    }
}
