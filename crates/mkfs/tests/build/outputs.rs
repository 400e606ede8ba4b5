//! The output path: existing files there, and links that lead to it.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use floe_mkfs::{NoProgress, Options, Source, Times, build};
use floe_testkit::skip::{Need, ready, skipped};
use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};

use crate::raw_archives::member;

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

/// Fails unless a build ends with this message and changes nothing in the folder.
fn check_refused(folder: &Path, output: &str, source: Source, message: &str) {
    let names = || {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<_> = entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().len())).collect();
        names.sort();
        names
    };
    let before = names();
    let error = build(&Options::new(folder.join(output)), &[source], &mut NoProgress).expect_err(output).to_string();
    let expected = message.replace("FOLDER", &folder.display().to_string());
    assert!(error.starts_with(&expected) && !error.contains('\n'), "{output}: {error}");
    assert_eq!(names(), before, "{output}");
}

#[test]
fn outputs_that_lead_nowhere_are_refused() {
    let folder = scene();
    symlink("round", folder.path().join("about")).unwrap();
    symlink("about", folder.path().join("round")).unwrap();
    let long = "x".repeat(300);
    for (output, message) in [
        ("round", "cannot look at the image FOLDER/round: Too many levels of symbolic links"),
        (&long, "cannot look at the image FOLDER/xxx"),
        ("source/text/image", "cannot look at the image FOLDER/source/text/image: Not a directory"),
    ] {
        check_refused(folder.path(), output, Source::Directory(folder.path().join("source")), message);
    }
}

#[test]
fn an_output_is_no_source() {
    let folder = scene();
    let archive = folder.path().join("source.tar");
    fs::write(&archive, [member("text", b'0', b"1"), vec![0; 1024]].concat()).unwrap();
    symlink("source.tar", folder.path().join("link")).unwrap();
    fs::hard_link(&archive, folder.path().join("other")).unwrap();
    for output in ["source.tar", "link", "other"] {
        let message = format!("the output FOLDER/{output} is also a source");
        check_refused(folder.path(), output, Source::Tar(archive.clone()), &message);
    }
}

#[test]
fn the_companions_of_the_previous_image_are_not_in_the_next_one() {
    let folder = scene();
    let (source, image) = (folder.path().join("source"), folder.path().join("source/image"));
    symlink("source/image", folder.path().join("link")).unwrap();
    let build = |output: &str| {
        let mut options = Options::new(folder.path().join(output));
        options.times = Times::All(0);
        options.companions = vec![folder.path().join("source/image.companion"), folder.path().join("source/none")];
        build(&options, &[Source::Directory(source.clone())], &mut NoProgress).unwrap()
    };
    let first = build("source/image");
    fs::write(folder.path().join("source/image.companion"), "{}").unwrap();
    for output in ["link", "source/image"] {
        let next = build(output);
        assert_eq!(next.uuid, first.uuid, "{output}");
        assert!(next.notes().iter().any(|note| note.contains("image.companion is inside the source")), "{output}");
    }
    assert!(image.exists());
}
