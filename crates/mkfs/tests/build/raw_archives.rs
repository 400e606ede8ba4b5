//! Archives whose headers are unusual, and files that only resemble an archive.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use floe_mkfs::{Error, NoProgress, Options, Source, Summary, build};
use tar::{EntryType, Header};

/// An extended header with these records.
fn records(kind: u8, records: impl IntoIterator<Item = (String, Vec<u8>)>) -> Vec<u8> {
    let mut data = Vec::new();
    for (name, value) in records {
        let rest = name.len() + value.len() + 3;
        let len = (rest + 1..).find(|len| len.to_string().len() + rest == *len).unwrap();
        data.extend(format!("{len} {name}=").bytes().chain(value).chain([b'\n']));
    }
    member("records", kind, &data)
}

fn record(name: &str, value: &[u8]) -> (String, Vec<u8>) {
    (name.to_owned(), value.to_vec())
}

/// Builds an image of an archive with these members.
fn built(folder: &Path, members: &[Vec<u8>]) -> Result<Summary, Error> {
    let path = folder.join("made.tar");
    fs::write(&path, [members.concat(), vec![0; 1024]].concat()).unwrap();
    build(&Options::new(folder.join("image")), &[Source::Tar(path)], &mut NoProgress)
}

#[test]
fn global_records_cannot_multiply_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = || member("file", b'0', b"");
    let few = records(b'g', [record("comment", &[b'c'; 1000]), record("SCHILY.xattr.user.a", b"1")]);
    assert_eq!(built(folder.path(), &[few, file()]).unwrap().inodes, 2);
    // Few bytes each, but many.
    let many = records(b'g', (0..3000).map(|number| (format!("SCHILY.xattr.{number}"), Vec::new())));
    let error = built(folder.path(), &[many, file()]).expect_err("there are too many").to_string();
    assert!(error.contains("global extended headers exceed") && error.contains("byte 0"), "{error}");
}

#[test]
fn an_empty_record_cancels_a_global_one() {
    let folder = tempfile::tempdir().unwrap();
    let plain = built(folder.path(), &[member("file", b'0', b"")]).unwrap();
    let global = || records(b'g', [record("uid", b"1234")]);
    let changed = built(folder.path(), &[global(), member("file", b'0', b"")]).unwrap();
    assert_ne!(plain.uuid, changed.uuid);
    let cancel = |kind| records(kind, [record("uid", b"")]);
    for (what, kind) in [("for one member", b'x'), ("for all members", b'g')] {
        let cancelled = built(folder.path(), &[global(), cancel(kind), member("file", b'0', b"")]).unwrap();
        assert_eq!(plain.uuid, cancelled.uuid, "{what}");
    }
}

#[test]
fn names_of_members_are_not_mistaken_for_compression() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["]", "LZIP/a", "BZh9.txt", "\x04\"M\x18", "\x1f"] {
        let summary = built(folder.path(), &[member(name, b'0', b"data")]);
        let summary = summary.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(summary.content_bytes, 4, "{name:?}");
    }
}

#[test]
fn zeros_may_follow_a_gzip_archive() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.tar");
    let archive = [member("one", b'0', b"1"), member("two", b'0', b"2"), vec![0; 1024]].concat();
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, bytes).unwrap();
        encoder.finish().unwrap()
    };
    let (first, second) = archive.split_at(700);
    let zeros = vec![0; 3 << 20];
    for (what, bytes, words) in [
        ("zeros", [gzip(&archive), zeros.clone()].concat(), None),
        ("members", [gzip(first), gzip(second)].concat(), None),
        ("members, zeros", [gzip(first), gzip(second), vec![0; 5]].concat(), None),
        ("text", [gzip(&archive), b"text".to_vec()].concat(), Some("other data follows the compressed data")),
        ("zeros, text", [gzip(&archive), vec![0; 5], b"text".to_vec()].concat(), Some("other data follows")),
        ("half a member", [gzip(first), gzip(second)[..12].to_vec()].concat(), Some("")),
    ] {
        fs::write(&path, bytes).unwrap();
        let options = Options::new(folder.path().join("image"));
        let result = build(&options, &[Source::Tar(path.clone())], &mut NoProgress);
        match (result.map_err(|error| error.to_string()), words) {
            (Ok(summary), None) => assert_eq!(summary.files, 2, "{what}"),
            (Err(said), Some(words)) => assert!(said.contains("cannot decompress") && said.contains(words), "{said}"),
            (result, _) => panic!("{what}: {result:?}"),
        }
    }
}

#[test]
fn invalid_attributes_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let long = format!("user.{}", "x".repeat(251));
    let longest = &long[..255];
    let acl = |entries: &[[u8; 8]]| [&[2, 0, 0, 0][..], &entries.concat()].concat();
    let entry = |tag: u8, permissions: u8| [tag, 0, permissions, 0, 255, 255, 255, 255];
    let sound = acl(&[entry(1, 6), entry(4, 4), entry(0x20, 4)]);
    for (name, value, is_kept) in [
        ("user.a", vec![], true),
        (longest, b"1".to_vec(), true),
        (&long, b"1".to_vec(), false),
        ("user.", b"1".to_vec(), false),
        ("security.", b"1".to_vec(), false),
        ("user.a\0b", b"1".to_vec(), false),
        ("system.posix_acl_access", sound.clone(), true),
        ("system.posix_acl_access", b"text".to_vec(), false),
        ("system.posix_acl_access", sound[..11].to_vec(), false),
        ("system.posix_acl_access", acl(&[entry(3, 6)]), false),
        ("system.posix_acl_access", acl(&[entry(1, 8)]), false),
        ("system.posix_acl_access", [&[1][..], &sound[1..]].concat(), false),
        ("system.posix_acl_access.", b"1".to_vec(), false),
    ] {
        let header = records(b'x', [record(&format!("SCHILY.xattr.{name}"), &value)]);
        let summary = built(folder.path(), &[header, member("file", b'0', b"")]).unwrap();
        assert_eq!(summary.xattrs_left_out, u64::from(!is_kept), "{name:?} {value:?}");
    }
}

#[test]
fn trees_are_no_deeper_than_readers_go() {
    let folder = tempfile::tempdir().unwrap();
    let deep = |depth: usize| {
        let path = format!("{}file", "a/".repeat(depth));
        built(folder.path(), &[records(b'x', [record("path", path.as_bytes())]), member("x", b'0', b"1")])
    };
    assert_eq!(deep(4095).unwrap().directories, 4096);
    let error = deep(4096).expect_err("it is too deep").to_string();
    assert!(error.starts_with("a/a/a/") && error.ends_with("…: directories more than 4096 deep"), "{error}");
}

#[test]
fn inodes_with_too_many_attributes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let attributes = (0..9).map(|number| record(&format!("SCHILY.xattr.user.{number}"), &[b'x'; 65000]));
    let error = built(folder.path(), &[records(b'x', attributes), member("d/file", b'0', b"")]);
    let error = error.expect_err("they do not fit").to_string();
    assert_eq!(error, "d/file: it has too many extended attributes");
}

#[test]
fn short_files_are_no_archives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes");
    for (content, words) in [("", "it is empty"), ("some words\n", "neither a directory nor a tar archive")] {
        fs::write(&path, content).unwrap();
        let options = Options::new(folder.path().join("image"));
        let error = build(&options, &[Source::Tar(path.clone())], &mut NoProgress).expect_err("no archive").to_string();
        assert!(error.contains(words) && !error.contains("truncated"), "{content:?}: {error}");
    }
}

/// A sparse member in format 1.0 with this many parts of one byte, spread evenly over `size` bytes.
fn scattered(count: u64, size: u64) -> Vec<u8> {
    let parts = (0..count).map(|number| format!("{}\n1\n", number * (size / count)));
    let mut data = format!("{count}\n{}", parts.collect::<String>()).into_bytes();
    data.resize(data.len().next_multiple_of(512), 0);
    data.extend(vec![b'x'; usize::try_from(count).unwrap()]);
    let size = size.to_string();
    let marks = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", &size)];
    let marks = records(b'x', marks.map(|(name, value)| record(name, value.as_bytes())));
    [marks, member("scattered", b'0', &data)].concat()
}

#[test]
fn scattered_data_gives_a_small_image_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let summary = built(folder.path(), &[scattered(100, 1 << 40)]).unwrap();
    assert!(summary.image_bytes < 50 << 20, "{} bytes", summary.image_bytes);
    // The map, and a page or more for each part.
    let allocated_len = fs::metadata(folder.path().join("image")).unwrap().blocks() * 512;
    assert!(allocated_len < 30 << 20, "{allocated_len} bytes");
    let error = built(folder.path(), &[scattered(300_000, 1 << 44)]).expect_err("it is too much").to_string();
    assert!(error.contains("300000 bytes, is spread over 17592186044416 bytes"), "{error}");
}

#[test]
fn members_after_a_lone_zero_block_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| member(name, b'0', b"1");
    let zeros = |count: usize| vec![0; count * 512];
    for (what, members, files, warnings) in [
        ("one block", vec![file("a"), zeros(1), file("b")], 2, 1),
        ("several times", vec![file("a"), zeros(1), file("b"), zeros(1), file("c")], 3, 1),
        ("the end marker", vec![file("a"), zeros(2), file("b")], 1, 0),
        ("other bytes", vec![file("a"), zeros(1), vec![b'x'; 512]], 1, 0),
    ] {
        let summary = built(folder.path(), &members).unwrap_or_else(|error| panic!("{what}: {error}"));
        let notes = summary.notes();
        assert_eq!((summary.files, notes.len()), (files, warnings), "{what}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains("members follow the zero block at byte ")), "{notes:?}");
    }
}

#[test]
fn sparse_members_need_a_map() {
    let folder = tempfile::tempdir().unwrap();
    let sparse = |marks: &[(&str, &str)], data: &[u8]| {
        let marks = records(b'x', marks.iter().map(|(name, value)| record(name, value.as_bytes())));
        built(folder.path(), &[marks, member("x", b'0', data)])
    };
    let (size, real_size) = (("GNU.sparse.size", "5000"), ("GNU.sparse.realsize", "5000"));
    let summary = sparse(&[size, ("GNU.sparse.numblocks", "0")], b"").unwrap();
    assert_eq!(summary.content_bytes, 5000);
    let no_map = "x: it is a sparse file without a map";
    let map = b"1\n0\n1\n";
    for (marks, data, words) in [
        (&[size][..], &b"abc"[..], no_map),
        (&[real_size], b"abc", no_map),
        (&[size, ("GNU.sparse.numblocks", "1")], b"abc", no_map),
        (&[size, ("GNU.sparse.numblocks", "0")], b"abc", "do not match the length of its data"),
        (&[("GNU.sparse.map", "")], b"abc", no_map),
        (&[real_size, ("GNU.sparse.major", "0"), ("GNU.sparse.minor", "1")], b"abc", no_map),
        (&[real_size, ("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0")], map, "sparse format is unknown"),
    ] {
        let error = sparse(marks, data).expect_err("it is refused").to_string();
        assert!(error.contains(words), "{marks:?}: {error}");
    }
}

/// A member whose header has this magic with version, and these bytes at other offsets.
fn with_magic(magic: &[u8; 8], name: &str, kind: u8, more: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = member(name, kind, b"");
    for (offset, part) in [&[(257, &magic[..])], more].concat() {
        bytes[offset..offset + part.len()].copy_from_slice(part);
    }
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes[..512].iter().map(|byte| u32::from(*byte)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes
}

#[test]
fn ustar_headers_need_no_version() {
    let folder = tempfile::tempdir().unwrap();
    let uuid = |members: &[Vec<u8>]| built(folder.path(), members).map(|summary| summary.uuid);
    let prefix = [(345, &b"dir/sub"[..])];
    let numbers = [(329, &b"0000005\0"[..]), (337, &b"0000003\0"[..])];
    let members = |magic| [with_magic(magic, "name", b'0', &prefix), with_magic(magic, "device", b'3', &numbers)];
    let expected = uuid(&members(b"ustar\x0000")).unwrap();
    for magic in [b"ustar\0\0\0", b"ustar\0  "] {
        assert_eq!(uuid(&members(magic)).unwrap(), expected, "{magic:?}");
    }
    // Without a magic, only records have the numbers.
    let magic = [0; 8];
    let bare = || with_magic(&magic, "device", b'3', &[]);
    assert!(uuid(&[bare()]).unwrap_err().to_string().contains("invalid device number"));
    let marks = records(b'x', [record("SCHILY.devmajor", b"5"), record("SCHILY.devminor", b"3")]);
    assert_eq!(uuid(&[marks, bare()]).unwrap(), uuid(&[with_magic(b"ustar\x0000", "device", b'3', &numbers)]).unwrap());
}

/// The header of a member in the format of ustar. The names are stored unchanged.
pub(crate) fn header(kind: EntryType, name: &str, link: &str, len: usize) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_600_000_000);
    header.set_size(len as u64);
    header.set_cksum();
    header
}

/// A member with this content, padded to whole blocks.
pub(crate) fn member(name: &str, kind: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = [header(EntryType::new(kind), name, "", data.len()).as_bytes(), data].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
