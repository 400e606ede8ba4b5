//! The targets of `floe mkfs`, and how it treats existing ones.

use std::{
    fs::{self, File, Permissions},
    os::unix::{
        fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, UNIX_EPOCH},
};

use floe::{Image, OpenOptions};
use floe_mkfs::{
    Error, Expected, NoProgress, Options, Progress, Source, Verified, Verifier, VerifyError, build_unnamed,
};
use floe_testkit::skip::{self, Need};
use tempfile::TempDir;

use crate::support::program::{said, until, wait_until_unused};

/// The offset and the value of the superblock's magic.
const MAGIC_OFFSET: u64 = 1024;
const MAGIC: [u8; 4] = 0xE0F5_E1E2_u32.to_le_bytes();
/// The ioctl that stops a file system at once, as in a crash (`FS_IOC_SHUTDOWN`), and its argument: the journal is not
/// written either.
pub(crate) const SHUTDOWN: &str = "open F, '<', $ARGV[0] or die $!; my $how = pack('L', 2); \
    ioctl(F, 0x8004587D, $how) or die \"ioctl: $!\"";

/// A folder with a small tree in `source`.
fn scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("a/b")).expect("made");
    fs::write(source.join("text"), "some text\n".repeat(10_000)).expect("written");
    fs::write(source.join("a/b/small"), "a few bytes").expect("written");
    folder
}

fn floe(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg("mkfs").args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command.output().expect("floe runs")
}

fn drop_in(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0("mkfs.erofs").args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command.output().expect("floe runs")
}

fn succeed(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, said(output));
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The entries of the root.
fn names(image: &Path) -> Vec<String> {
    let image = Image::open(image, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let entries = image.read_dir(image.root()).map(|entry| entry.expect("it can be read").name);
    entries.map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
}

/// A loop device over a file of 16 MiB; freed when dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: String,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    pub(crate) fn new() -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(16 << 20).expect("there is room");
        let path = run("losetup", &["--find", "--show", file.path().to_str().expect("plain")]);
        Self { path, _file: file }
    }

    fn has_magic(&self) -> bool {
        let mut magic = [0; 4];
        File::open(&self.path).expect("opened").read_exact_at(&mut magic, MAGIC_OFFSET).expect("read");
        magic == MAGIC
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}

/// A mount by the kernel; ended when dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn new(device: &str, directory: &Path) -> Self {
        fs::create_dir_all(directory).expect("made");
        run("mount", &[device, directory.to_str().expect("plain")]);
        Self(directory.to_owned())
    }
}

impl Mount {
    /// Unmounts, and waits until the kernel has let go of the device: copies of the mount may be in namespaces of other tests.
    pub(crate) fn end(self, device: &LoopDevice) {
        wait_until_unused(&self.0);
        let name = Path::new(&device.path).file_name().expect("a name").to_owned();
        drop(self);
        until("the device is free", || !Path::new("/sys/fs/ext4").join(&name).exists());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_replaced_file_keeps_its_mode_and_owner() {
    let folder = scene();
    let image = folder.path().join("image");
    let is_root = Need::Root.missing().is_none();
    for (mode, program) in [(0o600, floe as fn(&TempDir, &[&str]) -> Output), (0o664, floe), (0o2750, drop_in)] {
        fs::write(&image, "what was there before").expect("written");
        if is_root {
            chown(&image, Some(1234), Some(2345)).expect("root may");
        }
        fs::set_permissions(&image, Permissions::from_mode(mode)).expect("it is ours");
        let before = fs::metadata(&image).expect("it is there");
        succeed(&program(&folder, &["image", "source"]));
        let after = fs::metadata(&image).expect("it is there");
        assert_ne!(before.ino(), after.ino(), "readers of the earlier image keep it");
        let kept = |status: &fs::Metadata| (status.mode() & 0o7777, status.uid(), status.gid());
        assert_eq!(kept(&after), kept(&before), "{mode:o}");
        assert_eq!(names(&image), ["a", "text"], "{mode:o}");
    }
}

#[test]
fn a_link_stays_and_leads_to_the_image() {
    let folder = scene();
    fs::create_dir(folder.path().join("store")).expect("made");
    symlink("second", folder.path().join("first")).expect("linked");
    symlink("store/image", folder.path().join("second")).expect("linked");
    // Once the target does not exist, once it is replaced.
    for round in 0..2 {
        succeed(&floe(&folder, &["first", "source", "--compress=zstd", "--fragments=tails"]));
        for (link, target) in [("first", "second"), ("second", "store/image")] {
            let found = fs::read_link(folder.path().join(link)).expect("it is still a link");
            assert_eq!(found, Path::new(target), "{round}");
        }
        assert_eq!(names(&folder.path().join("store/image")), ["a", "text"], "{round}");
        let store = fs::read_dir(folder.path().join("store")).expect("listed");
        assert_eq!(store.count(), 1, "{round}: something else is left");
    }
}

#[test]
fn a_device_in_use_is_refused() {
    if !skip::ready(&[Need::Root, Need::KernelErofs]) {
        return;
    }
    let folder = scene();
    let device = LoopDevice::new();
    succeed(&floe(&folder, &[&device.path, "source", "-T1"]));
    assert_eq!(names(Path::new(&device.path)), ["a", "text"]);
    let before = fs::read(&device.path).expect("read");
    let mount = Mount::new(&device.path, &folder.path().join("mount"));
    fs::write(folder.path().join("source/other"), "more").expect("written");
    for program in [floe, drop_in] {
        let output = program(&folder, &[&device.path, "source"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&device.path) && said.contains("in use") && said.lines().count() == 1, "{said}");
        assert!(fs::read(&device.path).expect("read") == before, "the device was written to");
    }
    drop(mount);
    succeed(&floe(&folder, &[&device.path, "source"]));
    assert_eq!(names(Path::new(&device.path)), ["a", "other", "text"]);
    let _mount = Mount::new(&device.path, &folder.path().join("mount"));
    assert_eq!(fs::read(folder.path().join("mount/other")).expect("read"), b"more");
}

/// A check that rejects every image.
struct Refusal;

impl Verifier for Refusal {
    fn verify(
        &mut self,
        _image: &Path,
        _devices: &[PathBuf],
        _expected: &Expected<'_>,
        _progress: &mut dyn Progress,
    ) -> Result<Verified, VerifyError> {
        Err(VerifyError::Fault("a fault".into()))
    }
}

#[test]
fn a_device_holds_a_whole_image_or_none() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    let device = LoopDevice::new();
    let source = Source::Directory(folder.path().join("source"));
    let options = Options::new(&device.path);
    succeed(&floe(&folder, &[&device.path, "source"]));
    assert!(device.has_magic());
    let error = build_unnamed(&options, &[source], Some(&mut Refusal), &mut NoProgress).err().expect("it is refused");
    assert!(matches!(error, Error::Verify(_)), "{error}");
    assert!(!device.has_magic(), "a refused image keeps its magic");
    // A build that fails before it writes leaves the device unchanged.
    succeed(&floe(&folder, &[&device.path, "source"]));
    assert_eq!(floe(&folder, &[&device.path, "nothing"]).status.code(), Some(1));
    assert!(device.has_magic(), "the refused build did not change the device");
}

#[test]
fn an_image_in_its_own_source_is_left_out() {
    let folder = scene();
    symlink("source/a/image", folder.path().join("link")).expect("linked");
    let text = |arguments: &[&str], program: fn(&TempDir, &[&str]) -> Output| {
        let output = program(&folder, arguments);
        succeed(&output);
        (fs::read(folder.path().join("source/a/image")).expect("read"), said(&output))
    };
    let (first, note) = text(&["source/a/image", "source", "-T1"], floe);
    assert_eq!(note, "");
    for output in ["source/a/image", "./source/../source/a/image", "link"] {
        let (second, note) = text(&[output, "source", "-T1"], floe);
        assert!(first == second, "{output}: what was there before is in the image");
        let expected = format!("floe: the output {output} is inside the source; it was omitted\n");
        assert_eq!(note, expected);
    }
    let (theirs, note) = text(&["-T1", "source/a/image", "source"], drop_in);
    assert!(
        theirs.len() <= first.len() && note.contains("<W> erofs: the output source/a/image is inside the source"),
        "{note}"
    );
    // The same name in another source is another file.
    fs::create_dir_all(folder.path().join("other/a")).expect("made");
    fs::write(folder.path().join("other/a/image"), "no image").expect("written");
    succeed(&floe(&folder, &["source/a/image", "source", "other"]));
    let image = Image::open(folder.path().join("source/a/image"), &OpenOptions::default()).expect("it opens");
    let nid = image.resolve("/a/image").expect("the file of the other source");
    assert_eq!(image.attr(nid).expect("read").size, 8);
}

#[test]
fn an_image_is_synced_before_success_is_reported() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    for program in ["mkfs.ext4", "perl"] {
        if let Err(error) = Command::new(program).arg("-V").output() {
            return skip::skipped(&format!("{program} does not run: {error}"));
        }
    }
    let folder = scene();
    let device = LoopDevice::new();
    run("mkfs.ext4", &["-q", &device.path]);
    let directory = folder.path().join("disk");
    let earlier = {
        let mount = Mount::new(&device.path, &directory);
        succeed(&floe(&folder, &["disk/earlier", "source/a"]));
        run("sync", &["--file-system", directory.to_str().expect("plain")]);
        let earlier = fs::read(directory.join("earlier")).expect("read");
        mount.end(&device);
        earlier
    };
    for image in ["new", "earlier"] {
        let mount = Mount::new(&device.path, &directory);
        let path = directory.join(image);
        succeed(&floe(&folder, &[path.to_str().expect("plain"), "source"]));
        let whole = fs::read(&path).expect("read");
        assert!(whole != earlier);
        run("perl", &["-e", SHUTDOWN, directory.to_str().expect("plain")]);
        mount.end(&device);
        let mount = Mount::new(&device.path, &directory);
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{image} after a crash: {error}"));
        assert!(found == whole, "{image} after a crash: {} bytes of {}", found.len(), whole.len());
        mount.end(&device);
    }
}

#[test]
fn the_environment_bounds_times() {
    let folder = scene();
    let command = |epoch: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg("mkfs").args(arguments).env("SOURCE_DATE_EPOCH", epoch).current_dir(folder.path());
        command.output().expect("floe runs")
    };
    let touch = |path: &str, seconds: u64| {
        let file = File::open(folder.path().join(path)).expect("opened");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("it is ours");
    };
    let all = ["text", "a/b/small", "a/b", "a", "."].map(|path| format!("source/{path}"));
    all.iter().for_each(|path| touch(path, 1_700_000_000));
    touch("source/text", 1_000_000_000);
    succeed(&command("1500000000", &["one", "source"]));
    all.iter().skip(1).for_each(|path| touch(path, 1_700_000_001));
    succeed(&command("1500000000", &["two", "source"]));
    let [one, two] = ["one", "two"].map(|image| fs::read(folder.path().join(image)).expect("read"));
    assert!(one == two, "times later than that of the environment are replaced");
    let times = |name: &str| {
        let image = Image::open(folder.path().join(name), &OpenOptions::default()).expect("it opens");
        ["/", "/text", "/a/b/small"]
            .map(|path| image.attr(image.resolve(path).expect("it is there")).expect("read").modified.seconds)
    };
    assert_eq!(times("one"), [1_500_000_000, 1_000_000_000, 1_500_000_000]);
    // The command line takes precedence.
    succeed(&command("1500000000", &["three", "source", "-T7"]));
    assert_eq!(times("three"), [7; 3]);
    for epoch in ["", "soon", "-1", "0x10", "1.5", "99999999999999999999"] {
        let output = command(epoch, &["four", "source"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{epoch}: {said}");
        assert!(said.contains("SOURCE_DATE_EPOCH") && said.lines().count() == 1, "{epoch}: {said}");
        assert!(!folder.path().join("four").exists(), "{epoch}");
    }
}

#[test]
fn levels_are_those_of_the_algorithm() {
    let folder = scene();
    for (compression, words) in [
        ("lz4,99", "lz4 has no levels"),
        ("lz4,1", "lz4 has no levels"),
        ("lz4hc,0", "1 to 12"),
        ("lz4hc,13", "1 to 12"),
        ("lzma,10", "0 to 9, or 100 to 109"),
        ("lzma,110", "0 to 9, or 100 to 109"),
        ("deflate,0", "1 to 12"),
        ("deflate,13", "1 to 12"),
        ("zstd,0", "1 to 22"),
        ("zstd,23", "1 to 22"),
        ("zstd,300", "1 to 22"),
        ("zstd,-5", "1 to 22"),
        ("zstd,fast", "'fast' is not a level"),
        ("zstd:9", "'zstd:9': a level follows a comma: use zstd,9"),
        ("lz4:zstd:9", "'zstd:9': a level follows a comma: use zstd,9"),
        ("zstd,3:9", "'zstd:9': a level follows a comma: use zstd,9"),
        ("zstd=9", "'zstd=9': a level follows a comma: use zstd,9"),
        ("zstd-9", "'zstd-9': a level follows a comma: use zstd,9"),
        ("zstd:brotli", "'brotli' is unknown: use lz4"),
        ("zstd:lz4hc,13", "1 to 12"),
    ] {
        let output = floe(&folder, &["image", "source", "-z", compression]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{compression}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{compression}: {said}");
        assert!(!folder.path().join("image").exists(), "{compression}");
    }
}

#[test]
fn settings_without_effect_are_refused() {
    let folder = scene();
    for (arguments, words) in [
        (&["--compress=lz4", "--dictionary=1M"][..], "--dictionary has no effect: only lzma and zstd have one"),
        (&["--compress=deflate", "--dictionary=4k"], "--dictionary has no effect"),
        (&["--compress=zstd", "--lz4-window=16k"], "--lz4-window has no effect: only lz4 and lz4hc have one"),
        (&["--pcluster=64k"], "--compress"),
        (&["--dictionary=64k"], "--compress"),
        (&["--lz4-window=16k"], "--compress"),
        (&["--exclude=/"], "--exclude: the root cannot be excluded"),
        (&["--exclude=."], "--exclude: the root cannot be excluded"),
    ] {
        let output = floe(&folder, &[&["image", "source"], arguments].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{arguments:?}: {said}");
        assert!(!folder.path().join("image").exists(), "{arguments:?}");
    }
    succeed(&floe(&folder, &["image", "source", "--compress=lz4:zstd", "--dictionary=64k", "--lz4-window=64k"]));
}

#[test]
fn images_are_not_written_to_standard_output() {
    let folder = scene();
    let output = floe(&folder, &["-", "source"]);
    assert_eq!(output.status.code(), Some(2));
    let expected = "floe: an image cannot be written to standard output: name a file, or ./- for one named -\n";
    assert_eq!(said(&output), expected);
    assert!(!folder.path().join("-").exists());
    succeed(&floe(&folder, &["./-", "source"]));
    assert_eq!(names(&folder.path().join("-")), ["a", "text"]);
}

#[test]
fn an_archive_is_not_replaced_by_an_image() {
    let folder = scene();
    let place = |name: &str| folder.path().join(name);
    let tar = place("one.tar");
    run("tar", &["-C", place("source").to_str().expect("text"), "-cf", tar.to_str().expect("text"), "."]);
    run("gzip", &["-k", tar.to_str().expect("text")]);
    fs::copy(&tar, place("two.tar")).expect("copied");
    for name in ["one.tar", "one.tar.gz"] {
        let before = fs::read(place(name)).expect("read");
        let refused = floe(&folder, &[name, "two.tar"]);
        assert_eq!(refused.status.code(), Some(2));
        let why = "is an archive or a compressed file: name the image first, then its sources";
        assert_eq!(said(&refused), format!("floe: {name} {why}\n"));
        assert!(fs::read(place(name)).expect("read") == before, "{name}");
    }
    // Other files are replaced; the original replaces archives too.
    fs::write(place("note"), "some text").expect("written");
    succeed(&floe(&folder, &["note", "two.tar"]));
    succeed(&floe(&folder, &["note", "two.tar"]));
    succeed(&drop_in(&folder, &["--tar=f", "one.tar", "two.tar"]));
    assert_eq!(names(&place("note")), names(&place("one.tar")));
}

#[test]
fn excluded_paths_must_exist() {
    let folder = scene();
    run(
        "tar",
        &[
            "-cf",
            &folder.path().join("source.tar").display().to_string(),
            "-C",
            &folder.path().join("source").display().to_string(),
            ".",
        ],
    );
    for source in ["source", "source.tar"] {
        for (excludes, missing) in [
            (&["a/b"][..], None),
            (&["/a/b/"], None),
            (&["./a"], None),
            (&["a", "a/b/small"], None),
            (&["nothing"], Some("nothing")),
            (&["a/b", "a/c"], Some("a/c")),
            (&["source/a"], Some("source/a")),
            (&["tex"], Some("tex")),
        ] {
            let options: Vec<String> = excludes.iter().map(|path| format!("--exclude={path}")).collect();
            let mut arguments = vec!["image", source];
            arguments.extend(options.iter().map(String::as_str));
            let output = floe(&folder, &arguments);
            let said = said(&output);
            match missing {
                None => {
                    assert!(output.status.success(), "{arguments:?}: {said}");
                    fs::remove_file(folder.path().join("image")).expect("it was made");
                }
                Some(missing) => {
                    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
                    assert!(
                        said.contains(&format!("the source has no {missing}")) && said.lines().count() == 1,
                        "{said}"
                    );
                    assert!(!folder.path().join("image").exists(), "{arguments:?}");
                }
            }
        }
    }
    // The original accepts a path that does not exist.
    succeed(&drop_in(&folder, &["--exclude-path=nothing", "image", "source"]));
}
