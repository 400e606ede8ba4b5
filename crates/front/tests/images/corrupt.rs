//! The kernel never complains about a virtual image, however corrupt the original is.

use std::{
    collections::BTreeMap,
    env, fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use floe_testkit::{
    MemorySource, check_rows,
    corpus::{Corpus, CorruptImage},
    skip::{self, Need},
};

use crate::{
    kept::kept,
    support::{Front, KernelFront, KernelLog, kernel_complaints},
};

/// The maximum number of inodes examined in one image.
const INODES_MAX: usize = 400;

/// The number of bytes read of each file.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The errors that programs may see: of unreadable data, and of missing names.
const ALLOWED: [&str; 7] = ["list 5", "read 5", "search 2", "search 5", "target 5", "attributes 5", "stat 5"];

/// The maximum depth of a walk.
const DEPTH_MAX: usize = 30;

/// Everything that a program can observe, including errors, in the order of the paths; inode numbers only if `numbers`.
fn explore(root: &Path, numbers: bool) -> Vec<String> {
    let mut told = Vec::new();
    let mut pending = vec![(root.to_path_buf(), 0)];
    while let Some((path, depth)) = pending.pop() {
        if told.len() > INODES_MAX {
            break;
        }
        let mut note = |what: &str, result: io::Result<String>| {
            let error = |error: io::Error| format!("error {}", error.raw_os_error().unwrap_or(0));
            told.push(format!("{path:?} {what} {}", result.unwrap_or_else(error)));
        };
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            note("stat", Err(io::Error::last_os_error()));
            continue;
        };
        let number = numbers.then(|| metadata.ino());
        note("stat", Ok(format!("{:?}", (metadata.mode(), metadata.size(), metadata.nlink(), number))));
        let mut names = vec![0; 65_536];
        let listed = rustix::fs::llistxattr(&path, &mut names[..]).map(|len| len.to_string());
        note("attributes", listed.map_err(io::Error::from));
        let kind = metadata.file_type();
        if kind.is_dir() && depth < DEPTH_MAX {
            // Searched before and after it is listed, because both a search and a listing may find it broken.
            note("search", fs::symlink_metadata(path.join("no such name")).map(|_| String::new()));
            let mut children = Vec::new();
            let result = fs::read_dir(&path).and_then(|entries| {
                entries.take(INODES_MAX).try_for_each(|entry| entry.map(|entry| children.push(entry.path())))
            });
            children.sort();
            note("list", result.map(|()| children.len().to_string()));
            pending.extend(children.into_iter().map(|child| (child, depth + 1)));
        } else if kind.is_file() {
            note("read", read(&path, metadata.size()).map(|sum| sum.to_string()));
        } else if kind.is_symlink() {
            note("target", fs::read_link(&path).map(|target| format!("{target:?}")));
        } else {
            assert!(kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device());
        }
    }
    told
}

/// A sum of the first bytes of a file, and of its last.
fn read(path: &Path, size: u64) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(path)?;
    let mut sum = 0u64;
    for offset in [0, size.saturating_sub(READ_BYTES_MAX)] {
        let mut bytes = vec![0; READ_BYTES_MAX.min(size) as usize];
        let len = file.read_at(&mut bytes, offset)?;
        sum = bytes[..len].iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }
    Ok(sum)
}

#[test]
fn corrupt_images_give_errors_or_data_and_no_kernel_message() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let only = env::var("FLOE_IMAGE").unwrap_or_default();
    let images: Vec<CorruptImage> =
        corpus.corrupt_images().into_iter().filter(|image| image.name.contains(&only)).collect();
    let log = KernelLog::from_now().expect("root reads the kernel's log");
    let errors = Mutex::new(BTreeMap::<String, usize>::new());
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            // An image may be refused completely.
            let Ok(front) = Front::of_bytes(corpus.corrupt_bytes(image), image.format()) else { return Vec::new() };
            let mounted = match KernelFront::new(front, "") {
                Ok(mounted) => mounted,
                Err(reason) => return vec![reason],
            };
            let first = explore(&mounted.path(), true);
            for words in first.iter().filter_map(|line| line.rsplit_once(" error ")) {
                let kind = format!("{} {}", words.0.rsplit(' ').next().unwrap_or_default(), words.1);
                *errors.lock().expect("no panic while held").entry(kind).or_default() += 1;
            }
            let mut told: Vec<String> = mounted.forget("").err().into_iter().collect();
            let second = explore(&mounted.path(), true);
            if first != second {
                let differs = first.iter().zip(&second).find(|(first, second)| first != second);
                told.push(format!("not the same once more: {differs:?}"));
            }
            told
        },
    );
    assert_eq!(kernel_complaints(&log), Vec::<String>::new());
    let errors = errors.into_inner().expect("no panic while held");
    assert!(errors.keys().all(|kind| ALLOWED.contains(&kind.as_str())), "{errors:?}");
    assert!(["list 5", "read 5"].iter().all(|kind| errors.contains_key(*kind)), "{errors:?}");
}

#[test]
fn a_corrupt_image_is_not_kept_or_shows_the_same() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let log = KernelLog::from_now().expect("root reads the kernel's log");
    let outcomes = [const { AtomicUsize::new(0) }; 2];
    check_rows(
        &corpus.corrupt_images(),
        |image| image.name.clone(),
        |image| {
            let bytes = corpus.corrupt_bytes(image);
            let Ok(front) = Front::of_bytes(bytes.clone(), image.format()) else { return Vec::new() };
            let folder = tempfile::tempdir().expect("a directory");
            let (path, file) = (folder.path().join("kept"), folder.path().join("image"));
            fs::write(&file, &bytes).expect("there is room");
            let Ok(kept) = kept(&front, &path, Some(&file)) else {
                outcomes[0].fetch_add(1, Relaxed);
                return Vec::new();
            };
            outcomes[1].fetch_add(1, Relaxed);
            let compare = || -> Result<Vec<String>, String> {
                let sources = vec![Arc::new(MemorySource::new(bytes.clone())) as _];
                let behind = Front::of_kept(sources, image.format(), &kept).map_err(|error| error.to_string())?;
                let behind = KernelFront::of_kept(behind, &path, Some(&file))?;
                let rendered = KernelFront::new(front, "")?;
                let told = |mount: &KernelFront| {
                    let root = mount.path().display().to_string();
                    explore(&mount.path(), false)
                        .into_iter()
                        .map(move |line| line.replace(&root, ""))
                        .collect::<Vec<_>>()
                };
                let (expected, found) = (told(&rendered), told(&behind));
                let differs = expected.iter().zip(&found).find(|(expected, found)| expected != found);
                let same_len = expected.len() == found.len();
                Ok(if same_len && differs.is_none() { Vec::new() } else { vec![format!("{differs:?}")] })
            };
            compare().unwrap_or_else(|error| vec![error])
        },
    );
    assert_eq!(kernel_complaints(&log), Vec::<String>::new());
    assert!(outcomes.iter().all(|count| count.load(Relaxed) > 0), "{outcomes:?}");
}
