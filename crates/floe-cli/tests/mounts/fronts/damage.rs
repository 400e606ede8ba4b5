//! SquashFS images that are damaged, or hold what EROFS cannot express, with the kernel's EROFS in front.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use floe_testkit::{
    check_rows,
    corpus::{Format, Materialised},
};
use rustix::fs::{lgetxattr, llistxattr};

use crate::support::{
    Served,
    front::ready,
    hostile_squashfs::{self, Squashfs},
};

/// A mount of an image.
struct Scene {
    served: Served,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new(image: &[u8], front: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        fs::write(&path, image).expect("written");
        let image = Materialised::single(path, Format::Squashfs);
        Self { served: Served::new(&image, front).expect("mounted"), _folder: folder }
    }

    fn path(&self) -> PathBuf {
        self.served.path()
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(directory)?;
    let names: io::Result<Vec<String>> =
        entries.map(|entry| Ok(entry?.file_name().into_string().expect("ASCII"))).collect();
    names.map(|mut names| {
        names.sort();
        names
    })
}

#[test]
fn a_damaged_listing_does_not_hide_the_others() {
    if !ready() {
        return;
    }
    const COUNT: usize = 1500;
    const DAMAGED_DIRECTORY: usize = 1200;
    let mut image = Squashfs::with_directories(COUNT as u32, 0);
    // The second block holds the listings of about 390 directories, and parts of those at its ends.
    hostile_squashfs::damage_listings(&mut image, 1);
    // There is no export table, so inodes after this one are not found.
    hostile_squashfs::damage_directory(&mut image, DAMAGED_DIRECTORY);
    let scene = Scene::new(&image, "kernel");
    assert_eq!(names(&scene.path()).expect("the root is sound").len(), COUNT);
    let listed: Vec<bool> = (0..DAMAGED_DIRECTORY)
        .map(|number| match names(&scene.path().join(format!("w{number:06}"))) {
            Ok(names) => {
                assert_eq!(names, ["f"], "directory {number}");
                true
            }
            Err(_) => false,
        })
        .collect();
    let lost: Vec<usize> = (0..DAMAGED_DIRECTORY).filter(|number| !listed[*number]).collect();
    let (first, last) = (lost[0], lost[lost.len() - 1]);
    assert!((380..400).contains(&first) && (770..790).contains(&last), "{first} to {last}");
    assert_eq!(lost.len(), last - first + 1, "all between {first} and {last} are lost");
}

/// The attributes of the file, with the lengths of their values.
fn attributes(file: &Path) -> io::Result<BTreeMap<String, usize>> {
    let (mut list, mut value) = (vec![0; 65_536], vec![0; 65_536]);
    let len = llistxattr(file, &mut list[..])?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).expect("ASCII");
            let len = lgetxattr(file, name.as_str(), &mut value[..])?;
            assert!(value[..len].iter().all(|byte| *byte == 7), "{name}");
            Ok((name, len))
        })
        .collect()
}

#[test]
fn attributes_that_do_not_fit_are_left_out_singly() {
    if !ready() {
        return;
    }
    /// User attributes with values of these lengths, and the numbers of those that the front has.
    type Row = (&'static [usize], &'static [usize]);
    const LATE: [usize; 18] = {
        let mut lens = [65_536; 18];
        lens[17] = 5;
        lens
    };
    let rows: [Row; 7] = [
        (&[3, 65_536, 4], &[0, 2]),
        (&[65_536], &[]),
        (&[65_535], &[0]),
        // All attributes of an inode have 256 KiB.
        (&[60_000, 60_000, 60_000, 60_000, 60_000, 5], &[0, 1, 2, 3, 5]),
        (&[65_535, 65_535, 65_535, 65_535, 9], &[0, 1, 2, 4]),
        // The first MiB of values is looked at.
        (&LATE[3..], &[14]),
        (&LATE, &[]),
    ];
    check_rows(
        &rows,
        |(lens, _)| format!("{lens:?}"),
        |(lens, kept)| {
            let image = Squashfs::with_values(&lens.iter().map(|len| (0, *len)).collect::<Vec<_>>());
            let expected: BTreeMap<String, usize> =
                kept.iter().map(|number| (format!("user.{number:04}"), lens[*number])).collect();
            let all = lens.iter().enumerate().map(|(number, len)| (format!("user.{number:04}"), *len)).collect();
            let mut told = Vec::new();
            for (front, expected) in [("fuse", all), ("kernel", expected)] {
                let scene = Scene::new(&image, front);
                match attributes(&scene.path().join("f")) {
                    Ok(found) if found == expected => {}
                    other => told.push(format!("front={front}: {other:?}")),
                }
            }
            told
        },
    );
}

#[test]
fn names_of_256_bytes_are_left_out_singly() {
    if !ready() {
        return;
    }
    let name = |first: &str, len: usize| format!("{first}{}", "n".repeat(len - first.len()));
    let long = [name("b", 256), name("c", 255), name("d", 256)];
    let all = [&["a".to_owned()][..], &long, &["e".to_owned()]].concat();
    let image = Squashfs::with_names(&all);
    let rows = [("fuse", all.clone()), ("kernel", all.iter().filter(|name| name.len() < 256).cloned().collect())];
    check_rows(
        &rows,
        |(front, _)| (*front).to_owned(),
        |(front, expected): &(&str, Vec<String>)| {
            let scene = Scene::new(&image, front);
            let mut told = Vec::new();
            match names(&scene.path()) {
                Ok(found) if found == *expected => {}
                other => told.push(format!("listed {other:?}")),
            }
            for name in &all {
                let found = fs::symlink_metadata(scene.path().join(name)).map(|_| ());
                if found.is_ok() != expected.contains(name) {
                    told.push(format!("{} bytes: {found:?}", name.len()));
                }
            }
            told
        },
    );
}

#[test]
fn a_listing_does_not_hold_the_attributes_of_its_files() {
    if !ready() {
        return;
    }
    const FILE_COUNT: u32 = 1000;
    const GROWTH_BYTES_MAX: u64 = 40 << 20;
    // Each file has nearly as many attributes as fit in EROFS.
    let scene = Scene::new(&Squashfs::with_shared_attributes(FILE_COUNT, 4, 64_000), "kernel");
    let before = scene.served.resident_bytes_max();
    assert_eq!(names(&scene.path()).expect("listed").len(), FILE_COUNT as usize);
    let growth = scene.served.resident_bytes_max() - before;
    assert!(growth <= GROWTH_BYTES_MAX, "a listing takes {} MiB", growth >> 20);
}
