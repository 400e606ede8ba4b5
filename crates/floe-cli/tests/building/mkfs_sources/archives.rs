//! Tar archives.

use floe_testkit::skip::{self, Need};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::Command,
};
use tempfile::TempDir;

use super::{Mounted, done, folder, image, run};

#[test]
fn archives_keep_access_control_lists() {
    if !skip::ready(&[Need::Root, Need::Peer("setfacl"), Need::Peer("getfacl")]) {
        return;
    }
    let folder = folder();
    let source = folder.path().join("source");
    fs::write(source.join("file"), "text").expect("written");
    fs::write(source.join("plain"), "text").expect("written");
    fs::create_dir(source.join("directory")).expect("made");
    for (entries, path) in [
        ("u::rw-,u:root:rwx,u:4242:r--,g::r--,g:daemon:r-x,m::rw-,o::---", "file"),
        (
            "u::rwx,u:4242:r-x,g::r-x,m::r-x,o::r-x,d:u::rwx,d:u:root:rwx,d:g::r-x,d:g:777:r-x,d:m::rwx,d:o::---",
            "directory",
        ),
    ] {
        done(Command::new("setfacl").args(["--set", entries, path]).current_dir(&source));
    }
    let lists = |root: &Path| done(Command::new("getfacl").args(["-n", "-R", "."]).current_dir(root)).stdout;
    let expected = String::from_utf8(lists(&source)).expect("text");
    assert!(expected.contains("user:4242:r--") && expected.contains("default:group:777:r-x"), "{expected}");
    for (program, more) in [
        ("tar", &["--acls"][..]),
        ("tar", &["--acls", "--numeric-owner"]),
        ("tar", &["--acls", "--xattrs", "--xattrs-include=*"]),
        ("bsdtar", &["--acls", "--format", "pax"]),
        ("bsdtar", &["--acls", "--format", "pax", "--numeric-owner"]),
    ] {
        let mut archiver = Command::new(program);
        archiver.args(more).args(["-cf", "source.tar", "-C", "source", "."]).current_dir(folder.path());
        if archiver.output().is_err() {
            skip::skipped(&format!("there is no {program}"));
            continue;
        }
        done(&mut archiver);
        for more_of_mkfs in [&[][..], &["-z", "lz4"]] {
            let arguments = [&["source.tar"], more_of_mkfs].concat();
            assert_eq!(run(&folder, &arguments), (Some(0), String::new()), "{program} {more:?}");
            let mounted = Mounted::new(&image(&folder));
            let found = String::from_utf8(lists(&mounted.path(""))).expect("text");
            let sorted = |text: &str| {
                let mut parts: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
                parts.sort();
                parts
            };
            assert_eq!(sorted(&found), sorted(&expected), "{program} {more:?}");
            let mode = fs::metadata(mounted.path("file")).expect("its status").permissions().mode();
            assert_eq!(mode & 0o777, 0o660, "{program} {more:?}");
        }
    }
}

/// A ustar header.
fn header(kind: u8, name: &str, len: usize) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000664");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{len:011o}"));
    put(136, "13727720000");
    put(148, "        ");
    put(257, "ustar\x0000");
    block[156] = kind;
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// A pax archive of one member with these records.
fn pax_archive(path: &Path, kind: u8, name: &str, records: &[(&str, &[u8])], data: &[u8]) {
    let mut text = Vec::new();
    for (name, value) in records {
        let record = [b" ", name.as_bytes(), b"=", value, b"\n"].concat();
        let mut len = record.len() + 1;
        while len != record.len() + len.to_string().len() {
            len += 1;
        }
        text.extend(len.to_string().into_bytes());
        text.extend(record);
    }
    let mut archive = Vec::new();
    for (kind, name, data) in [(b'x', "records", text.as_slice()), (kind, name, data)] {
        archive.extend(header(kind, name, data.len()));
        archive.extend_from_slice(data);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    fs::write(path, archive).expect("written");
}

#[test]
fn access_control_lists_that_cannot_be_kept_are_reported() {
    let folder = folder();
    let archive = folder.path().join("made.tar");
    for (record, text, exit, words) in [
        (
            "SCHILY.acl.access",
            "user::rw-,user:no-such-user:r--,group::r--,mask::r--,other::---",
            1,
            "user that this machine does not have",
        ),
        ("SCHILY.acl.access", "user::rw-,rubbish", 1, "invalid entry in its access control list: rubbish"),
        ("SCHILY.acl.default", "user::rw-,group::r--,other::---", 1, "does not support"),
        ("SCHILY.acl.ace", "everyone@:rwx::allow", 0, "was omitted"),
    ] {
        pax_archive(&archive, b'0', "member", &[(record, text.as_bytes())], b"text");
        let (code, said) = run(&folder, &["made.tar"]);
        assert_eq!(code, Some(exit), "{text}: {said}");
        assert!(said.contains("member: ") && said.contains(words) && said.lines().count() == 1, "{text}: {said}");
        assert_eq!(image(&folder).exists(), exit == 0, "{text}");
    }
}

#[test]
fn attributes_that_cannot_be_kept_are_reported_by_both_programs() {
    let folder = folder();
    let archive = folder.path().join("made.tar");
    let drop_in = |folder: &TempDir| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg0("mkfs.erofs").args(["--quiet", "--tar=f", "image", "made.tar"]).current_dir(folder.path());
        let output = done(&mut command);
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    for (names, words) in [
        (&["SCHILY.xattr.lustre.lov"][..], "1 extended attribute was left out: the format cannot store it\n"),
        (
            &["SCHILY.xattr.system.nfs4_acl", "SCHILY.xattr.user.kept", "SCHILY.xattr.user."],
            "2 extended attributes were left out: the format cannot store them\n",
        ),
        (&["SCHILY.xattr.user.kept"], ""),
    ] {
        let records: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &b"1"[..])).collect();
        pax_archive(&archive, b'0', "member", &records, b"text");
        let expected = |prefix: &str| if words.is_empty() { String::new() } else { format!("{prefix}{words}") };
        assert_eq!(run(&folder, &["made.tar"]), (Some(0), expected("floe: ")), "{names:?}");
        assert_eq!(drop_in(&folder), (Some(0), expected("<W> erofs: ")), "{names:?}");
    }
}

#[test]
fn files_that_are_neither_archives_nor_images_are_refused_by_type() {
    let folder = folder();
    let mut late = vec![0; 40 << 10];
    late[20_000] = 1;
    let mut ext4 = vec![0; 40 << 10];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let files: [(&str, &[u8], &str); 7] = [
        ("elf", &[b"\x7fELF".as_slice(), &[7; 2000]].concat(), "a program"),
        ("zip", &[b"PK\x03\x04".as_slice(), &[7; 2000]].concat(), "zip"),
        ("ext4", &ext4, "an ext4 image"),
        ("late", &late, "neither a directory nor a tar archive"),
        ("zeros", &vec![0; 2 << 20], "neither a directory nor a tar archive"),
        ("text", &b"text\n".repeat(1000), "neither a directory nor a tar archive"),
        ("cut", b"", "it is empty"),
    ];
    for (name, bytes, _) in files {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    for (name, _, words) in &files {
        let (code, said) = run(&folder, &[name]);
        assert_eq!(code, Some(1), "{name}: {said}");
        assert!(said.contains(words) && said.contains(name) && said.lines().count() == 1, "{name}: {said}");
        assert!(!image(&folder).exists(), "{name}");
    }
    done(Command::new("tar").args(["-cf", "empty.tar", "-T", "/dev/null"]).current_dir(folder.path()));
    done(Command::new("gzip").args(["-k", "empty.tar"]).current_dir(folder.path()));
    for name in ["empty.tar", "empty.tar.gz"] {
        assert_eq!(run(&folder, &[name]), (Some(0), String::new()), "{name}");
    }
}

#[test]
fn members_with_overflowing_sizes_are_refused() {
    let folder = folder();
    let archive = folder.path().join("made.tar");
    for kind in [b'0', b'1', b'2', b'3', b'5', b'6', b'7', b'D', b'L', b'K', b'x', b'g', b'V', b'S', b'M'] {
        for size in ["18446744073709550080", "18446744073709551615", "18446744073709551104", "9223372036854775807"] {
            pax_archive(&archive, kind, "member", &[("size", size.as_bytes())], b"");
            // The build must end with an image or a message.
            let (code, said) = run(&folder, &["made.tar"]);
            assert!(matches!(code, Some(0 | 1)) && said.lines().count() <= 1, "{}: {size}: {said}", char::from(kind));
            if kind == b'D' {
                assert!(said.contains("truncated"), "{said}");
            }
        }
    }
    let sparse: [&[(&str, &[u8])]; 3] = [
        &[("GNU.sparse.map", b"18446744073709551000,600"), ("GNU.sparse.realsize", b"18446744073709551615")],
        &[("GNU.sparse.map", b"0,18446744073709551615"), ("GNU.sparse.realsize", b"18446744073709551615")],
        &[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"1")],
    ];
    for records in sparse {
        pax_archive(&archive, b'0', "member", records, &[b'9'; 512]);
        let (code, said) = run(&folder, &["made.tar"]);
        assert!(code == Some(1) && said.lines().count() == 1, "{records:?}: {code:?} {said}");
    }
}
