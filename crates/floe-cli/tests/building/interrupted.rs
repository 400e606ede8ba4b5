//! Builds of both formats that are killed or fail at random points: under the name of the image there is the complete image,
//! the earlier one, or nothing.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

use std::{
    env, fs,
    io::{Seek, SeekFrom, Write},
    os::unix::{
        fs::{FileExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use floe::OpenOptions;
use floe_testkit::{
    Random,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::{
    full_disk::Disk,
    mkfs_erofs::manifest_of,
    mkfs_output::{LoopDevice, Mount, SHUTDOWN, run},
    support::program::Serving,
};

/// Command lines, with `IMAGE` and `SOURCE`. The first word is the name of the program.
const BUILDS: [&str; 7] = [
    "floe mkfs --quiet -z lz4 IMAGE SOURCE",
    "mksquashfs SOURCE IMAGE -quiet -no-progress -noappend -comp gzip -Xcompression-level 1",
    "floe mkfs --quiet -z zstd,3 -C 64k --fragments tails --dedupe --verity IMAGE SOURCE",
    "mkfs.erofs --quiet -zlz4hc -Ededupe,fragments IMAGE SOURCE",
    "floe mkfs --quiet --format squashfs -z zstd,1 --verity IMAGE SOURCE",
    "floe mkfs --quiet --chunk 4k IMAGE SOURCE.tar.gz",
    "mksquashfs SOURCE IMAGE -quiet -no-progress -noappend -comp lz4 -b 16K -no-fragments",
];

/// The content under the name before a build that replaces an image.
const EARLIER: &[u8] = b"an earlier image";

/// How often builds are interrupted in each way: `FLOE_INTERRUPTED_BUILDS`, by default as often as there are builds.
fn attempts() -> usize {
    env::var("FLOE_INTERRUPTED_BUILDS").map_or(BUILDS.len(), |count| count.parse().expect("a number"))
}

/// The seed of the random points, which is printed if an attempt fails.
fn seed() -> u64 {
    let given = env::var("FLOE_SEED").map(|seed| seed.parse().expect("a number"));
    given.unwrap_or_else(|_| u64::from(std::process::id()))
}

/// A source, an archive of it, and what each build makes of it.
struct Scene {
    folder: tempfile::TempDir,
    /// The bytes of the image and of the file with its root hash, and how long the build took.
    complete: Vec<(Vec<u8>, Option<Vec<u8>>, Duration)>,
}

impl Scene {
    /// With a text and small files; `has_noise`: also with data that cannot be compressed.
    fn new(has_noise: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = folder.path().join("tree");
        let mut random = Random::new(3);
        fs::create_dir_all(tree.join("small")).expect("made");
        fs::write(tree.join("text"), random.text(600_000)).expect("written");
        if has_noise {
            fs::write(tree.join("noise"), random.noise(700_000)).expect("written");
        }
        for number in 0..300 {
            fs::write(tree.join(format!("small/{number}")), random.text(100 + number * 20)).expect("written");
        }
        run(
            "tar",
            &["-C", folder.path().to_str().expect("plain"), "-czf", &format!("{}.tar.gz", tree.display()), "tree"],
        );
        let mut scene = Self { folder, complete: Vec::new() };
        for (build, line) in BUILDS.iter().enumerate() {
            let image = scene.folder.path().join("image");
            let started = Instant::now();
            let status = scene.start(build, &image, &tree).wait().expect("our own child");
            assert!(status.success(), "{line}");
            scene.complete.push((fs::read(&image).expect("built"), root_hash(&image), started.elapsed()));
            let _ = (fs::remove_file(&image), fs::remove_file(root_hash_path(&image)));
        }
        scene
    }

    fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// Starts a build; its messages go to the file `messages`.
    fn start(&self, build: usize, image: &Path, source: &Path) -> Child {
        let words: Vec<String> = BUILDS[build]
            .split(' ')
            .map(|word| word.replace("IMAGE", image.to_str().expect("plain")))
            .map(|word| word.replace("SOURCE", source.to_str().expect("plain")))
            .collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg0(&words[0]).args(&words[1..]).env("SOURCE_DATE_EPOCH", "1700000000");
        let messages = fs::File::create(self.messages()).expect("there is room");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages).spawn().expect("floe starts")
    }

    fn messages(&self) -> PathBuf {
        self.folder.path().join("messages")
    }

    /// Checks what a build left in a directory: `image`, perhaps with its root hash, and nothing else, unless it was stopped while
    /// it replaced the earlier image. Returns whether it is the new image.
    fn is_new(&self, build: usize, directory: &Path, (had_earlier, was_stopped): (bool, bool), what: &str) -> bool {
        let image = directory.join("image");
        let names = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("listed").file_name());
        let known = ["image", "image.dmverity", "lost+found"];
        let others = names.filter(|name| known.iter().all(|known| name != known));
        let hash = root_hash(&image);
        let (complete, complete_hash, _) = &self.complete[build];
        for name in others {
            // A file that replaces another one has a temporary name for a moment, in which it is complete.
            let bytes = fs::read(directory.join(&name)).expect("it is there");
            let is_complete = bytes == *complete || bytes == EARLIER || complete_hash.as_ref() == Some(&bytes);
            let is_temporary = was_stopped && had_earlier && name.to_string_lossy().starts_with(".image.");
            assert!(is_temporary && is_complete, "{what}: {name:?} is left");
            fs::remove_file(directory.join(&name)).expect("it is there");
        }
        match fs::read(&image) {
            Err(error) => {
                assert!(!had_earlier && hash.is_none(), "{what}: the earlier image is gone: {error}");
                false
            }
            Ok(found) if found == EARLIER => {
                assert!(had_earlier && hash.is_none(), "{what}: the earlier image has another root hash");
                false
            }
            Ok(found) => {
                assert!(found == *complete, "{what}: {} bytes of {} are there", found.len(), complete.len());
                assert!(hash.is_none() || hash == *complete_hash, "{what}: another root hash");
                true
            }
        }
    }

    /// Checks the messages of a failed build: a line that says what failed.
    fn assert_told(&self, status: ExitStatus, what: &str) -> String {
        let told = fs::read_to_string(self.messages()).expect("text");
        assert_eq!(status.code(), Some(1), "{what}: {status}: {told}");
        assert_eq!(told.lines().count(), 1, "{what}: {told}");
        told
    }
}

fn root_hash_path(image: &Path) -> PathBuf {
    image.with_file_name("image.dmverity")
}

fn root_hash(image: &Path) -> Option<Vec<u8>> {
    fs::read(root_hash_path(image)).ok()
}

/// Runs attempts with the number of a build, and whether there is an earlier image. `attempt` returns whether the image is new.
/// Returns how often it was not, and was.
fn each_attempt(mut attempt: impl FnMut(usize, bool, &mut Random, &str) -> bool) -> [usize; 2] {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut outcomes = [0, 0];
    for number in 0..attempts() {
        let (build, has_earlier) = (number % BUILDS.len(), number % 2 == 1);
        let what = format!("attempt {number}, FLOE_SEED={seed}: {}", BUILDS[build]);
        outcomes[usize::from(attempt(build, has_earlier, &mut random, &what))] += 1;
    }
    outcomes
}

fn prepare(directory: &Path, has_earlier: bool) -> PathBuf {
    let image = directory.join("image");
    for path in [&image, &root_hash_path(&image)] {
        let _ = fs::remove_file(path);
    }
    if has_earlier {
        fs::write(&image, EARLIER).expect("there is room");
        fs::File::open(&image).and_then(|file| file.sync_all()).expect("synced");
    }
    image
}

/// A random time up to a little more than a build takes.
fn random_pause(random: &mut Random, took: Duration) -> Duration {
    took.mul_f64(random.below(1_150) as f64 / 1_000.0)
}

#[test]
fn killed_builds_leave_no_part_of_an_image() {
    let scene = Scene::new(true);
    let place = tempfile::tempdir().expect("a folder");
    let outcomes = each_attempt(|build, has_earlier, random, what| {
        let image = prepare(place.path(), has_earlier);
        let mut child = scene.start(build, &image, &scene.tree());
        thread::sleep(random_pause(random, scene.complete[build].2));
        let ended = child.try_wait().expect("our own child");
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        let is_new = scene.is_new(build, place.path(), (has_earlier, true), what);
        assert!(is_new || ended.is_none(), "{what}: it ended with {ended:?} before, without an image");
        is_new
    });
    eprintln!("killed builds: {} without the new image, {} with it", outcomes[0], outcomes[1]);
}

#[test]
fn builds_on_a_disk_that_is_full_leave_no_part_of_an_image() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = Scene::new(true);
    let outcomes = each_attempt(|build, has_earlier, random, what| {
        // Archives, ends of files and repeats need space beside the image.
        let most = 2 * scene.complete[build].0.len() as u64 + (4 << 20);
        let disk = Disk::new(&format!("size={}k", 16 + random.below(most >> 10)));
        let image = prepare(disk.directory(), has_earlier);
        let status = scene.start(build, &image, &scene.tree()).wait().expect("our own child");
        let is_new = scene.is_new(build, disk.directory(), (has_earlier, false), what);
        assert_eq!(status.success(), is_new, "{what}");
        if !is_new {
            let told = scene.assert_told(status, what);
            assert!(told.contains("No space left on device"), "{what}: {told}");
        }
        is_new
    });
    eprintln!("builds on a full disk: {} failed, {} did not", outcomes[0], outcomes[1]);
}

#[test]
fn builds_on_a_disk_that_fails_leave_no_part_of_an_image() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    for program in ["mkfs.ext4", "perl"] {
        if let Err(error) = Command::new(program).arg("-V").output() {
            return skip::skipped(&format!("{program} does not run: {error}"));
        }
    }
    let scene = Scene::new(true);
    let device = LoopDevice::new();
    run("mkfs.ext4", &["-q", &device.path]);
    let directory = scene.folder.path().join("disk");
    let outcomes = each_attempt(|build, has_earlier, random, what| {
        let mount = Mount::new(&device.path, &directory);
        let image = prepare(&directory, has_earlier);
        run("sync", &["--file-system", directory.to_str().expect("plain")]);
        let mut child = scene.start(build, &image, &scene.tree());
        thread::sleep(random_pause(random, scene.complete[build].2));
        let ended = child.try_wait().expect("our own child");
        // From now on, each write fails with EIO, and what was not synced is lost.
        run("perl", &["-e", SHUTDOWN, directory.to_str().expect("plain")]);
        let status = child.wait().expect("our own child");
        if !status.success() {
            let told = scene.assert_told(status, what);
            assert!(told.contains("error"), "{what}: {told}");
        }
        mount.end(&device);
        let mount = Mount::new(&device.path, &directory);
        let is_new = scene.is_new(build, &directory, (has_earlier, true), what);
        assert!(is_new || ended.is_none(), "{what}: the image is lost after {ended:?}");
        mount.end(&device);
        is_new
    });
    eprintln!("builds on a failing disk: {} without the new image, {} with it", outcomes[0], outcomes[1]);
}

#[test]
fn builds_from_a_source_that_fails_leave_no_part_of_an_image() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::new(false);
    let sound = scene.folder.path().join("sound.sqfs");
    run_floe(&["mkfs", "--quiet", "--format=squashfs", "-z", "gzip,1"], &[&sound, &scene.tree()]);
    let sound = fs::read(&sound).expect("built");
    // The field inode_table_start: the data ends there.
    let data_end = u64::from_le_bytes(sound[64..72].try_into().expect("eight bytes"));
    let place = tempfile::tempdir().expect("a folder");
    let [failed, _] = each_attempt(|build, has_earlier, random, what| {
        // The checksum of a block does not match.
        let damaged = scene.folder.path().join("damaged.sqfs");
        fs::write(&damaged, &sound).expect("there is room");
        let offset = 96 + random.below(data_end - 96);
        let byte = [sound[offset as usize] ^ 0x55];
        fs::File::options().write(true).open(&damaged).expect("made").write_all_at(&byte, offset).expect("written");
        let source = Serving::new(&damaged, [""; 0]);
        let image = prepare(place.path(), has_earlier);
        if BUILDS[build].contains(".tar.gz") {
            // Archives are not in the mount; another format takes their place.
            let status = scene.start(0, &image, &source.place.path).wait().expect("our own child");
            scene.assert_told(status, what);
            return scene.is_new(0, place.path(), (has_earlier, false), what);
        }
        let status = scene.start(build, &image, &source.place.path).wait().expect("our own child");
        let told = scene.assert_told(status, what);
        assert!(told.contains("cannot read"), "{what}: byte {offset}: {told}");
        scene.is_new(build, place.path(), (has_earlier, false), what)
    });
    assert_eq!(failed, attempts(), "no image has unreadable files");
}

fn run_floe(arguments: &[&str], paths: &[&Path]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    assert!(command.args(arguments).args(paths).status().expect("floe runs").success(), "{arguments:?}");
}

#[test]
fn sources_that_change_give_sound_images() {
    let scene = Scene::new(true);
    let place = tempfile::tempdir().expect("a folder");
    let tree = scene.tree();
    let calm = walk::directory(&tree, DirectoryWalk::default()).expect("it can be read");
    // Every third file changes all the time.
    let is_calm = |number: usize| !number.is_multiple_of(3);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| change(&tree.join("small"), &stop));
        let outcomes = each_attempt(|build, has_earlier, _, what| {
            let image = prepare(place.path(), has_earlier);
            let status = scene.start(build, &image, &tree).wait().expect("our own child");
            if !status.success() {
                scene.assert_told(status, what);
                let found = fs::read(&image).ok();
                assert_eq!(found.as_deref(), Some(EARLIER).filter(|_| has_earlier), "{what}");
                return false;
            }
            run_floe(&["check", "--quiet"], &[&image]);
            let found = manifest_of(&image, &OpenOptions::default());
            let prefix = if BUILDS[build].contains(".tar.gz") { "/tree" } else { "" };
            for number in (0..300).filter(|number| is_calm(*number)) {
                let path = format!("/small/{number}");
                let expected = calm.entry(path.as_bytes()).expect("it is there");
                let found = found.entry(format!("{prefix}{path}").as_bytes());
                assert_eq!(found.map(|entry| &entry.sha256), Some(&expected.sha256), "{what}: {path}");
            }
            true
        });
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes[1] > 0, "{outcomes:?}");
    });
}

/// Changes every third file of a directory in all ways, until it is told to stop.
fn change(directory: &Path, stop: &AtomicBool) {
    let mut random = Random::new(9);
    while !stop.load(Ordering::Relaxed) {
        let path = directory.join((random.below(100) * 3).to_string());
        let other = directory.join(format!("moved{}", random.below(10)));
        let len = 1 + random.below(40_000) as usize;
        let text = random.text(len);
        // Any of these may find that another one has removed the file.
        let _ = match random.below(8) {
            0 => fs::write(&path, &text),
            1 => fs::File::options().append(true).open(&path).and_then(|mut file| file.write_all(&text)),
            2 => fs::File::options().write(true).open(&path).and_then(|file| file.set_len(random.below(9_000))),
            3 => fs::File::options().write(true).open(&path).and_then(|mut file| {
                file.seek(SeekFrom::Start(random.below(5_000)))?;
                file.write_all(&text)
            }),
            4 => fs::rename(&path, &other),
            5 => fs::rename(&other, &path),
            6 => fs::remove_file(&path).and_then(|()| fs::write(&path, &text)),
            _ => fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + random.below(0o177) as u32)),
        };
        thread::sleep(Duration::from_micros(200));
    }
}
