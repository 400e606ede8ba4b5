//! Decoded blocks: the spill file, temporary pages for LZ4 windows, and the rest of blocks in the page cache.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use floe_testkit::{
    Random, keep_kernel_caches,
    skip::{self, Need},
};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use serde_json::Value;

use crate::support::program::{Serving, demo, floe, run, told, umount, until};

/// Small text files, many to a block, read in random order.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut random = Random::new(1);
    let mut files = BTreeMap::new();
    for number in 0..600 {
        let words = (0..1000).map(|_| format!("word{} ", random.below(5000))).collect::<String>();
        let name = PathBuf::from(format!("{:016x}", random.below(u64::MAX)));
        let contents = format!("{number} {words}").into_bytes();
        fs::write(directory.join(&name), &contents).expect("room");
        files.insert(name, contents);
    }
    files.into_iter().collect()
}

fn can_hold_nameless_files(directory: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    let is_memory = rustix::fs::statfs(directory).is_ok_and(|statistics| statistics.f_type as u64 == TMPFS);
    !is_memory && rustix::fs::open(directory, OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU).is_ok()
}

/// An image of small files whose blocks are costly to decode.
struct Scene {
    on_disk: &'static Path,
    image: PathBuf,
    /// In the order in which they are read.
    files: Vec<(PathBuf, Vec<u8>)>,
    _directories: [tempfile::TempDir; 2],
}

impl Scene {
    fn new() -> Option<Self> {
        if !skip::ready(&[Need::Root, Need::Fuse]) {
            return None;
        }
        let on_disk = Path::new(env!("CARGO_TARGET_TMPDIR"));
        if !can_hold_nameless_files(on_disk) {
            skip::skipped("the file system of the build is in memory, or has no files without a name");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let source = directory.path().join("source");
        fs::create_dir(&source).expect("a directory");
        let mut files = files(&source);
        let mut order = Random::new(2);
        files.sort_by_cached_key(|_| order.below(u64::MAX));
        let beside = tempfile::tempdir_in(on_disk).expect("a directory");
        let image = beside.path().join("image.erofs");
        let mkfs = ["mkfs", "-zlzma,1", "-C65536", "--fragments=all", "--verify=none"];
        assert_eq!(told(&run(floe().args(mkfs).arg(&image).arg(&source))), (Some(0), String::new()));
        Some(Self { on_disk, image, files, _directories: [directory, beside] })
    }
}

/// What `floe status` says about the cache of a mount: the blocks in the spill file and the reads of them, and all decodes.
fn status(mount: &Path) -> (Option<u64>, Option<u64>, u64) {
    let output = run(floe().arg("status").arg("--json").arg(mount));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (blocks, hits) = (&report["block_cache"]["spill_file_blocks"], &report["block_cache"]["spill_file_hits"]);
    (blocks.as_u64(), hits.as_u64(), report["work"]["decodes"].as_u64().expect("a number"))
}

/// Empties the files without a name that a process has open. Returns their number.
fn empty_nameless_files(pid: rustix::process::Pid) -> usize {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let is_nameless = |path: &PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        // Files in memory have other names.
        let is_nameless = target.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"#"));
        is_nameless && fs::metadata(path).is_ok_and(|file| file.len() > 0)
    };
    let paths = descriptors.map(|entry| entry.expect("it runs").path()).filter(is_nameless);
    let truncated = paths.map(|path| fs::File::options().write(true).truncate(true).open(path).expect("root may"));
    truncated.collect::<Vec<_>>().len()
}

#[test]
fn a_spill_file_that_lost_its_blocks_is_no_error() {
    let Some(scene) = Scene::new() else { return };
    let options = format!("cache=1M,spill-file=1G:{}", scene.on_disk.display());
    let serving = Serving::new(&scene.image, ["-o", &options]);
    let mount = &serving.place.path;
    let (first, second) = scene.files.split_at(scene.files.len() / 2);
    for (round, files) in [first, second].into_iter().enumerate() {
        for (name, contents) in files {
            let read = fs::read(mount.join(name));
            assert!(read.as_ref().is_ok_and(|read| read == contents), "round {round}: {}: {read:?}", name.display());
        }
        let (blocks, hits, _) = status(mount);
        assert!(blocks > Some(5) && hits > Some(50), "round {round}: {blocks:?} {hits:?}");
        if round == 0 {
            assert!(empty_nameless_files(serving.pid) > 0, "there is a spill file");
        }
    }
}

#[test]
fn costly_shared_blocks_are_decoded_once_with_a_spill_file() {
    let Some(Scene { on_disk, image, files, _directories }) = Scene::new() else { return };
    let named = format!("cache=1M,spill-file=1G:{}", on_disk.display());
    for (options, is_kept) in [("cache=1M", false), ("cache=1M,spill-file=1G", true), (&named, true)] {
        let serving = Serving::new(&image, ["-o", options]);
        let mount = &serving.place.path;
        // Returns the number of decodes for a read of all files that the kernel has no pages of.
        let read_all = || {
            let (.., before) = status(mount);
            for (name, contents) in &files {
                let file = File::open(mount.join(name)).expect("it is there");
                fadvise(&file, 0, None, Advice::DontNeed).expect("a hint");
                let mut read = vec![0; contents.len()];
                assert!(file.read_exact_at(&mut read, 0).is_ok() && read == *contents, "{}", name.display());
            }
            status(mount).2 - before
        };
        if is_kept {
            // Blocks are written in the background: a read that looks for one before that decodes it again.
            let mut passes = Vec::new();
            until(&format!("a pass without decodes with {options}"), || {
                passes.push(read_all());
                passes.last() == Some(&0)
            });
            let (blocks, hits, _) = status(mount);
            assert!(blocks > Some(5) && hits > Some(100), "{blocks:?} {hits:?} {passes:?}");
        } else {
            assert!(read_all() > 100 && read_all() > 100);
            let (blocks, hits, _) = status(mount);
            assert_eq!((blocks, hits), (Some(0), Some(0)));
        }
    }
}

#[test]
fn nothing_is_spilled_into_a_directory_that_another_user_could_exchange() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().join("home/spilled");
    fs::create_dir_all(&directory).expect("made");
    std::os::unix::fs::chown(folder.path().join("home"), Some(65_534), None).expect("given away");
    let options = format!("spill-file=1M:{}", directory.display());
    let mut serving = Serving::new(&demo(), ["-o", &options]);
    assert_eq!(fs::read_dir(&directory).expect("a directory").count(), 0);
    assert!(fs::read(serving.place.file("guide/reading.txt")).is_ok());
    assert_eq!(umount(&serving.place.path), (Some(0), String::new()));
    let (status, errors) = serving.end();
    let expected = "floe: continuing without a spill file: ";
    assert!(status.success() && errors.starts_with(expected) && errors.contains("another user"), "{errors}");
}

/// The unit of the window's pages.
const PAGE_BYTES: u64 = 4096;

/// The number of offsets at which the file is read.
const READ_COUNT: u64 = 300;

#[test]
fn small_windows_need_fewer_temporary_pages() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    let mut random = Random::new(31);
    let content = random.text(6 << 20);
    fs::write(tree.join("file"), &content).expect("ours");
    let mut pages_in_all = Vec::new();
    for window_bytes in [64 << 10, 16 << 10, 4 << 10] {
        let image = folder.path().join(format!("{window_bytes}.erofs"));
        let mut command = floe();
        command.args(["mkfs", "--compress", "lz4", "--pcluster", "256k", "--lz4-window", &window_bytes.to_string()]);
        let output = run(command.arg(&image).arg(&tree));
        assert_eq!(told(&output).0, Some(0), "{output:?}");
        // Without a cache, a read of a part of a large block decodes the block into temporary pages.
        let serving = Serving::new(&image, ["-o", "cache=0,prefetch=none,fetch-around=off"]);
        let file = File::open(serving.place.file("file")).expect("it is there");
        fadvise(&file, 0, None, Advice::Random).expect("a hint");
        let mut places = Random::new(32);
        for _ in 0..READ_COUNT {
            let offset = places.below(content.len() as u64 - 5000);
            let mut bytes = vec![0; 5000];
            file.read_exact_at(&mut bytes, offset).expect("data");
            assert!(bytes == content[offset as usize..offset as usize + 5000], "{window_bytes} {offset}");
        }
        let output = run(floe().arg("status").arg(&serving.place.path).arg("--json"));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let lz4 = |field: &str| report["lz4"][field].as_u64().expect("a number");
        // LZ4 matches reach back at most 65,535 bytes.
        assert_eq!(lz4("window_bytes_max"), window_bytes.min(65_535));
        assert_eq!(
            lz4("temporary_pages_max"),
            window_bytes / PAGE_BYTES,
            "reads in the middle of blocks need the whole window"
        );
        assert!(lz4("temporary_pages") <= lz4("decodes") * window_bytes / PAGE_BYTES);
        assert!(lz4("decodes") >= READ_COUNT / 2, "{}", lz4("decodes"));
        pages_in_all.push(lz4("temporary_pages"));
    }
    assert!(pages_in_all[0] > 3 * pages_in_all[1] && pages_in_all[1] > 3 * pages_in_all[2], "{pages_in_all:?}");
    eprintln!("temporary pages for {READ_COUNT} reads with windows of 64, 16 and 4 KiB: {pages_in_all:?}");
}

const FILE_BYTES: u64 = 2 << 20;

const PAGE_COUNT: u64 = FILE_BYTES / PAGE_BYTES;

fn report(serving: &Serving) -> serde_json::Value {
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_rest_of_what_small_reads_touch_is_stored() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let _kept = keep_kernel_caches();
    let folder = tempfile::tempdir().expect("a directory");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("ours");
    let content = Random::new(51).text(FILE_BYTES as usize);
    fs::write(tree.join("file"), &content).expect("ours");
    let image = folder.path().join("image");
    for (options, requests_max) in [
        (&[][..], PAGE_COUNT / 2),
        // Blocks of a few pages, which have little rest.
        (&["-zlz4"], PAGE_COUNT / 8),
        (&["-zlz4", "-C65536"], PAGE_COUNT / 2),
        (&["-zlz4", "-C65536", "--fragments", "all"], PAGE_COUNT / 2),
    ] {
        let _ = fs::remove_file(&image);
        let made = run(floe().arg("mkfs").args(options).arg(&image).arg(&tree));
        assert!(made.status.success(), "{made:?}");
        let serving = Serving::new(&image, ["-o", "front=fuse"]);
        let file = File::open(serving.place.file("file")).expect("a file");
        fadvise(&file, 0, None, Advice::Random).expect("a hint");
        let read = |pages: &mut dyn Iterator<Item = u64>| {
            for offset in pages.map(|page| page * PAGE_BYTES) {
                let mut page = [0; PAGE_BYTES as usize];
                file.read_exact_at(&mut page, offset).expect("data");
                assert!(page[..] == content[offset as usize..][..page.len()], "{options:?}: offset {offset}");
            }
        };
        // Four pages of each cluster, far from each other.
        read(&mut (3..PAGE_COUNT).step_by(16));
        read(&mut (9..PAGE_COUNT).step_by(16));
        until("the rest is stored", || report(&serving)["read_around"]["stored_bytes"].as_u64() > Some(FILE_BYTES / 2));
        let before = report(&serving)["requests"]["read"].as_u64().expect("a number");
        read(&mut (0..PAGE_COUNT).rev());
        let requests = report(&serving)["requests"]["read"].as_u64().expect("a number") - before;
        eprintln!("{options:?}: {requests} requests for {PAGE_COUNT} pages");
        assert!(requests < requests_max, "{options:?}: {requests} requests for {PAGE_COUNT} pages");
    }
}
