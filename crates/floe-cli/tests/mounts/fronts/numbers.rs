//! SquashFS images whose inode numbers do not lead to their inodes, with the kernel's EROFS in front. Some programs write a wrong
//! export table, or wrong numbers; a reader that only follows the directories does not notice.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use floe_squashfs::format::{BaseInode, FLAG_EXPORTABLE, SuperBlock};
use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Format, Materialised},
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};

use crate::support::{Served, front::ready};

const ABSENT: u64 = u64::MAX;

/// An image whose inode table and export table are not compressed.
struct Image {
    bytes: Vec<u8>,
    superblock: SuperBlock,
    /// The references of the inodes, by number; the first inode has number 1.
    references: Vec<u64>,
}

impl Image {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("made");
        let superblock = SuperBlock::from_prefix(&bytes).expect("a superblock");
        let mut image = Self { bytes, superblock, references: Vec::new() };
        image.references =
            image.export().map(|at| u64::from_le_bytes(image.bytes[at..at + 8].try_into().unwrap())).collect();
        image
    }

    /// The offset of the metadata block with the export table.
    fn export_block(&self) -> usize {
        let at = self.superblock.lookup_table_start as usize;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes")) as usize
    }

    /// The offsets of the entries of the export table.
    fn export(&self) -> impl Iterator<Item = usize> + use<> {
        assert!(self.superblock.inodes <= 1024, "the table has one block");
        let start = self.export_block() + 2;
        (0..self.superblock.inodes as usize).map(move |index| start + 8 * index)
    }

    /// Changes each entry of the export table.
    fn exporting(mut self, entry: impl Fn(&[u64], usize) -> u64) -> Vec<u8> {
        for (index, at) in self.export().enumerate() {
            let entry = entry(&self.references, index);
            self.bytes[at..at + 8].copy_from_slice(&entry.to_le_bytes());
        }
        self.bytes
    }

    /// Changes each inode number. The dirents keep their numbers.
    fn numbering(mut self, number: impl Fn(u32) -> u32) -> Self {
        for (reference, old) in self.references.iter().zip(1..) {
            let block = self.superblock.inode_table_start + (reference >> 16);
            let at = block as usize + 2 + (reference & 0xffff) as usize;
            let field = at + BaseInode::SIZE - 4;
            assert_eq!(self.bytes[field..field + 4], u32::to_le_bytes(old), "the place of inode {old}");
            self.bytes[field..field + 4].copy_from_slice(&number(old).to_le_bytes());
        }
        self
    }

    /// Takes the export table away.
    fn without_export(mut self) -> Vec<u8> {
        self.superblock.lookup_table_start = ABSENT;
        self.superblock.flags &= !FLAG_EXPORTABLE;
        self.bytes[..SuperBlock::SIZE].copy_from_slice(&self.superblock.to_bytes());
        self.bytes
    }

    /// States a shorter length for the block of the export table.
    fn with_short_export(mut self, len: u16) -> Vec<u8> {
        let at = self.export_block();
        self.bytes[at..at + 2].copy_from_slice(&(len | 0x8000).to_le_bytes());
        self.bytes
    }

    /// Makes the block of the export table undecodable.
    fn with_damaged_export(mut self) -> Vec<u8> {
        let at = self.export_block();
        self.bytes[at + 1] &= 0x7f;
        self.bytes
    }
}

/// A tree with an inode of every kind that the front places differently, and more inodes than fit in one block.
fn tree(root: &Path) {
    for directory in 0..12 {
        let path = root.join(format!("d{directory:02}")).join("below");
        fs::create_dir_all(&path).expect("ours");
        for file in 0..30 {
            fs::write(path.join(format!("f{file}")), format!("{directory} {file}\n").repeat(file * 17)).expect("ours");
        }
    }
    let mixed = root.join("mixed");
    fs::create_dir_all(mixed.join("empty")).expect("ours");
    fs::write(mixed.join("nothing"), "").expect("ours");
    fs::write(mixed.join("large"), b"0123456789abcdef".repeat(300_000 / 16)).expect("ours");
    let sparse = fs::File::create(mixed.join("sparse")).expect("ours");
    sparse.set_len(3 << 20).expect("ours");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 1 << 20).expect("ours");
    symlink("short", mixed.join("link")).expect("ours");
    symlink("long/".repeat(400), mixed.join("long link")).expect("ours");
    fs::hard_link(mixed.join("large"), mixed.join("hard link")).expect("ours");
    let modes = Mode::from_raw_mode(0o644);
    mknodat(CWD, mixed.join("pipe"), FileType::Fifo, modes, 0).expect("root");
    mknodat(CWD, mixed.join("device"), FileType::CharacterDevice, modes, makedev(1, 7)).expect("root");
    fs::write(mixed.join("attributes"), "x").expect("ours");
    for path in [mixed.join("attributes"), mixed.clone()] {
        lsetxattr(&path, "user.some", &[7; 200], XattrFlags::empty()).expect("the file system has attributes");
    }
}

/// The tree, and the image of it.
fn scene() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, image) = (folder.path().join("tree"), folder.path().join("image"));
    tree(&root);
    let mut command = Command::new(peer("mksquashfs").expect("it is there"));
    command.arg(&root).arg(&image).args(["-noI", "-noId", "-quiet", "-no-progress"]);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    (folder, image)
}

fn walked(path: &Path) -> Result<Manifest, String> {
    walk::directory(path, DirectoryWalk::default()).map_err(|error| error.to_string())
}

/// The tree as a program mounts it.
fn mounted(image: &Path, by: &str) -> Result<Manifest, String> {
    let image = Materialised::single(image, Format::Squashfs);
    match by {
        "squashfs" => walked(&KernelMount::new(&image)?.path()),
        front => {
            let served = Served::new(&image, front)?;
            let found = walked(&served.path());
            let told = served.end();
            if told.is_empty() { found } else { Err(told.join("; ")) }
        }
    }
}

/// Compares mounts of a changed image with that of the sound one.
fn complaints(image: &[u8], sound: &Manifest, mounts: &[&str], comparison: &Comparison) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    fs::write(&path, image).expect("written");
    let mut told = Vec::new();
    for by in mounts {
        match mounted(&path, by) {
            Ok(found) => told
                .extend(differences(sound, &found, comparison).into_iter().take(5).map(|told| format!("{by}: {told}"))),
            Err(error) => told.push(format!("{by}: {error}")),
        }
    }
    told
}

#[test]
fn a_wrong_export_table_changes_nothing() {
    if !ready() || !skip::ready(&[Need::KernelSquashfs, Need::Peer("mksquashfs")]) {
        return;
    }
    type Change = fn(Image) -> Vec<u8>;
    let rows: [(&str, Change); 15] = [
        ("as it was", |image| image.exporting(|references, index| references[index])),
        ("zeros", |image| image.exporting(|_, _| 0)),
        ("ones", |image| image.exporting(|_, _| u64::MAX)),
        ("the root only", |image| {
            let root = image.superblock.root_inode;
            image.exporting(move |_, _| root)
        }),
        ("the next inode", |image| image.exporting(|all, index| all[(index + 1) % all.len()])),
        ("another order", |image| image.exporting(|all, index| all[all.len() - 1 - index])),
        ("pairs", |image| image.exporting(|all, index| all[index / 2 * 2])),
        ("two bytes further", |image| image.exporting(|all, index| all[index] + 2)),
        ("fields in the wrong places", |image| {
            image.exporting(|all, index| (all[index] >> 16 << 16) | (all[index] & 0xffff) << 48)
        }),
        ("past the inode table", |image| image.exporting(|all, index| all[index] + (1 << 40))),
        ("bytes swapped", |image| image.exporting(|all, index| all[index].swap_bytes())),
        ("half of it", |image| image.exporting(|all, index| if index % 2 == 0 { all[index] } else { 0 })),
        ("short", |image| image.with_short_export(64)),
        ("undecodable", Image::with_damaged_export),
        ("none", Image::without_export),
    ];
    let (_folder, image) = scene();
    let sound = mounted(&image, "squashfs").expect("mounted");
    assert!(sound.len() > 350, "{}", sound.len());
    // The front packs directories anew.
    let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
    check_rows(
        &rows,
        |(name, _)| (*name).to_owned(),
        |(_, change)| {
            let changed = change(Image::read(&image));
            complaints(&changed, &sound, &["squashfs", "fuse", "kernel"], &comparison)
        },
    );
}

#[test]
fn inodes_with_the_same_number_are_shown_apart() {
    if !ready() || !skip::ready(&[Need::KernelSquashfs, Need::Peer("mksquashfs")]) {
        return;
    }
    let (_folder, image) = scene();
    let count = Image::read(&image).superblock.inodes;
    type Change = fn(u32, u32) -> u32;
    let rows: [(&str, Change); 7] = [
        ("ones", |_, _| 1),
        ("the last", |_, count| count),
        ("pairs", |number, _| number / 2 + 1),
        ("a few", |number, _| number % 5 + 1),
        ("the next", |number, count| number % count + 1),
        ("another order", |number, count| count + 1 - number),
        ("half of them", |number, _| if number % 2 == 0 { number } else { 2 }),
    ];
    let sound = mounted(&image, "squashfs").expect("mounted");
    // The same number stands for the same file.
    let comparison = Comparison { directory_shape_is_free: true, links_are_free: true, ..Comparison::default() };
    check_rows(
        &rows,
        |(name, _)| (*name).to_owned(),
        |(_, change)| {
            let numbered = || Image::read(&image).numbering(|number| change(number, count));
            // The kernel's SquashFS takes inodes with one number for one inode.
            let exported = complaints(&numbered().bytes, &sound, &["fuse", "kernel"], &comparison);
            let scanned = complaints(&numbered().without_export(), &sound, &["fuse", "kernel"], &comparison);
            let told = |(table, told): (&str, Vec<String>)| {
                told.into_iter().map(|told| format!("{table} export table: {told}")).collect::<Vec<_>>()
            };
            [("an", exported), ("no", scanned)].into_iter().flat_map(told).collect()
        },
    );
}

#[test]
fn a_directory_of_an_image_with_wrong_numbers_is_mounted() {
    if !ready() || !skip::ready(&[Need::KernelSquashfs, Need::Peer("mksquashfs")]) {
        return;
    }
    let (folder, image) = scene();
    let whole = KernelMount::new(&Materialised::single(&image, Format::Squashfs)).expect("mounted");
    let sound = walked(&whole.path().join("mixed")).expect("it is there");
    let wrong = folder.path().join("wrong");
    fs::write(&wrong, Image::read(&image).numbering(|number| number / 2 + 1).bytes).expect("written");
    let comparison = Comparison { directory_shape_is_free: true, links_are_free: true, ..Comparison::default() };
    check_rows(
        &["front=fuse,subdir=mixed", "front=kernel,subdir=mixed", "front=kernel,subdir=mixed,uid=0"],
        |options| (*options).to_owned(),
        |options| {
            let served =
                Served::with(&Materialised::single(&wrong, Format::Squashfs), &["-o".as_ref(), options.as_ref()], &[]);
            let found = served.and_then(|served| walked(&served.path()));
            found.map_or_else(|error| vec![error], |found| differences(&sound, &found, &comparison))
        },
    );
}

#[test]
fn an_impossible_number_is_an_error_of_its_file_alone() {
    if !ready() || !skip::ready(&[Need::Peer("mksquashfs")]) {
        return;
    }
    let (folder, image) = scene();
    let tree = folder.path().join("tree");
    let rows = [("0", 0), ("past the count", 100_000), ("the largest", u32::MAX)];
    check_rows(
        &rows,
        |(name, _)| (*name).to_owned(),
        |(_, number)| {
            // The third inode in the order of the names.
            let changed = Image::read(&image).numbering(|old| if old == 3 { *number } else { old });
            let place = tempfile::tempdir().expect("a folder");
            let path = place.path().join("image");
            fs::write(&path, &changed.bytes).expect("written");
            let mut told = Vec::new();
            for front in ["fuse", "kernel"] {
                let served = Served::new(&Materialised::single(&path, Format::Squashfs), front).expect("mounted");
                let directory = Path::new("d00/below");
                let lost: Vec<_> = (0..30)
                    .map(|file| directory.join(format!("f{file}")))
                    .filter(|name| fs::read(served.path().join(name)).ok() != fs::read(tree.join(name)).ok())
                    .collect();
                let errors: Vec<_> = lost.iter().map(|name| fs::read(served.path().join(name)).err()).collect();
                if lost.len() != 1 || errors.iter().any(Option::is_none) {
                    told.push(format!("{front}: {lost:?} {errors:?}"));
                }
            }
            told
        },
    );
}
