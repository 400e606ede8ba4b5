//! Extraction by the built program: hostile images, users without privileges, obstacles in the target, interruptions.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::{
    copy_program,
    corpus::{Corpus, ImageRecord},
    manifest::{Comparison, Manifest, differences},
    skip::{self, Need},
    wait_until_caught,
    walk::{self, DirectoryWalk},
    workspace_root,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The offset of the names in the root directory of the demonstration image, after those of `.` and `..`.
const ROOT_NAMES: &[u8] = b"README.txtguidemapsrecords";

/// The bytes before them: six entries of 12 bytes, and three dots.
const ROOT_NAMES_OFFSET: usize = 6 * 12 + 3;

/// The entries of that directory.
const GUIDE: usize = 3;
const MAPS: usize = 4;
const RECORDS: usize = 5;

/// A target in a folder whose other files are checked for changes.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        // tmpfs stores attributes of any size, whereas ext4 has one block for them.
        let memory = Path::new("/dev/shm");
        let scratch = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("floe-extraction-").tempdir_in(scratch).expect("a scratch folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("set");
        fs::create_dir(folder.path().join("outsd")).expect("made");
        fs::write(folder.path().join("outsd/kept"), "kept").expect("written");
        Self { folder }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    fn outside(&self) -> PathBuf {
        self.folder.path().join("outsd")
    }

    /// Whether nothing changed outside the target.
    fn is_clean(&self) -> bool {
        let mut names: Vec<_> =
            fs::read_dir(self.folder.path()).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
        names.sort();
        names.retain(|name| name != "target" && name != "image");
        let inside: Vec<_> =
            fs::read_dir(self.outside()).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
        let content = fs::read(self.outside().join("kept")).expect("read");
        names == ["outsd"] && inside == ["kept"] && content == b"kept"
    }

    /// Extracts an image into the target.
    fn extract(&self, image: &Path, arguments: &[&str]) -> Output {
        command(image, &self.target(), arguments).output().expect("floe runs")
    }
}

fn command(image: &Path, target: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg("extract").arg(image).arg("-C").arg(target).args(arguments).stdin(Stdio::null());
    command
}

fn demo() -> PathBuf {
    workspace_root().join("fixtures/demo.erofs")
}

fn demo_manifest() -> Manifest {
    let corpus = Corpus::fixtures();
    corpus.manifest(&corpus.image("demo"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The demonstration image, with the root directory changed by `edit`, and without a checksum.
fn edited(edit: impl FnOnce(&mut Root<'_>)) -> Vec<u8> {
    let mut bytes = fs::read(demo()).expect("the demonstration image");
    bytes[1024 + 8] &= !1;
    let names = bytes.windows(ROOT_NAMES.len()).position(|window| window == ROOT_NAMES).expect("its root");
    edit(&mut Root { start: names - ROOT_NAMES_OFFSET, bytes: &mut bytes });
    bytes
}

struct Root<'a> {
    bytes: &'a mut [u8],
    start: usize,
}

impl Root<'_> {
    fn entry(&mut self, index: usize) -> &mut [u8] {
        &mut self.bytes[self.start + index * 12..][..12]
    }

    fn set_nid(&mut self, index: usize, nid: u64, file_type: u8) {
        let entry = self.entry(index);
        entry[..8].copy_from_slice(&nid.to_le_bytes());
        entry[10] = file_type;
    }

    fn nid(&mut self, index: usize) -> u64 {
        u64::from_le_bytes(self.entry(index)[..8].try_into().expect("eight bytes"))
    }

    /// Replaces the last three names.
    fn rename(&mut self, names: [&[u8]; 3]) {
        let blob = names.concat();
        assert_eq!(blob.len(), b"guidemapsrecords".len());
        let mut offset = ROOT_NAMES_OFFSET + b"README.txt".len();
        self.bytes[self.start + offset..][..blob.len()].copy_from_slice(&blob);
        for (index, name) in [GUIDE, MAPS, RECORDS].into_iter().zip(names) {
            self.entry(index)[8..10].copy_from_slice(&u16::try_from(offset).expect("small").to_le_bytes());
            offset += name.len();
        }
    }

    /// Makes the link `records/latest` point elsewhere, and returns its nid.
    fn aim_link(&mut self, target: &[u8; 8]) -> u64 {
        let place = self.bytes.windows(8).rposition(|window| window == b"2024.csv").expect("the link's target");
        self.bytes[place..place + 8].copy_from_slice(target);
        LATEST_NID
    }
}

/// The inode of `records/latest`.
const LATEST_NID: u64 = 4612;

#[test]
fn nothing_is_written_outside_the_target() {
    type Edit = Box<dyn Fn(&mut Root<'_>)>;
    let rows: Vec<(&str, Edit)> = vec![
        ("a parent directory as a name", Box::new(|root| root.rename([b"..", b"mapsmap", b"records"]))),
        ("a dot as a name", Box::new(|root| root.rename([b".", b"mapsmaps", b"records"]))),
        ("a slash in a name", Box::new(|root| root.rename([b"../outsd", b"maps", b"reco"]))),
        ("an absolute name", Box::new(|root| root.rename([b"/tmp/", b"maps", b"records"]))),
        ("a NUL in a name", Box::new(|root| root.rename([b"gu\0de", b"maps", b"records"]))),
        ("an empty name", Box::new(|root| root.rename([b"", b"guidemaps", b"records"]))),
        ("a directory twice", Box::new(|root| root.rename([b"evil", b"evil", b"recordss"]))),
        (
            "a link and then a directory of the same name",
            Box::new(|root| {
                let link = root.aim_link(b"../outsd");
                root.set_nid(GUIDE, link, 7);
                root.rename([b"evil", b"evil", b"recordss"]);
            }),
        ),
        (
            "a directory and then a link of the same name",
            Box::new(|root| {
                let link = root.aim_link(b"../outsd");
                root.set_nid(MAPS, link, 7);
                root.rename([b"evil", b"evil", b"recordss"]);
            }),
        ),
        (
            "a link, another name, and a directory with the link's name",
            Box::new(|root| {
                let link = root.aim_link(b"../outsd");
                root.set_nid(GUIDE, link, 7);
                let readme = root.nid(2);
                root.set_nid(MAPS, readme, 1);
                root.rename([b"evil", b"another!", b"evil"]);
            }),
        ),
        (
            "a directory that is its own parent's parent",
            Box::new(|root| {
                let own = root.nid(0);
                root.set_nid(GUIDE, own, 2);
            }),
        ),
        (
            "one directory under two names",
            Box::new(|root| {
                let maps = root.nid(MAPS);
                root.set_nid(GUIDE, maps, 2);
            }),
        ),
    ];
    for (name, edit) in rows {
        for arguments in [&[][..], &["--force"][..]] {
            let scene = Scene::new();
            let image = scene.folder.path().join("image");
            fs::write(&image, edited(|root| edit(root))).expect("written");
            let output = scene.extract(&image, arguments);
            assert!(scene.is_clean(), "{name}: {}", text(&output.stderr));
            assert!(matches!(output.status.code(), Some(1 | 3)), "{name}: {} {}", output.status, text(&output.stderr));
            let complaints = text(&output.stderr);
            assert!(complaints.lines().all(|line| line.starts_with("floe: ")), "{name}: {complaints}");
            // All other files are extracted.
            assert!(
                output.status.code() == Some(3) || scene.target().join("README.txt").is_file(),
                "{name}: {complaints}"
            );
        }
    }
}

#[test]
fn links_in_the_target_are_not_followed() {
    let scene = Scene::new();
    fs::create_dir(scene.target()).expect("made");
    symlink("../outsd", scene.target().join("maps")).expect("linked");
    symlink("../outsd/kept", scene.target().join("README.txt")).expect("linked");
    let output = scene.extract(&demo(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(scene.is_clean() && scene.target().join("maps").is_symlink());
    assert!(scene.target().join("records/2021.csv").is_file());
    assert!(text(&output.stderr).contains("/README.txt: already exists; --force replaces it"));
    // Links are replaced, not followed.
    let output = scene.extract(&demo(), &["--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(scene.is_clean() && !scene.target().join("maps").is_symlink());
    let found = walk::directory(&scene.target(), DirectoryWalk::default()).expect("readable");
    let comparison = Comparison { directory_shape_is_free: true, privileges_are_free: true, ..Comparison::default() };
    let expected = demo_manifest();
    assert_eq!(differences(&expected, &found, &comparison), Vec::<String>::new());
}

#[test]
fn parts_are_extracted_with_the_directories_that_lead_to_them() {
    let scene = Scene::new();
    let output = scene.extract(&demo(), &["records/2022.csv", "/records/latest", "/guide", "guide/reading.txt"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found = walk::directory(&scene.target(), DirectoryWalk::default()).expect("readable");
    let mut expected = Manifest::default();
    for path in ["/", "/guide", "/guide/reading.txt", "/records", "/records/2022.csv", "/records/latest"] {
        expected.insert(path.into(), demo_manifest().entry(path.as_bytes()).expect("listed").clone());
    }
    let comparison = Comparison { directory_shape_is_free: true, privileges_are_free: true, ..Comparison::default() };
    assert_eq!(differences(&expected, &found, &comparison), Vec::<String>::new());
}

#[test]
fn users_without_privileges_get_what_they_may_have() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let record = corpus.image("erofs-plain-meta");
    let (image, manifest) = (corpus.materialise(&record).path, corpus.manifest(&record));
    for (strict, code) in [(&[][..], 0), (&["--strict"][..], 1)] {
        let scene = Scene::new();
        // Only if this user can read them.
        let programs = tempfile::tempdir().expect("a folder that programs may run from");
        fs::set_permissions(programs.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let (program, copy) = (programs.path().join("floe"), scene.folder.path().join("image"));
        copy_program(env!("CARGO_BIN_EXE_floe"), &program);
        fs::copy(&image, &copy).expect("copied");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).expect("set");
        let mut command = Command::new(program);
        command.arg("extract").arg(&copy).arg("-C").arg(scene.target()).args(strict).uid(65_534).gid(65_534);
        let output = command.output().expect("floe runs");
        let complaints = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{complaints}");
        assert_eq!(complaints.lines().count(), 1, "{complaints}");
        assert!(complaints.contains("left out because of missing privileges"), "{complaints}");
        let found = walk::directory(&scene.target(), DirectoryWalk::default()).expect("readable");
        let mut expected = manifest.clone();
        for (_, entry) in expected.entries_mut() {
            // A file whose owner cannot be set gets no set-id bits.
            entry.mode &= !0o6000;
        }
        let comparison =
            Comparison { directory_shape_is_free: true, privileges_are_free: true, ..Comparison::default() };
        assert_eq!(differences(&expected, &found, &comparison), Vec::<String>::new());
    }
}

#[test]
fn unsquashfs_reports_devices_that_a_user_may_not_create() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let corpus = Corpus::fixtures();
    let image = corpus.materialise(&corpus.image("sqfs-cbase-gzip")).path;
    let programs = tempfile::tempdir().expect("a folder that programs may run from");
    fs::set_permissions(programs.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let program = programs.path().join("floe");
    copy_program(env!("CARGO_BIN_EXE_floe"), &program);
    for (options, code) in [(&["-q", "-n"][..], 2), (&["-q", "-n", "-no-exit-code"], 0)] {
        let scene = Scene::new();
        let copy = scene.folder.path().join("image");
        fs::copy(&image, &copy).expect("copied");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o644)).expect("set");
        let mut command = Command::new(&program);
        command.arg0("unsquashfs").args(options).arg("-d").arg(scene.target()).arg(&copy).uid(65_534).gid(65_534);
        let output = command.output().expect("floe runs");
        let complaints = text(&output.stderr);
        assert_eq!((output.status.code(), complaints.lines().count()), (Some(code), 1), "{complaints}");
        let device = scene.target().join("dev");
        let expected =
            format!("failed to create character device {}, because Operation not permitted\n", device.display());
        assert_eq!(complaints, expected);
    }
}

#[test]
fn special_files_get_their_modes_without_proc() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = Scene::new();
    let (tree, image) = (scene.folder.path().join("tree"), scene.folder.path().join("image"));
    fs::create_dir(&tree).expect("made");
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), rustix::fs::Mode::RUSR).expect("made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    assert!(command.arg("mkfs").arg(&image).arg(&tree).output().expect("floe runs").status.success());
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "umount -l /proc && exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_floe"),
        "extract",
    ]);
    let output = command.arg(&image).arg("-C").arg(scene.target()).output().expect("unshare runs");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert_eq!(fs::symlink_metadata(scene.target().join("fifo")).expect("there").mode() & 0o7777, 0o400);
}

#[test]
fn holes_stay_holes_in_files_of_any_size() {
    let corpus = Corpus::locate_or_fixtures();
    // If everything is compressed, holes are compressed zeros.
    let has_holes = |record: &ImageRecord| record.huge && !record.name.contains("lz4");
    for record in corpus.sample().into_iter().filter(has_holes) {
        let (scene, files) = (Scene::new(), corpus.materialise(&record));
        let output = scene.extract(&files.path, &["--jobs", "3"]);
        assert!(output.status.success(), "{}: {}", record.name, text(&output.stderr));
        let found = walk::directory(&scene.target(), DirectoryWalk { metadata_only: true, ..Default::default() });
        let found = found.expect("readable");
        let mut expected = corpus.manifest(&record);
        expected.entries_mut().for_each(|(_, entry)| entry.sha256 = None);
        let comparison =
            Comparison { directory_shape_is_free: true, privileges_are_free: true, ..Comparison::default() };
        assert_eq!(differences(&expected, &found, &comparison), Vec::<String>::new(), "{}", record.name);
        for (path, entry) in expected.entries().filter(|(_, entry)| entry.file_type == 'f') {
            let path = scene.target().join(text(path).trim_start_matches('/'));
            let taken = fs::metadata(&path).expect("there").blocks() * 512;
            assert!(taken < 64 << 20, "{}: {taken} bytes for {} in {path:?}", record.name, entry.size);
        }
    }
}

#[test]
fn an_interruption_leaves_only_whole_files() {
    if !skip::ready(&[Need::Corpus, Need::Signal(Signal::INT), Need::Signal(Signal::HUP)]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let record = corpus.image("erofs-lzma-full-allfrag");
    let (image, manifest) = (corpus.materialise(&record).path, corpus.manifest(&record));
    let mut was_interrupted = false;
    if !skip::ready(&[Need::Signal(Signal::INT)]) {
        return;
    }
    let hangups = [(Signal::HUP, 0), (Signal::HUP, 50)];
    for (signal, delay_ms) in
        [0, 5, 20, 50, 100, 200, 400].map(|delay_ms| (Signal::INT, delay_ms)).into_iter().chain(hangups)
    {
        let scene = Scene::new();
        let child =
            command(&image, &scene.target(), &["--jobs", "2"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        let child = child.expect("floe runs");
        wait_until_caught(child.id(), signal);
        thread::sleep(Duration::from_millis(delay_ms));
        kill_process(Pid::from_child(&child), signal).expect("its process id is still in use");
        let output = child.wait_with_output().expect("it ends");
        match output.status.code() {
            Some(130) => was_interrupted = true,
            // The signal arrived after the last file.
            Some(0) => {}
            _ => panic!("{} {}", output.status, text(&output.stderr)),
        }
        if !scene.target().exists() {
            continue;
        }
        let found = walk::directory(&scene.target(), DirectoryWalk::default()).expect("readable");
        for (path, entry) in found.entries().filter(|(_, entry)| entry.file_type == 'f') {
            assert_eq!(entry.sha256, manifest.entry(path).expect("in the image").sha256, "{}", text(path));
        }
    }
    assert!(was_interrupted, "no signal came in time");
}
