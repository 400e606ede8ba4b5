//! Every reference image reads as its manifest records.

use std::{
    ffi::OsStr,
    fs,
    ops::ControlFlow,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{DirEntryExt, FileExt},
    },
    path::Path,
    process::Command,
    sync::Arc,
};

use floe_erofs::Erofs;
use floe_image::{
    BlockReader, ByteRange, DirectoryCursor, Dirent, FileSystem, FileSystemInfo, FileType, ImageSource, Nid,
};
use floe_testkit::{
    DirectReader, KernelMount, MemorySource, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

/// A reader of an image and its devices.
fn reader_of(corpus: &Corpus, image: &ImageRecord) -> Arc<DirectReader> {
    let mut bytes = corpus.bytes(&image.image);
    bytes.drain(..usize::try_from(image.offset).expect("the offset is within the file"));
    let devices = image.devices.iter().map(|device| corpus.bytes(device));
    let sources = std::iter::once(bytes).chain(devices);
    Arc::new(DirectReader::new(
        sources.map(|bytes| -> Arc<dyn ImageSource> { Arc::new(MemorySource::new(bytes)) }).collect(),
    ))
}

/// The EROFS images, either those with huge files or the others.
fn erofs_images(corpus: &Corpus, is_huge: bool) -> Vec<ImageRecord> {
    let is_wanted = |image: &ImageRecord| image.format == Format::Erofs && image.huge == is_huge;
    corpus.sample().into_iter().filter(is_wanted).collect()
}

#[test]
fn every_image_matches_its_manifest() {
    let corpus = Corpus::locate_or_fixtures();
    let images = erofs_images(&corpus, false);
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let reader = reader_of(&corpus, image);
            let file_system = match Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>) {
                Ok(file_system) => file_system,
                Err(error) => return vec![error.to_string()],
            };
            let read = |nid, range| reader.read_file(&file_system, nid, range);
            match walk::image(&file_system, &read) {
                Ok(found) => {
                    let directory_shape_is_free = !image.kernel_is_truth();
                    let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
                    differences(&corpus.manifest(image), &found, &comparison)
                }
                Err(error) => vec![error.to_string()],
            }
        },
    );
}

#[test]
fn every_image_matches_the_kernels_mount() {
    if !skip::ready(&[Need::Corpus, Need::Root, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    let images: Vec<ImageRecord> =
        erofs_images(&corpus, false).into_iter().filter(ImageRecord::kernel_is_truth).collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let mount = match KernelMount::new(&corpus.materialise(image)) {
                Ok(mount) => mount,
                Err(reason) => return vec![reason],
            };
            let numbers = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
            let expected = walk::directory(&mount.path(), numbers).expect("the mount is walked");
            let reader = reader_of(&corpus, image);
            let file_system = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
            let read = |nid, range| reader.read_file(&file_system, nid, range);
            let found = walk::image(&file_system, &read).expect("it is walked");
            // If shared attributes are adjacent to compressed metadata, Linux finds them only sometimes.
            let xattrs_are_free = image.name == "erofs-metabox-shared-xattrs";
            let mut told = differences(&expected, &found, &Comparison { xattrs_are_free, ..Comparison::default() });
            told.extend(statfs_differences(&mount.path(), &file_system.info()));
            listing_differences(&mount.path(), &file_system, file_system.root(), &mut told);
            told
        },
    );
}

/// The differences between `statfs` of a mount and the image's own numbers.
fn statfs_differences(mount: &Path, info: &FileSystemInfo) -> Vec<String> {
    let output = Command::new("stat").args(["-f", "-c", "%t %S %b %d"]).arg(mount).output().expect("stat runs");
    // `stat` prints the number of free inodes as a signed number.
    let free_inodes = (u64::MAX - info.inode_count).cast_signed();
    let said = format!("{:x} {} {} {free_inodes}", info.magic, info.block_size, info.block_count);
    let expected = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if said == expected { Vec::new() } else { vec![format!("statfs prints {said}, not {expected}")] }
}

/// Records the directories whose entries differ from a mount in order or number.
fn listing_differences(directory: &Path, file_system: &Erofs, nid: Nid, told: &mut Vec<String>) {
    let expected = fs::read_dir(directory).expect("it is listed").map(|child| child.expect("it is listed"));
    let expected: Vec<_> = expected.map(|child| (child.file_name().into_vec(), child.ino())).collect();
    let (mut found, mut children) = (Vec::new(), Vec::new());
    // Continue from the cursor after each entry, as a reader with a small buffer does.
    let mut cursor = Some(DirectoryCursor::default());
    while let Some(from) = cursor.take() {
        let visit = &mut |dirent: Dirent<'_>| {
            cursor = Some(dirent.next);
            if dirent.name != b"." && dirent.name != b".." {
                found.push((dirent.name.to_vec(), dirent.inode_number));
                if dirent.file_type == FileType::Directory {
                    children.push((directory.join(OsStr::from_bytes(dirent.name)), dirent.nid));
                }
            }
            ControlFlow::Break(())
        };
        file_system.read_dir(nid, from, visit).expect("it is listed");
    }
    if found != expected {
        told.push(format!("{}: listed as {found:?}, not {expected:?}", directory.display()));
    }
    for (child, nid) in children {
        listing_differences(&child, file_system, nid, told);
    }
}

/// How many bytes of a huge file are read at each position.
const SAMPLE_BYTES: u64 = 1 << 20;

#[test]
fn huge_files_read_as_in_the_kernels_mount_at_their_corners() {
    if !skip::ready(&[Need::Corpus, Need::Root, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    check_rows(
        &erofs_images(&corpus, true),
        |image| image.name.clone(),
        |image| {
            let mount = KernelMount::new(&corpus.materialise(image)).expect("it is mounted");
            let reader = reader_of(&corpus, image);
            let file_system = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
            let mut told = Vec::new();
            for child in fs::read_dir(mount.path()).expect("it is listed").map(|child| child.expect("it is listed")) {
                let nid =
                    file_system.lookup(file_system.root(), child.file_name().as_bytes()).expect("it is looked up");
                let attr = file_system.attr(nid.expect("it is found")).expect("it is read");
                let file = fs::File::open(child.path()).expect("it is opened");
                if attr.file_type != FileType::Regular {
                    continue;
                }
                let corners = [0, 1 << 32, attr.size / 2, attr.size];
                let starts = corners.map(|corner| corner.min(attr.size).saturating_sub(SAMPLE_BYTES / 2));
                for start in starts {
                    let range = ByteRange::between(start, attr.size.min(start + SAMPLE_BYTES));
                    let mut expected = vec![0; usize::try_from(range.len()).expect("small")];
                    file.read_exact_at(&mut expected, start).expect("it is read");
                    if reader.read_file(&file_system, attr.nid, range).expect("it is read") != expected {
                        told.push(format!("{} differs in {range}", child.path().display()));
                    }
                }
            }
            told
        },
    );
}
