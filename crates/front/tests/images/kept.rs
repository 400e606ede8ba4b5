//! Kept images show the same as rendered ones, and anything else than a whole one is refused.

use std::{
    fs::{self, File},
    ops::ControlFlow,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use floe_front::{
    Algorithms, DataInImage, Identity, ImageFile, KeptImage, KernelRights, NotKept, UserRules, VirtualImage,
    check_soundness, keep,
};
use floe_image::{ByteRange, FileSystem, Nid};
use floe_testkit::{
    check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::support::{Front, KernelFront, KernelLog, kernel_complaints, open_erofs, sources_of};

const IDENTITY: Identity = [3; 32];

const BYTES_MAX: u64 = 64 << 20;

/// How much of the large file is compared.
const LARGE_BYTES_COMPARED: u64 = 64 << 20;

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    corpus.sample().into_iter().filter(|image| !image.huge).collect()
}

fn new_file(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).expect("it is created")
}

/// Keeps the metadata of `front` in a file at `path`. A file with the image is a device of it.
pub(crate) fn kept(front: &Front, path: &Path, image: Option<&Path>) -> Result<KeptImage, NotKept> {
    let image = image.map(|image| ImageFile::new(File::open(image).expect("it is there")).expect("it has a length"));
    let image = image.map(|image| image.decoding(Algorithms::FASTER));
    let original = Arc::clone(&front.original);
    let mut pace = || ControlFlow::Continue(());
    keep(original, image.as_ref(), &new_file(path), &IDENTITY, BYTES_MAX, &mut pace)?;
    let file = File::open(path).expect("it is there");
    Ok(KeptImage::verify(file, &IDENTITY).expect("it was written whole"))
}

/// Without inode numbers, which differ between rendered and kept images, but for the root's.
fn without_numbers(mut manifest: Manifest) -> Manifest {
    for (path, entry) in manifest.entries_mut().filter(|(path, _)| *path != b"/") {
        assert!(entry.inode_number.take().is_some(), "{path:?}");
    }
    manifest
}

/// A file with the image.
fn image_file(corpus: &Corpus, image: &ImageRecord, folder: &Path) -> PathBuf {
    let path = folder.join("image");
    fs::write(&path, corpus.bytes(&image.image).split_off(image.offset as usize)).expect("there is room");
    path
}

/// Checks that most images are kept, without and with the image as a device.
fn check_count(kept: &AtomicUsize, images: &[ImageRecord]) {
    let kept = kept.load(Relaxed);
    assert!(kept * 10 >= images.len() * 2 * 9, "{kept} of {} images are kept", images.len() * 2);
}

/// A walk with Floe's reader.
fn walked(front: &Front, metadata: Option<(&Path, Option<&Path>)>) -> floe_image::Result<Manifest> {
    let mut sources: Vec<Arc<dyn floe_image::ImageSource>> = Vec::new();
    match metadata {
        Some((path, image)) => {
            let source = |path: &Path| {
                let file = File::open(path).expect("it is there");
                let len = file.metadata().expect("it is there").len();
                Arc::new(WholeFile { file, len })
            };
            sources.extend([source(path) as _, front.large_source() as _, front.source() as _]);
            sources.extend(image.map(|image| source(image) as _));
        }
        None => sources.extend([front.source() as _, front.large_source() as _]),
    }
    let (reader, erofs) = open_erofs(sources)?;
    Ok(without_numbers(walk::image(&erofs, &|nid, range: ByteRange| reader.read_file(&erofs, nid, range))?))
}

/// What `statfs` shows: the block size and the number of inodes.
fn room(mount: &Path) -> (i64, u64) {
    let shown = rustix::fs::statfs(mount).expect("it is mounted");
    (shown.f_bsize, shown.f_files)
}

struct WholeFile {
    file: File,
    len: u64,
}

impl floe_image::ImageSource for WholeFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(output, offset)
    }
}

#[test]
fn a_kept_image_has_what_is_rendered() {
    let corpus = Corpus::locate_or_fixtures();
    let (images, [count, plain_count, decoded_count]) = (images(&corpus), [const { AtomicUsize::new(0) }; 3]);
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let folder = tempfile::tempdir().expect("a directory");
            let path = folder.path().join("kept");
            let compare = || -> floe_image::Result<Vec<String>> {
                let front = Front::of_record(&corpus, image)?;
                let (expected, image_file) = (walked(&front, None)?, image_file(&corpus, image, folder.path()));
                let mut told = Vec::new();
                for device in [None, Some(image_file.as_path())] {
                    let kept = match kept(&front, &path, device) {
                        Ok(kept) => kept,
                        Err(error) => return Ok(vec![format!("not kept: {error}")]),
                    };
                    count.fetch_add(1, Relaxed);
                    let behind = Front::of_kept(sources_of(&corpus, image), image.format, &kept)?;
                    let in_image = behind.image.data_in_image();
                    plain_count.fetch_add(usize::from(in_image != DataInImage::None), Relaxed);
                    decoded_count.fetch_add(usize::from(in_image == DataInImage::Compressed), Relaxed);
                    let found = walked(&behind, Some((&path, device)))?;
                    told.extend(differences(&expected, &found, &Comparison::default()));
                    fs::remove_file(&path).expect("ours");
                }
                Ok(told)
            };
            compare().unwrap_or_else(|error| vec![error.to_string()])
        },
    );
    check_count(&count, &images);
    let [plain_count, decoded_count] = [plain_count, decoded_count].map(AtomicUsize::into_inner);
    assert!(plain_count > decoded_count && decoded_count > 0, "{plain_count} {decoded_count}");
}

#[test]
fn the_kernel_shows_the_same_of_both() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let (images, count, log) = (images(&corpus), AtomicUsize::new(0), KernelLog::from_now());
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let folder = tempfile::tempdir().expect("a directory");
            let compare = || -> Result<Vec<String>, String> {
                let front = Front::of_record(&corpus, image).map_err(|error| error.to_string())?;
                let image_file = image_file(&corpus, image, folder.path());
                let devices = [None, Some(image_file.as_path())];
                let images = devices.map(|device| {
                    let path = folder.path().join(if device.is_some() { "kept with a device" } else { "kept" });
                    let kept = kept(&front, &path, device).map_err(|error| format!("not kept: {error}"))?;
                    count.fetch_add(1, Relaxed);
                    let behind = Front::of_kept(sources_of(&corpus, image), image.format, &kept);
                    KernelFront::of_kept(behind.map_err(|error| error.to_string())?, &path, device)
                });
                let rendered = KernelFront::new(front, "")?;
                let walk = |mount: &KernelFront| {
                    let walk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
                    let walked = walk::directory(&mount.path(), walk).map_err(|error| error.to_string())?;
                    Ok::<_, String>((without_numbers(walked), room(&mount.path())))
                };
                let (expected, expected_room) = walk(&rendered)?;
                let mut told = Vec::new();
                for behind in images {
                    let (found, found_room) = walk(&behind?)?;
                    told.extend(differences(&expected, &found, &Comparison::default()));
                    if expected_room != found_room {
                        told.push(format!("statfs shows {found_room:?} instead of {expected_room:?}"));
                    }
                }
                Ok(told)
            };
            compare().unwrap_or_else(|error| vec![error])
        },
    );
    check_count(&count, &images);
    assert_eq!(log.map(|log| kernel_complaints(&log)).unwrap_or_default(), Vec::<String>::new());
}

/// What Floe renders passes the check without which the kernel does not mount what another user's process has rendered.
#[test]
fn kept_images_are_sound() {
    let corpus = Corpus::locate_or_fixtures();
    let (images, count, decoded) = (images(&corpus), AtomicUsize::new(0), AtomicUsize::new(0));
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let folder = tempfile::tempdir().expect("a directory");
            let check = || -> floe_image::Result<Vec<String>> {
                let front = Front::of_record(&corpus, image)?;
                let image_file = image_file(&corpus, image, folder.path());
                let original_len = fs::metadata(&image_file).expect("ours").len();
                let mut told = Vec::new();
                for (name, device) in [("without", None), ("with", Some(image_file.as_path()))] {
                    let Ok(kept) = kept(&front, &folder.path().join(name), device) else { continue };
                    count.fetch_add(1, Relaxed);
                    // Without anything to decode, the original is a device only if it has plain data.
                    let behind = Front::of_kept(sources_of(&corpus, image), image.format, &kept)?;
                    let in_image = behind.image.data_in_image();
                    let all =
                        KernelRights { original_len: device.map(|_| original_len), algorithms: Algorithms::FASTER };
                    if let Err(error) = check_soundness(&kept, all, None) {
                        told.push(format!("{name}: {error}"));
                    }
                    // The root directory is that of the image.
                    let alone = UserRules { only_user: Some(65_533), permits_devices: true };
                    if check_soundness(&kept, all, Some(alone)).is_ok() {
                        told.push(format!("{name}: it admits others than one user"));
                    }
                    let none = KernelRights { algorithms: Algorithms::default(), ..all };
                    if check_soundness(&kept, none, None).is_ok() == (in_image == DataInImage::Compressed) {
                        told.push(format!("{name}: {in_image:?} without the right to decode"));
                    }
                    decoded.fetch_add(usize::from(in_image == DataInImage::Compressed), Relaxed);
                    let short = KernelRights { original_len: device.map(|_| 4096), ..all };
                    if in_image != DataInImage::None
                        && original_len > 8192
                        && check_soundness(&kept, short, None).is_ok()
                    {
                        told.push(format!("{name}: data behind the end of the original"));
                    }
                }
                Ok(told)
            };
            check().unwrap_or_else(|error| vec![error.to_string()])
        },
    );
    check_count(&count, &images);
    assert!(decoded.into_inner() > 0);
}

/// Another process can serve a front over kept metadata: addresses do not depend on what was read before, in which order.
#[test]
fn addresses_follow_from_the_kept_file() {
    const STEP: u64 = 64 << 10;
    let corpus = Corpus::locate_or_fixtures();
    let images = images(&corpus);
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let folder = tempfile::tempdir().expect("a directory");
            let path = folder.path().join("kept");
            let compare = || -> floe_image::Result<Vec<String>> {
                let front = Front::of_record(&corpus, image)?;
                let Ok(first) = kept(&front, &path, None) else { return Ok(Vec::new()) };
                let file = File::open(&path).expect("it is there");
                let second = KeptImage::verify(file, &IDENTITY).expect("it was written whole");
                let forwards = Front::of_kept(sources_of(&corpus, image), image.format, &first)?.image;
                let backwards = Front::of_kept(sources_of(&corpus, image), image.format, &second)?.image;
                let large_len = VirtualImage::LARGE_LEN.min(LARGE_BYTES_COMPARED);
                let files = [(VirtualImage::NID, forwards.len()), (VirtualImage::LARGE_NID, large_len)];
                let parts: Vec<_> = files
                    .iter()
                    .flat_map(|(nid, len)| (0..*len).step_by(STEP as usize).map(|at| (*nid, ByteRange::new(at, STEP))))
                    .collect();
                let map = |image: &VirtualImage, (nid, range): (Nid, ByteRange)| {
                    let mut extents = Vec::new();
                    image.map(nid, range, &mut extents).map(|()| extents).map_err(|error| error.to_string())
                };
                let mut later: Vec<_> = parts.iter().rev().map(|part| map(&backwards, *part)).collect();
                later.reverse();
                let differs = |(part, later): &(&(Nid, ByteRange), Result<_, _>)| map(&forwards, **part) != *later;
                Ok(parts.iter().zip(later).filter(differs).map(|(part, _)| format!("{part:?} differs")).collect())
            };
            compare().unwrap_or_else(|error| vec![error.to_string()])
        },
    );
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let corpus = Corpus::locate_or_fixtures();
    let image = images(&corpus).into_iter().find(|image| image.name.contains("lz4")).expect("an image with LZ4");
    let folder = tempfile::tempdir().expect("a directory");
    let front = Front::of_record(&corpus, &image).expect("it is opened");
    let path = folder.path().join("kept");
    drop(kept(&front, &path, None).expect("it is kept"));
    let open = || File::open(&path).expect("it is there");
    assert!(KeptImage::verify(open(), &[4; 32]).is_err(), "the identity of another image");

    // Each block of the file, changed in one bit.
    let len = fs::metadata(&path).expect("it is there").len();
    let writable = File::options().read(true).write(true).open(&path).expect("it is there");
    for at in (40..len).step_by(4096) {
        let mut byte = [0];
        writable.read_exact_at(&mut byte, at).expect("read");
        writable.write_all_at(&[byte[0] ^ 1], at).expect("written");
        assert!(KeptImage::verify(open(), &IDENTITY).is_err(), "a changed bit at {at}");
        writable.write_all_at(&byte, at).expect("written");
    }
    assert!(KeptImage::verify(open(), &IDENTITY).is_ok());
    // All lengths but the right one, as if the rest was not written.
    for wrong in [0, 4096, 8192, len - 4096, len - 1, len + 4096] {
        let file = File::options().read(true).write(true).open(&path).expect("it is there");
        file.set_len(wrong).expect("shortened");
        assert!(KeptImage::verify(open(), &IDENTITY).is_err(), "{wrong} bytes");
        // The rest of the last block is zeros.
        file.set_len(len).expect("lengthened");
        assert_eq!(KeptImage::verify(open(), &IDENTITY).is_ok(), wrong >= len - 1, "{wrong} bytes and zeros");
        fs::remove_file(&path).expect("removed");
        drop(kept(&front, &path, None).expect("it is kept"));
        assert!(KeptImage::verify(open(), &IDENTITY).is_ok());
    }
}

#[test]
fn work_that_ends_early_leaves_nothing_valid() {
    let corpus = Corpus::locate_or_fixtures();
    let image = images(&corpus).into_iter().find(|image| image.name.contains("lz4")).expect("an image with LZ4");
    let front = Front::of_record(&corpus, &image).expect("it is opened");
    let folder = tempfile::tempdir().expect("a directory");
    let mut steps_left = 0;
    let mut pace = || {
        steps_left -= 1;
        if steps_left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ended = folder.path().join("ended");
    let result = keep(Arc::clone(&front.original), None, &new_file(&ended), &IDENTITY, BYTES_MAX, &mut pace);
    assert!(matches!(result, Err(NotKept::Ended)), "{result:?}");
    let small = folder.path().join("small");
    let mut pace = || ControlFlow::Continue(());
    let result = keep(Arc::clone(&front.original), None, &new_file(&small), &IDENTITY, 8192, &mut pace);
    assert!(matches!(result, Err(NotKept::TooLarge)), "{result:?}");
    for path in [ended, small] {
        assert!(KeptImage::verify(File::open(path).expect("it is there"), &IDENTITY).is_err());
    }
}

/// If this fails because the crate renders something else now, raise `VERSION` of kept images with the number here: files of
/// earlier versions must not be mounted.
#[test]
fn another_rendering_has_another_version() {
    let demo = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs")).expect("it is there");
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("image");
    fs::write(&image, &demo).expect("there is room");
    let front = Front::of_bytes(demo, Format::Erofs).expect("it is opened");
    let header = |name: &str, image: Option<&Path>| {
        let path = folder.path().join(name);
        drop(kept(&front, &path, image).expect("it is kept"));
        let mut bytes = [0; 8];
        let file = File::open(&path).expect("it is there");
        // The version and the checksum.
        [8, 56].map(|at| {
            file.read_exact_at(&mut bytes, 4096 + at).expect("read");
            u64::from_le_bytes(bytes)
        })
    };
    assert_eq!(header("kept", None), [4, 11_183_121_334_116_688_660]);
    assert_eq!(header("kept with a device", Some(&image)), [4, 599_349_725_349_091_793]);
}
