//! The output path: existing files there, and links that lead to it.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use floe_mkfs::{NoProgress, Options, Source, build};
use floe_testkit::skip::{Need, ready, skipped};
use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};

const ACL: &str = "system.posix_acl_access";

/// A folder with a small tree in `source`.
fn scene() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("source")).unwrap();
    fs::write(folder.path().join("source/text"), "some text\n".repeat(100)).unwrap();
    folder
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1000];
    match getxattr(path, name, &mut value) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn a_replaced_file_keeps_its_access_control_list_and_attributes() {
    let folder = scene();
    let (image, source) = (folder.path().join("image"), Source::Directory(folder.path().join("source")));
    let entry = |tag: u8, rights: u8, id: u32| [&[tag, 0, rights, 0], &id.to_le_bytes()[..]].concat();
    let none = u32::MAX;
    // The owner, user 4242, the group, the mask, others. The mode has the mask in its group bits.
    let entries = [entry(1, 6, none), entry(2, 6, 4242), entry(4, 0, none), entry(0x10, 6, none), entry(0x20, 0, none)];
    let list = [vec![2, 0, 0, 0], entries.concat()].concat();
    fs::write(&image, "what was there before").unwrap();
    if let Err(error) = setxattr(&image, ACL, &list, XattrFlags::empty()) {
        return skipped(&format!("{}: no access control lists: {error}", image.display()));
    }
    let mut given = vec![(ACL, list.clone()), ("user.a", b"1".to_vec())];
    if ready(&[Need::Root]) {
        given.push(("security.selinux", b"system_u:object_r:tmp_t:s0\0".to_vec()));
    }
    for (name, value) in &given[1..] {
        setxattr(&image, *name, value, XattrFlags::empty()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    build(&Options::new(&image), &[source], &mut NoProgress).unwrap();
    for (name, value) in given {
        assert_eq!(attribute(&image, name), Some(value), "{name}");
    }
    assert_eq!(fs::metadata(&image).unwrap().mode() & 0o777, 0o660);
}

#[test]
fn a_replaced_file_gets_no_access_control_list_from_its_directory() {
    let folder = scene();
    let (image, source) = (folder.path().join("image"), Source::Directory(folder.path().join("source")));
    File::create(&image).unwrap();
    fs::set_permissions(&image, Permissions::from_mode(0o640)).unwrap();
    let entry = |tag: u8, rights: u8, id: u32| [&[tag, 0, rights, 0], &id.to_le_bytes()[..]].concat();
    let entries = [(1, 6, u32::MAX), (2, 6, 4242), (4, 6, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)];
    let entries = entries.map(|(tag, rights, id)| entry(tag, rights, id)).concat();
    let list = [vec![2, 0, 0, 0], entries].concat();
    if let Err(error) = setxattr(folder.path(), "system.posix_acl_default", &list, XattrFlags::empty()) {
        return skipped(&format!("{}: no access control lists: {error}", folder.path().display()));
    }
    build(&Options::new(&image), &[source], &mut NoProgress).unwrap();
    assert_eq!(attribute(&image, ACL), None);
    assert_eq!(fs::metadata(&image).unwrap().mode() & 0o777, 0o640);
}
