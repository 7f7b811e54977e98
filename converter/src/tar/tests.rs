//! Tars of every dialect, made byte for byte; what is damaged or not understood is refused, by entry.

use super::*;
use crate::error::Result;

/// A header block with a right checksum.
fn block(name: &[u8], kind: u8, size: u64, link: &[u8], magic: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000001");
    block[116..123].copy_from_slice(b"0000002");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000007");
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link);
    block[257..257 + magic.len()].copy_from_slice(magic);
    seal(block)
}

fn seal(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn padded(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    data.resize(data.len().next_multiple_of(512), 0);
    data
}

fn posix(name: &[u8], kind: u8, data: &[u8]) -> Vec<u8> {
    [block(name, kind, data.len() as u64, b"", b"ustar\x0000"), padded(data)].concat()
}

fn record(text: &str) -> Vec<u8> {
    let mut length = text.len() + 3;
    while format!("{length} {text}\n").len() != length {
        length += 1;
    }
    format!("{length} {text}\n").into_bytes()
}

fn pax(records: &[&str]) -> Vec<u8> {
    posix(b"PaxHeaders/x", b'x', &records.iter().flat_map(|r| record(r)).collect::<Vec<u8>>())
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), vec![0; 1024]].concat()
}

fn read_all(tar: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>> {
    let mut reader = Reader::new(tar);
    let mut all = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        let (mut data, mut buffer) = (Vec::new(), [0; 100]);
        loop {
            match reader.read(&mut buffer)? {
                0 => break,
                n => data.extend_from_slice(&buffer[..n]),
            }
        }
        all.push((entry, data));
    }
    Ok(all)
}

fn paths(tar: &[u8]) -> Vec<String> {
    read_all(tar).unwrap().iter().map(|(entry, _)| entry.path.to_string()).collect()
}

#[test]
fn plain_entries_are_read_with_their_data() {
    let tar = archive(&[posix(b"a", b'0', &[7; 700]), posix(b"d/", b'5', b""), posix(b"b", b'7', b"x")]);
    let all = read_all(&tar).unwrap();
    assert_eq!(all[0].1, [7; 700]);
    assert_eq!(all[0].0.attributes.mode, 0o644);
    assert_eq!((all[0].0.attributes.uid, all[0].0.attributes.gid, all[0].0.attributes.mtime), (1, 2, 7));
    assert_eq!(all[1].0.kind, Kind::Directory);
    assert_eq!(all[2].0.kind, Kind::File(Shape { size: 1, map: None }));
}

#[test]
fn data_that_is_not_read_is_skipped() {
    let tar = archive(&[posix(b"a", b'0', &[7; 70000]), posix(b"b", b'0', b"x")]);
    let mut reader = Reader::new(&tar[..]);
    reader.next_entry().unwrap();
    assert_eq!(reader.next_entry().unwrap().unwrap().path.to_bytes(), b"b");
}

#[test]
fn long_names_come_from_gnu_and_pax_headers() {
    let gnu =
        [block(b"././@LongLink", b'L', 6, b"", b"ustar  \0"), padded(b"gnu/n\0"), posix(b"cut", b'0', b"")].concat();
    let link = [pax(&["linkpath=far/away"]), posix(b"l", b'2', b"")].concat();
    let both = [pax(&["path=strong"]), gnu.clone()].concat();
    let tar = archive(&[gnu, link, both]);
    assert_eq!(paths(&tar), ["gnu/n", "l", "strong"]);
    assert_eq!(read_all(&tar).unwrap()[1].0.kind, Kind::Symlink(b"far/away".to_vec()));
}

#[test]
fn the_prefix_field_is_for_posix_headers_only() {
    let with_prefix = |magic: &[u8]| {
        let mut header = block(b"n", b'0', 0, b"", magic);
        header[345..348].copy_from_slice(b"pre");
        seal(header)
    };
    assert_eq!(paths(&archive(&[with_prefix(b"ustar\x0000"), with_prefix(b"ustar  \0")])), ["pre/n", "n"]);
}

#[test]
fn old_headers_name_directories_by_a_slash() {
    let all = read_all(&archive(&[block(b"d/", 0, 0, b"", b""), block(b"f", 0, 0, b"", b"")])).unwrap();
    assert_eq!(all[0].0.kind, Kind::Directory);
    assert!(matches!(all[1].0.kind, Kind::File(_)));
}

#[test]
fn global_headers_are_comments_or_refused() {
    let with = |text| archive(&[posix(b"pax_global_header", b'g', &record(text)), posix(b"a", b'0', b"")]);
    for text in ["comment=0123", "uname=somebody", "LIBARCHIVE.creationtime=1"] {
        assert_eq!(paths(&with(text)), ["a"]);
    }
    for text in ["path=evil", "uid=7", "mtime=1", "SCHILY.xattr.user.a=b", "GNU.sparse.major=1"] {
        let error = read_all(&with(text)).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("global header sets"), "{error}");
    }
}

#[test]
fn incremental_directories_are_directories_and_labels_are_nothing() {
    let tar = archive(&[posix(b"label", b'V', b""), posix(b"d/", b'D', b"Yf\0\0"), posix(b"d/f", b'0', b"x")]);
    assert_eq!(paths(&tar), ["d", "d/f"]);
    assert_eq!(read_all(&tar).unwrap()[0].0.kind, Kind::Directory);
}

#[test]
fn extended_headers_are_bounded_together() {
    let large = pax(&[&format!("SCHILY.xattr.user.a={}", "x".repeat(3 << 20))]);
    let error = read_all(&archive(&[large.clone(), large.clone(), large, posix(b"a", b'0', b"")])).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("too large"), "{error}");
    let long = read_all(&archive(&[pax(&[&format!("path={}", "x/".repeat(1 << 20))]), posix(b"a", b'0', b"")]));
    let error = long.unwrap_err().to_string();
    assert!(error.contains("path is too long") && error.len() < 1000, "{error}");
}

#[test]
fn what_stands_behind_the_end_is_told() {
    for (behind, any) in [(vec![0; 5000], false), ([vec![0; 700], vec![1]].concat(), true)] {
        let tar = [archive(&[posix(b"a", b'0', b"x")]), behind].concat();
        let mut reader = Reader::new(&tar[..]);
        while reader.next_entry().unwrap().is_some() {}
        assert_eq!(reader.rest().unwrap(), any);
    }
}

#[test]
fn pax_records_give_size_owner_time_and_attributes() {
    let records =
        ["size=3", "uid=70000", "gid=2097152", "mtime=-1.5", "SCHILY.xattr.user.e=", "SCHILY.xattr.user.k=a\n=b"];
    let tar =
        archive(&[pax(&records), block(b"a", b'0', 0, b"", b"ustar\x0000"), padded(b"abc"), posix(b"b", b'0', b"")]);
    let all = read_all(&tar).unwrap();
    let attributes = &all[0].0.attributes;
    assert_eq!(all[0].1, b"abc");
    assert_eq!((attributes.uid, attributes.gid), (70000, 2097152));
    assert_eq!((attributes.mtime, attributes.mtime_nsec), (-2, 500_000_000));
    assert_eq!(attributes.xattrs[&b"user.e"[..]], b"");
    assert_eq!(attributes.xattrs[&b"user.k"[..]], b"a\n=b");
    assert_eq!(all.len(), 2);
}

#[test]
fn records_of_an_entry_that_unpackers_of_images_pass_over_are_told_of() {
    let records = [
        "SCHILY.acl.access=user::rw-",
        "RHT.security.selinux=x",
        "LIBARCHIVE.xattr.user.a=YQ",
        "LIBARCHIVE.xattr.user.b=Yg",
        "SCHILY.xattr.user.b=b",
        "uname=somebody",
    ];
    let tar = archive(&[pax(&records), posix(b"a", b'0', b""), posix(b"b", b'0', b"")]);
    let mut reader = Reader::new(&tar[..]);
    let a = reader.next_entry().unwrap().unwrap();
    assert_eq!(a.attributes.xattrs.iter().count(), 1);
    assert_eq!(
        reader.passed_over(),
        [&b"SCHILY.acl.access"[..], b"RHT.security.selinux", b"LIBARCHIVE.xattr.user.a"].map(<[u8]>::to_vec)
    );
    reader.next_entry().unwrap().unwrap();
    assert!(reader.passed_over().is_empty());
}

#[test]
fn owners_past_32_bits_are_refused_by_entry() {
    for uid in ["uid=4294967296", "uid=4294967295", "gid=99999999999999999999", "uid=-1"] {
        let error = read_all(&archive(&[pax(&[uid]), posix(b"a/b", b'0', b"")])).unwrap_err();
        assert!(error.is_refusal() && error.to_string().starts_with("entry 'a/b': "), "{error}");
    }
}

#[test]
fn what_is_not_understood_is_refused_by_entry() {
    for (kind, says) in [(b'M', "multi-volume"), (b'N', "type 'N'"), (b'9', "type"), (0xff, "type")] {
        let error = read_all(&archive(&[posix(b"odd", kind, b"")])).unwrap_err();
        assert!(error.to_string().contains("entry 'odd'") && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn damaged_tars_are_refused() {
    let whole = archive(&[posix(b"a", b'0', &[7; 700])]);
    for cut in [100, 512, 600, 1300, 512 + 1024 + 100] {
        assert!(read_all(&whole[..cut]).is_err(), "{cut}");
    }
    for fine in [512 + 1024, 512 + 1024 + 512, 512 + 1024 + 1024] {
        assert!(read_all(&whole[..fine]).is_ok(), "{fine}");
    }
    let mut wrong = whole.clone();
    wrong[0] = b'b';
    assert!(read_all(&wrong).unwrap_err().to_string().contains("checksum"));
    let between = [posix(b"a", b'0', b""), vec![0; 512], posix(b"b", b'0', b"")].concat();
    assert!(read_all(&between).is_err());
    assert!(read_all(&pax(&["path=x"])).is_err());
}

#[test]
fn pax_sparse_files_have_a_map_and_their_true_name() {
    let records = ["GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=true", "GNU.sparse.realsize=10000"];
    let data = [padded(b"2\n0\n5\n9000\n3\n"), b"abcdefgh".to_vec()].concat();
    let tar = archive(&[pax(&records), posix(b"GNUSparseFile.1/x", b'0', &data), posix(b"b", b'0', b"")]);
    let all = read_all(&tar).unwrap();
    let map = vec![Extent { offset: 0, length: 5 }, Extent { offset: 9000, length: 3 }];
    assert_eq!(all[0].0.path.to_bytes(), b"true");
    assert_eq!(all[0].0.kind, Kind::File(Shape { size: 10000, map: Some(map) }));
    assert_eq!(all[0].1, b"abcdefgh");
    assert_eq!(all[1].0.path.to_bytes(), b"b");
    let lie =
        archive(&[pax(&[&records[..], &["size=9000"]].concat()), posix(b"x", b'0', &data), posix(b"b", b'0', b"")]);
    assert!(read_all(&lie).unwrap_err().to_string().contains("sparse"));
}

#[test]
fn old_gnu_sparse_files_have_a_map() {
    let mut header = block(b"s", b'S', 4, b"", b"ustar  \0");
    header[386..397].copy_from_slice(b"00000010000");
    header[398..409].copy_from_slice(b"00000000004");
    header[483..494].copy_from_slice(b"00000020000");
    let all = read_all(&archive(&[seal(header), padded(b"abcd")])).unwrap();
    let map = vec![Extent { offset: 4096, length: 4 }];
    assert_eq!(all[0].0.kind, Kind::File(Shape { size: 8192, map: Some(map) }));
    assert_eq!(all[0].1, b"abcd");
}

#[test]
fn links_devices_and_directories_have_no_data() {
    let tar = archive(&[block(b"l", b'1', 99, b"/t", b"ustar\x0000"), posix(b"b", b'0', b"")]);
    let all = read_all(&tar).unwrap();
    assert_eq!(all[0].0.kind, Kind::HardLink(TreePath::clean(b"t").unwrap()));
    assert_eq!(all.len(), 2);
}

#[test]
fn no_damage_makes_the_reader_panic_or_hang() {
    let records = ["GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=true", "GNU.sparse.realsize=10000"];
    let data = [padded(b"2\n0\n5\n9000\n3\n"), b"abcdefgh".to_vec()].concat();
    let whole = archive(&[
        pax(&records),
        posix(b"s", b'0', &data),
        [block(b"././@LongLink", b'L', 6, b"", b"ustar  \0"), padded(b"gnu/n\0"), posix(b"cut", b'0', b"x")].concat(),
        pax(&["mtime=1.5", "uid=7", "SCHILY.xattr.user.a=b", "path=x"]),
        posix(b"d/", b'5', b""),
        block(b"old", b'S', 4, b"", b"ustar  \0"),
        padded(b"abcd"),
    ]);
    let mut random = blake3::Hasher::new().update(b"damage").finalize_xof();
    for _ in 0..20_000 {
        let mut damaged = whole.clone();
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        let at = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % damaged.len();
        damaged[at] = bytes[2];
        // Half of them with right checksums, so that the damage gets past the header.
        if bytes[3] & 1 == 1 {
            let start = at / 512 * 512;
            let sealed = seal(damaged[start..start + 512].to_vec());
            damaged[start..start + 512].copy_from_slice(&sealed);
        }
        if bytes[4] & 7 == 0 {
            damaged.truncate(usize::from(u16::from_le_bytes([bytes[5], bytes[6]])) % whole.len());
        }
        drop(read_all(&damaged));
    }
}
