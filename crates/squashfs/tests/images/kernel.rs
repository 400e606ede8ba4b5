//! Images compared with the kernel's mount.

use std::{
    fs::{self, File},
    io,
    mem::MaybeUninit,
    ops::ControlFlow,
    os::unix::fs::FileExt,
    path::Path,
};

use floe_image::{DirectoryCursor, FileSystem, FileType, Nid, SeekTarget};
use floe_squashfs::Squashfs;
use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Corpus, Format, ImageRecord, Materialised},
    manifest::{Comparison, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::fs::{RawDir, SeekFrom};

use crate::memo_reader::MemoReader;

/// The kernel reads devices of whole blocks, so an unpadded image is copied and padded.
const PADDING_BYTES: u64 = 4096;

/// An entry of a listing: name, `d_ino`, type and `d_off`.
type Listed = (Vec<u8>, u64, FileType, u64);

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    let images = corpus.sample().into_iter();
    images.filter(|image| image.format == Format::Squashfs && image.kernel_is_truth()).collect()
}

fn mount(corpus: &Corpus, image: &ImageRecord) -> (KernelMount, Option<tempfile::NamedTempFile>) {
    let materialised = corpus.materialise(image);
    let len = fs::metadata(&materialised.path).expect("there").len();
    if len.is_multiple_of(PADDING_BYTES) {
        return (KernelMount::new(&materialised).expect("the kernel mounts it"), None);
    }
    let copy = tempfile::NamedTempFile::new().expect("a file");
    io::copy(&mut File::open(&materialised.path).expect("there"), &mut copy.as_file()).expect("copied");
    copy.as_file().write_all_at(&[0], len.next_multiple_of(PADDING_BYTES) - 1).expect("padded");
    let padded = Materialised { path: copy.path().to_owned(), ..materialised };
    (KernelMount::new(&padded).expect("the kernel mounts it"), Some(copy))
}

fn kernel_listing(path: &Path) -> Vec<Listed> {
    let directory = File::open(path).expect("opened");
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut listing = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.expect("listed");
        let file_type = match entry.file_type() {
            rustix::fs::FileType::Directory => FileType::Directory,
            rustix::fs::FileType::RegularFile => FileType::Regular,
            rustix::fs::FileType::Symlink => FileType::Symlink,
            rustix::fs::FileType::CharacterDevice => FileType::CharacterDevice,
            rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
            rustix::fs::FileType::Fifo => FileType::Fifo,
            rustix::fs::FileType::Socket => FileType::Socket,
            rustix::fs::FileType::Unknown => panic!("a type that is not known"),
        };
        listing.push((entry.file_name().to_bytes().to_vec(), entry.ino(), file_type, entry.next_entry_cookie()));
    }
    listing
}

fn own_listing(squashfs: &Squashfs, nid: Nid, from: u64, count_max: usize) -> Vec<Listed> {
    let mut listing = Vec::new();
    let visited = squashfs.read_dir(nid, DirectoryCursor(from), &mut |dirent| {
        listing.push((dirent.name.to_vec(), dirent.inode_number, dirent.file_type, dirent.next.0));
        if listing.len() == count_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    visited.expect("listed");
    listing
}

/// Compares the listing of a directory, in order and from each cursor, and those of its subdirectories.
fn compare_listings(squashfs: &Squashfs, nid: Nid, path: &Path, complaints: &mut Vec<String>) {
    let expected = kernel_listing(path);
    let found = own_listing(squashfs, nid, 0, usize::MAX);
    if found != expected {
        complaints.push(format!("listing of {} is {found:?}, not {expected:?}", path.display()));
        return;
    }
    for (index, (name, _, file_type, next)) in expected.iter().enumerate() {
        let rest = own_listing(squashfs, nid, *next, 2);
        let rest_expected: Vec<Listed> = expected.iter().skip(index + 1).take(2).cloned().collect();
        if rest != rest_expected {
            complaints.push(format!("{} from {next} on lists {rest:?}, not {rest_expected:?}", path.display()));
        }
        if *file_type == FileType::Directory && name != b"." && name != b".." {
            let child = squashfs.lookup(nid, name).expect("looked up").expect("found");
            assert_eq!(squashfs.lookup(child, b"..").expect("looked up"), Some(nid), "the parent of {name:?}");
            let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name);
            compare_listings(squashfs, child, &path.join(name), complaints);
        }
    }
}

fn compare_statfs(squashfs: &Squashfs, mount: &Path) -> Vec<String> {
    let expected = rustix::fs::statfs(mount).expect("statfs");
    let info = squashfs.info();
    let found = (u64::from(info.magic), u64::from(info.block_size), info.block_count, info.inode_count);
    let expected =
        (expected.f_type.cast_unsigned(), expected.f_bsize.cast_unsigned(), expected.f_blocks, expected.f_files);
    if found == expected { Vec::new() } else { vec![format!("statfs is {found:?}, not {expected:?}")] }
}

#[test]
fn every_image_is_as_the_kernel_shows_it() {
    if !skip::ready(&[Need::KernelSquashfs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let (mount, _copy) = mount(&corpus, image);
            let reader = MemoReader::of_image(&corpus, image);
            let squashfs = Squashfs::open(reader.clone()).expect("opened");
            let walk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
            let expected = walk::directory(&mount.path(), walk).expect("walked");
            let found = walk::image(&squashfs, &|nid, range| reader.read_file(&squashfs, nid, range)).expect("walked");
            let mut complaints = differences(&expected, &found, &Comparison::default());
            complaints.extend(compare_statfs(&squashfs, &mount.path()));
            compare_listings(&squashfs, squashfs.root(), &mount.path(), &mut complaints);
            complaints
        },
    );
}

#[test]
fn searches_for_data_and_holes_are_as_the_kernel_answers_them_at_every_edge() {
    if !skip::ready(&[Need::KernelSquashfs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let mut images = images(&corpus);
    images.retain(|image| image.tree == "chunk" || image.tree == "huge" || image.tree == "cbase");
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let (mount, _copy) = mount(&corpus, image);
            let squashfs = Squashfs::open(MemoReader::of_image(&corpus, image)).expect("opened");
            let mut complaints = Vec::new();
            for (name, _, file_type, _) in own_listing(&squashfs, squashfs.root(), 0, usize::MAX) {
                if file_type != FileType::Regular {
                    continue;
                }
                let nid = squashfs.lookup(squashfs.root(), &name).expect("looked up").expect("found");
                let size = squashfs.attr(nid).expect("stat").size;
                let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&name[..]);
                let file = File::open(mount.path().join(name)).expect("opened");
                let block = u64::from(squashfs.info().block_size);
                let edges = (0..8).map(|index| index * block).chain([size / block * block, size, size / 2]);
                for offset in edges.flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1]) {
                    for (target, from) in
                        [(SeekTarget::Data, SeekFrom::Data(offset)), (SeekTarget::Hole, SeekFrom::Hole(offset))]
                    {
                        let expected = match rustix::fs::seek(&file, from) {
                            Err(rustix::io::Errno::NXIO) => None,
                            other => Some(other.expect("searched")),
                        };
                        let found = squashfs.seek(nid, offset, target).expect("searched");
                        if found != expected {
                            complaints.push(format!("{name:?}: {target:?} from {offset}: {found:?}, not {expected:?}"));
                        }
                    }
                }
            }
            complaints
        },
    );
}
