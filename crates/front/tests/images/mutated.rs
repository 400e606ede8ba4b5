//! Kept metadata of mutated images: it shows the same as Floe's reader of the image, and the kernel mounts it without a message.
//! The image is a device of it, so the kernel also reads plain data, and decodes small files.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    ops::ControlFlow,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use floe_front::{Algorithms, ImageFile, KeptImage, keep};
use floe_image::{Attr, BlockReader, ByteRange, DirectoryCursor, FileSystem, FileType, ImageSource, Nid, Timestamp};
use floe_testkit::{
    DirectReader, MemorySource, Random, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    skip::{self, Need},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::support::{BLOCK, KernelLog, kernel_complaints, open};

/// The number of mutated images; `FLOE_MUTATED` is another.
const MUTATED_COUNT: usize = 400;

/// The largest image that is mutated.
const IMAGE_BYTES_MAX: u64 = 8 << 20;

const IDENTITY: [u8; 32] = [9; 32];

/// The limit of a kept image, and thereby of the walks.
const BYTES_MAX: u64 = 1 << 20;

/// How many bytes of each file are read.
const DATA_BYTES_MAX: u64 = 64 << 10;

/// The length of the devices that Floe would serve: the kernel reads zeros there.
const DEVICE_BYTES: u64 = 8 << 40;

/// An image in memory.
struct Original {
    reader: Arc<DirectReader>,
    file_system: Arc<dyn FileSystem>,
}

/// The superblock is not changed: its checksum would refuse most changes.
const SUPERBLOCK_END: u64 = 4096;

/// Records which bytes are read.
struct ReadBytes {
    inner: MemorySource,
    ranges: Mutex<Vec<(u64, u64)>>,
}

impl ImageSource for ReadBytes {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.ranges.lock().expect("no panic while held").push((offset, offset + output.len() as u64));
        self.inner.read_at(offset, output)
    }
}

impl Original {
    fn open(source: Arc<dyn ImageSource>, format: Format) -> floe_image::Result<Self> {
        let reader = Arc::new(DirectReader::new(vec![source]));
        let file_system = open(Arc::clone(&reader) as Arc<dyn BlockReader>, format)?;
        Ok(Self { reader, file_system })
    }

    /// Keeps the metadata in `kept`, which is a new file. The image is also in the file `image`.
    fn keep(&self, kept: &Path, image: &Path) -> bool {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(kept).expect("a file");
        let image = ImageFile::new(File::open(image).expect("it is there")).expect("it has a length");
        let image = image.decoding(Algorithms::FASTER);
        let mut pace = || ControlFlow::Continue(());
        keep(Arc::clone(&self.file_system), Some(&image), &file, &IDENTITY, BYTES_MAX, &mut pace).is_ok()
    }

    /// Bytes of a file; `None` if they cannot be read.
    fn data(&self, nid: Nid, range: ByteRange) -> Option<Vec<u8>> {
        self.reader.read_file(self.file_system.as_ref(), nid, range).ok()
    }
}

/// Changes a few of the bytes that are read when the image is kept, or its files are read.
fn mutate(bytes: &mut [u8], ranges: &[(u64, u64)], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let place = |random: &mut Random| {
            let (start, end) = ranges[random.below(ranges.len() as u64) as usize];
            (start + random.below(end - start)) as usize
        };
        let (at, other) = (place(random), place(random));
        let len = 1 << random.below(4);
        for index in 0..len.min(bytes.len() - at.max(other)) {
            bytes[at + index] = match random.below(5) {
                0 => bytes[at + index] ^ 1 << random.below(8),
                1 => [0, 1, 0x7f, 0xff][random.below(4) as usize],
                2 => random.below(256) as u8,
                _ => bytes[other + index],
            };
        }
    }
}

/// What a program sees of an inode. Directories can have other sizes.
type Shown = (u32, u64, u64, u32, u32, (i64, i64), Option<OsString>, Vec<(Vec<u8>, Vec<u8>)>);

/// All inodes of an image, by path, and the numbers of its regular files.
type Inodes = (BTreeMap<Vec<u8>, Shown>, BTreeMap<Vec<u8>, Nid>);

fn inodes_of(original: &dyn FileSystem) -> floe_image::Result<Inodes> {
    let (mut shown, mut files) = (BTreeMap::new(), BTreeMap::new());
    let mut pending = vec![(Vec::new(), original.root())];
    while let Some((path, nid)) = pending.pop() {
        let attr = original.attr(nid)?;
        let mut target = None;
        match attr.file_type {
            FileType::Directory => original.read_dir(nid, DirectoryCursor::default(), &mut |dirent| {
                if dirent.name != b"." && dirent.name != b".." {
                    pending.push(([path.as_slice(), b"/", dirent.name].concat(), dirent.nid));
                }
                ControlFlow::Continue(())
            })?,
            FileType::Symlink => target = Some(OsString::from_vec(original.read_link(nid)?)),
            FileType::Regular => drop(files.insert(path.clone(), nid)),
            _ => {}
        }
        shown.insert(path, shown_of(&attr, target, xattrs_of(original, nid)?));
    }
    Ok((shown, files))
}

fn shown_of(attr: &Attr, target: Option<OsString>, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Shown {
    let Timestamp { seconds, nanoseconds } = attr.modified;
    let mode = u32::from(attr.file_type.mode_bits() | attr.permissions);
    let is_directory = attr.file_type == FileType::Directory;
    let size = if is_directory { 0 } else { attr.size };
    let modified = (seconds, i64::from(nanoseconds));
    (mode, size, attr.link_count.into(), attr.uid, attr.gid, modified, target, xattrs)
}

/// The attributes that the kernel's EROFS lists for any file.
fn xattrs_of(original: &dyn FileSystem, nid: Nid) -> floe_image::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    original.xattrs(nid, &mut |xattr| {
        // A name ends at a zero byte, and the first of equal names counts.
        let is_shown = xattr.name.starts_with(b"user.") && xattr.name.len() > 5 && !xattr.name.contains(&0);
        if is_shown && xattrs.iter().all(|(name, _)| *name != xattr.name) {
            xattrs.push((xattr.name.to_vec(), xattr.value.to_vec()));
        }
        ControlFlow::Continue(())
    })?;
    xattrs.sort();
    Ok(xattrs)
}

/// All inodes of a directory, by path.
fn inodes_in(root: &Path) -> io::Result<BTreeMap<Vec<u8>, Shown>> {
    let mut shown = BTreeMap::new();
    let mut pending = vec![(Vec::new(), root.to_owned())];
    while let Some((path, place)) = pending.pop() {
        let status = fs::symlink_metadata(&place)?;
        let mut target = None;
        if status.is_dir() {
            for entry in fs::read_dir(&place)? {
                let entry = entry?;
                pending.push(([path.as_slice(), b"/", entry.file_name().as_bytes()].concat(), entry.path()));
            }
        } else if status.is_symlink() {
            target = Some(fs::read_link(&place)?.into_os_string());
        }
        let mut xattrs = Vec::new();
        // Attributes of links and devices are not `user.` ones.
        let mut names = vec![0; 1 << 16];
        let len = rustix::fs::llistxattr(&place, &mut names[..]).unwrap_or(0);
        for name in names[..len].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
            let mut value = vec![0; 1 << 16];
            if let Ok(len) = rustix::fs::lgetxattr(&place, name, &mut value[..]) {
                xattrs.push((name.to_vec(), value[..len].to_vec()));
            }
        }
        xattrs.sort();
        xattrs.dedup();
        let size = if status.is_dir() { 0 } else { status.size() };
        let modified = (status.mtime(), status.mtime_nsec());
        let owners = (status.uid(), status.gid());
        shown.insert(path, (status.mode(), size, status.nlink(), owners.0, owners.1, modified, target, xattrs));
    }
    Ok(shown)
}

/// Compares the data of files in a mount, whose pages are zeros if Floe would serve them. Returns the number of other pages.
fn compare_data(original: &Original, files: &BTreeMap<Vec<u8>, Nid>, root: &Path) -> Result<usize, String> {
    let mut plain_count = 0;
    for (path, nid) in files {
        let place = root.join(std::ffi::OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        let mut found = Vec::new();
        let read = File::open(&place).and_then(|file| file.take(DATA_BYTES_MAX).read_to_end(&mut found));
        read.map_err(|error| format!("{}: {error}", path.escape_ascii()))?;
        for (index, page) in found.chunks(BLOCK).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
            plain_count += 1;
            let range = ByteRange::new((index * BLOCK) as u64, page.len() as u64);
            if original.data(*nid, range).as_deref() != Some(page) {
                return Err(format!("{}: page {index} differs", path.escape_ascii()));
            }
        }
    }
    Ok(plain_count)
}

/// Mounts a kept image, and compares what it shows. Adds the number of pages that the kernel reads in the image to `plain_count`.
fn wrong(original: &Original, kept: &Path, folder: &Path, plain_count: &AtomicUsize) -> Result<Vec<String>, String> {
    let (nothing, image, root) = (folder.join("nothing"), folder.join("image"), folder.join("mount"));
    let options = format!("device={0},device={0},device={1}", nothing.display(), image.display());
    let options = std::ffi::CString::new(options).expect("no zero byte");
    let mounted = mount(kept, &root, "erofs", MountFlags::RDONLY, options.as_c_str());
    mounted.map_err(|error| format!("the kernel does not mount it: {error}"))?;
    let expected = inodes_of(original.file_system.as_ref()).map_err(|error| error.to_string());
    let found = inodes_in(&root);
    let data = expected.as_ref().map(|(_, files)| compare_data(original, files, &root));
    unmount(&root, UnmountFlags::DETACH).map_err(|error| error.to_string())?;
    let found = found.map_err(|error| error.to_string())?;
    plain_count.fetch_add(data.map_err(String::clone)??, Relaxed);
    let (expected, _) = expected?;
    let differs = |path: &&Vec<u8>| match (expected.get(*path), found.get(*path)) {
        (Some(expected), Some(found)) => {
            // Links and devices cannot have `user.` attributes in programs' eyes.
            let has_xattrs = matches!(expected.0 & 0o170_000, 0o100_000 | 0o040_000);
            let mut expected = expected.clone();
            if !has_xattrs {
                expected.7.clone_from(&found.7);
            }
            expected != *found
        }
        _ => true,
    };
    let paths = expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path)));
    let path =
        |path: &Vec<u8>| format!("{}: {:?} instead of {:?}", path.escape_ascii(), found.get(path), expected.get(path));
    Ok(paths.filter(differs).map(path).take(3).collect())
}

#[test]
fn what_is_kept_of_mutated_images_shows_the_same_without_kernel_messages() {
    if !skip::ready(&[Need::Root, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let count = env::var("FLOE_MUTATED").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATED_COUNT);
    let is_usable = |image: &ImageRecord| !image.huge && image.devices.is_empty();
    let images: Vec<ImageRecord> = corpus.sample().into_iter().filter(is_usable).collect();
    let log = KernelLog::from_now().expect("root reads the kernel's log");
    let [all_kept, all, plain, decoded] = [const { AtomicUsize::new(0) }; 4];
    let per_image = count.div_ceil(images.len().max(1));
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let bytes = corpus.bytes(&image.image).split_off(image.offset as usize);
            if bytes.len() as u64 > IMAGE_BYTES_MAX {
                return Vec::new();
            }
            let folder = tempfile::tempdir().expect("a directory");
            let path = folder.path().join("kept");
            fs::create_dir(folder.path().join("mount")).expect("ours");
            let nothing = File::create(folder.path().join("nothing")).expect("ours");
            nothing.set_len(DEVICE_BYTES).expect("the file system has such files");
            let image_file = folder.path().join("image");
            fs::write(&image_file, &bytes).expect("ours");
            let source = Arc::new(ReadBytes { inner: MemorySource::new(bytes.clone()), ranges: Mutex::default() });
            let Ok(original) = Original::open(Arc::clone(&source) as _, image.format) else { return Vec::new() };
            original.keep(&path, &image_file);
            // Blocks of data are changed, too.
            for nid in inodes_of(original.file_system.as_ref()).map(|(_, files)| files).unwrap_or_default().values() {
                original.data(*nid, ByteRange::new(0, DATA_BYTES_MAX));
            }
            let mut ranges = std::mem::take(&mut *source.ranges.lock().expect("no panic while held"));
            ranges.retain(|(start, end)| *start >= SUPERBLOCK_END && start < end);
            let mut random = Random::new(image.name.bytes().fold(7, |sum, byte| sum * 31 % 65_537 + u64::from(byte)));
            let mut told = Vec::new();
            for number in (0..per_image).filter(|_| !ranges.is_empty()) {
                let mut mutated = bytes.clone();
                mutate(&mut mutated, &ranges, &mut random);
                all.fetch_add(1, Relaxed);
                fs::write(&image_file, &mutated).expect("ours");
                let source = Arc::new(MemorySource::new(mutated));
                let Ok(original) = Original::open(source, image.format) else { continue };
                if !original.keep(&path, &image_file) {
                    continue;
                }
                all_kept.fetch_add(1, Relaxed);
                let kept = KeptImage::verify(File::open(&path).expect("ours"), &IDENTITY).expect("it is whole");
                decoded.fetch_add(usize::from(kept.is_decoded_by_kernel()), Relaxed);
                let wrong = wrong(&original, &path, folder.path(), &plain).unwrap_or_else(|error| vec![error]);
                told.extend(wrong.into_iter().map(|words| format!("mutation {number}: {words}")));
            }
            told
        },
    );
    assert_eq!(kernel_complaints(&log), Vec::<String>::new());
    let (all_kept, all) = (all_kept.into_inner(), all.into_inner());
    assert!(all_kept * 10 > all, "{all_kept} of {all} mutated images are kept");
    assert!(plain.load(Relaxed) > 0, "the kernel reads no page of the images");
    let decoded = decoded.into_inner();
    assert!(decoded * 10 > all_kept, "the kernel decodes files of {decoded} of {all_kept} images");
    println!("{all_kept} of {all} mutated images are kept; of {decoded}, the kernel decodes files");
}
