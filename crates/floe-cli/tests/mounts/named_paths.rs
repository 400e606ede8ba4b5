//! Paths that lead through other processes and through descriptors, for every path that a user may name: the program opens the
//! files before it confines itself.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    skip::{self, Need},
};

use crate::support::program::{Place, demo, run, told, until};

/// The descriptors that [`Holder`]s have open, and the commands inherit: their numbers and the names of the files.
const OPEN: [(u32, &str); 5] = [(5, "written"), (6, "tree"), (7, "image.erofs"), (8, "image.sqfs"), (9, "devices")];

/// The programs by whose names the tests run.
const NAMES: [&str; 8] =
    ["floe", "unsquashfs", "fsck.erofs", "dump.erofs", "mkfs.erofs", "erofsfuse", "squashfuse", "squashfuse_ll"];

/// A process whose descriptors and working directory lead to the files of a directory.
struct Holder {
    child: Child,
    /// The directory as the process sees it.
    directory: PathBuf,
}

impl Holder {
    /// Starts the process in `directory`. If it `is_elsewhere`, the files are copies that only its mount namespace has.
    fn start(directory: &Path, is_elsewhere: bool) -> Self {
        let descriptors: Vec<String> = OPEN.iter().map(|(number, name)| format!("{number}<{name}")).collect();
        let hold = format!("exec {} 4<. && echo ready && exec sleep 600", descriptors.join(" "));
        let mut command = Command::new("sh");
        let mut seen = directory.to_owned();
        if is_elsewhere {
            seen = directory.join("elsewhere");
            let hide = "mkdir hidden elsewhere && cp -r image* devices tree written pipe hidden && \
                mount --bind hidden elsewhere && cd elsewhere";
            command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", &format!("{hide} && {hold}")]);
        } else {
            command.args(["-c", &hold]);
        }
        let mut child = command.current_dir(directory).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("text");
        assert_eq!(line, "ready\n");
        Self { child, directory: seen }
    }

    /// The paths that lead through the process to the file `name` in its directory.
    fn paths_to(&self, name: &str) -> Vec<NamedPath> {
        let process = format!("/proc/{}", self.child.id());
        let paths = vec![
            format!("{process}/cwd/{name}"),
            format!("{process}/fd/4/{name}"),
            format!("{process}/root{}/{name}", self.directory.display()),
        ];
        let seen = PathBuf::from(&paths[2]);
        let mut paths: Vec<NamedPath> =
            paths.into_iter().map(|given| NamedPath { given, seen: seen.clone() }).collect();
        // The name may belong to another file meanwhile.
        paths.extend(open_as(name).map(|number| {
            let given = format!("{process}/fd/{number}");
            NamedPath { seen: PathBuf::from(&given), given }
        }));
        paths
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A path to a file.
#[derive(Clone)]
struct NamedPath {
    /// As the program gets it.
    given: String,
    /// A path that leads this process to the file.
    seen: PathBuf,
}

fn open_as(name: &str) -> Option<u32> {
    OPEN.iter().find(|(_, other)| *other == name).map(|(number, _)| *number)
}

/// A directory with files, and processes that lead to them.
struct Scene {
    folder: tempfile::TempDir,
    holders: Vec<Holder>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let place = |name: &str| folder.path().join(name);
        let corpus = Corpus::fixtures();
        let devices = corpus.materialise(&corpus.image("erofs-rebuild-devices"));
        fs::copy(demo(), place("image.erofs")).expect("a copy");
        fs::copy(corpus.materialise(&corpus.image("sqfs-meta")).path, place("image.sqfs")).expect("a copy");
        fs::copy(&devices.path, place("image.devices")).expect("a copy");
        fs::create_dir(place("devices")).expect("ours");
        let tags = ["0f1e2d3c4b5a69788796a5b4c3d2e1f0", "0f1e2d3c4b5a69788796a5b4c3d2e1f1"];
        for ((device, tag), number) in devices.devices.iter().zip(tags).zip(1..) {
            fs::copy(device, place("devices").join(tag)).expect("a copy");
            fs::copy(device, place(&format!("image.device{number}"))).expect("a copy");
        }
        fs::create_dir(place("tree")).expect("ours");
        fs::write(place("tree/file"), "content\n").expect("ours");
        fs::write(place("written"), "old content").expect("ours");
        assert!(run(Command::new("mkfifo").arg(place("pipe"))).status.success());
        fs::create_dir(place("bin")).expect("ours");
        for name in NAMES {
            symlink(env!("CARGO_BIN_EXE_floe"), place("bin").join(name)).expect("a link");
        }
        let holders = vec![Holder::start(folder.path(), false), Holder::start(folder.path(), true)];
        Self { folder, holders }
    }

    /// All paths to the file `name` of the directory.
    fn paths_to(&self, name: &str) -> Vec<NamedPath> {
        let directories = ["/proc/self/cwd", "/proc/thread-self/cwd", "/dev/fd/4", "/proc/self/fd/4"];
        let mut own: Vec<String> = directories.iter().map(|directory| format!("{directory}/{name}")).collect();
        if let Some(number) = open_as(name) {
            own.extend(["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"].map(|fds| format!("{fds}/{number}")));
        }
        let seen = self.folder.path().join(name);
        let own = own.into_iter().map(|given| NamedPath { given, seen: seen.clone() });
        self.holders.iter().flat_map(|holder| holder.paths_to(name)).chain(own).collect()
    }

    /// Runs a program, which inherits the descriptors, in the directory.
    fn run(&self, name: &str, arguments: &[String]) -> Output {
        let descriptors: Vec<String> = OPEN.iter().map(|(number, name)| format!("{number}<>{name}")).collect();
        let descriptors = descriptors.join(" ").replace("6<>tree", "6<tree").replace("9<>devices", "9<devices");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec \"$@\" 4<. {descriptors}"), "sh"]);
        run(command.arg(self.folder.path().join("bin").join(name)).args(arguments).current_dir(self.folder.path()))
    }

    /// As [`run`](Self::run), with a complaint unless the program succeeds silently.
    fn try_run(&self, name: &str, arguments: &[String]) -> Result<String, String> {
        let output = self.run(name, arguments);
        match told(&output) {
            (Some(0), errors) if errors.is_empty() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            (code, errors) => Err(format!("{} ends with {code:?}: {errors}", arguments.join(" "))),
        }
    }
}

fn words(arguments: &[&str], path: &str) -> Vec<String> {
    arguments.iter().map(|word| word.replace("PATH", path)).collect()
}

#[test]
fn images_and_devices_are_read_through_any_path() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = Scene::new();
    // The file to name, the program, and its arguments.
    let rows: [(&str, &str, &[&str]); 20] = [
        ("image.erofs", "floe", &["ls", "PATH"]),
        ("image.erofs", "floe", &["cat", "PATH", "/README.txt"]),
        ("image.erofs", "floe", &["stat", "PATH", "/README.txt"]),
        ("image.erofs", "floe", &["check", "--quiet", "PATH"]),
        ("image.erofs", "floe", &["dump", "PATH"]),
        ("image.erofs", "floe", &["cat", "--sandbox=require", "PATH", "/README.txt"]),
        ("image.erofs", "floe", &["cat", "--sandbox=off", "PATH", "/README.txt"]),
        ("image.erofs", "fsck.erofs", &["--extract", "PATH"]),
        ("image.erofs", "dump.erofs", &["--ls", "--path=/", "PATH"]),
        ("image.sqfs", "floe", &["ls", "-l", "PATH"]),
        ("image.sqfs", "unsquashfs", &["-lln", "PATH"]),
        ("image.sqfs", "unsquashfs", &["-s", "PATH"]),
        ("image.sqfs", "unsquashfs", &["-pf", "-", "PATH"]),
        ("image.device1", "floe", &["check", "--quiet", "--device=PATH", "--device=image.device2", "image.devices"]),
        ("image.device2", "floe", &["dump", "--device=image.device1", "--device=PATH", "image.devices"]),
        ("image.device1", "fsck.erofs", &["--device=PATH", "--device=image.device2", "image.devices"]),
        ("image.device1", "dump.erofs", &["--device=PATH", "--device=image.device2", "-s", "image.devices"]),
        ("devices", "floe", &["check", "--quiet", "--device-directory=PATH", "image.devices"]),
        ("devices", "floe", &["check", "--quiet", "--device-directory=PATH", "--sandbox=require", "image.devices"]),
        ("image.devices", "floe", &["check", "--quiet", "--device-directory=devices", "PATH"]),
    ];
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(name, program, arguments)| {
            let expected = scene.try_run(program, &words(arguments, name)).expect("a plain path works");
            let shown = |text: &str, path: &str| text.replace(path, "PATH");
            let check = |NamedPath { given, .. }| match scene.try_run(program, &words(arguments, &given)) {
                Ok(output) if shown(&output, &given) == shown(&expected, name) => None,
                Ok(output) => Some(format!("{given}: {output}")),
                Err(complaint) => Some(complaint),
            };
            scene.paths_to(name).into_iter().filter_map(check).collect()
        },
    );
}

#[test]
fn images_are_extracted_to_any_path() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = Scene::new();
    let rows: [(&str, &[&str], &str); 5] = [
        ("floe", &["extract", "--quiet", "image.erofs", "-C", "PATH"], "README.txt"),
        ("floe", &["extract", "--quiet", "--sandbox=off", "image.erofs", "-C", "PATH"], "README.txt"),
        ("fsck.erofs", &["--extract=PATH", "image.erofs"], "README.txt"),
        ("unsquashfs", &["-quiet", "-no-progress", "-no-xattrs", "-d", "PATH", "image.sqfs", "small"], "small"),
        ("unsquashfs", &["-quiet", "-no-progress", "-no-xattrs", "-f", "-d", "PATH", "image.sqfs", "small"], "small"),
    ];
    // The target is missing, or it exists.
    let targets = || scene.paths_to("target").into_iter().flat_map(|path| [(path.clone(), false), (path, true)]);
    let rows: Vec<_> = rows.iter().flat_map(|row| targets().map(move |target| (row, target))).collect();
    let mut complaints = Vec::new();
    for ((program, arguments, file), (NamedPath { given, seen }, exists)) in rows {
        if exists {
            fs::create_dir(&seen).expect("ours");
        }
        if let Err(complaint) = scene.try_run(program, &words(arguments, &given)) {
            complaints.push(complaint);
        }
        if !seen.join(file).exists() {
            complaints.push(format!("{program} {given}: nothing is there"));
        }
        let _ = fs::remove_dir_all(&seen);
    }
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn an_extraction_that_fails_leaves_no_target_behind_any_path() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = Scene::new();
    for NamedPath { given, seen } in scene.paths_to("target") {
        let output = scene.run("floe", &words(&["extract", "written", "-C", "PATH"], &given));
        assert_eq!((told(&output).0, seen.exists()), (Some(3), false), "{given}: {output:?}");
    }
}

#[test]
fn images_are_built_from_and_into_any_path() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = Scene::new();
    let programs: [(&str, &[&str]); 2] = [("floe", &["mkfs", "--quiet"]), ("mkfs.erofs", &["--quiet"])];
    let mut complaints = Vec::new();
    for (program, options) in programs {
        let build = |arguments: &[&str], built: &Path| {
            let arguments: Vec<String> = options.iter().chain(arguments).map(|word| (*word).to_owned()).collect();
            let content = scene.try_run(program, &arguments).and_then(|_| {
                scene.try_run("floe", &["cat".to_owned(), built.display().to_string(), "/file".to_owned()])
            });
            (content.as_deref() != Ok("content\n")).then(|| format!("{program} {arguments:?}: {content:?}"))
        };
        for NamedPath { given, .. } in scene.paths_to("tree") {
            complaints.extend(build(&["built", &given], &scene.folder.path().join("built")));
        }
        for NamedPath { given, seen } in scene.paths_to("new") {
            complaints.extend(build(&[&given, "tree"], &seen));
            fs::remove_file(&seen).expect("it was built");
        }
        // The image is in the file that others have open, not in one that takes its name.
        for NamedPath { given, seen } in scene.paths_to("written") {
            fs::write(&seen, "old content").expect("ours");
            let opened = fs::File::open(&seen).expect("ours");
            complaints.extend(build(&[&given, "tree"], &seen));
            let is_descriptor = given.ends_with("fd/5");
            let len = opened.metadata().expect("known").len();
            if is_descriptor && len < 4096 {
                complaints.push(format!("{program} {given}: the open file has {len} bytes"));
            }
        }
    }
    assert_eq!(complaints, Vec::<String>::new());
}

#[test]
fn mounts_use_any_path() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::new();
    let rows: [(&str, &str, &[&str]); 8] = [
        ("image.erofs", "floe", &["mount", "--daemon", "PATH", "DIR"]),
        ("image.erofs", "floe", &["mount", "--daemon", "-o", "front=fuse", "PATH", "DIR"]),
        ("image.erofs", "erofsfuse", &["PATH", "DIR"]),
        ("image.sqfs", "squashfuse", &["PATH", "DIR"]),
        ("image.sqfs", "squashfuse_ll", &["PATH", "DIR"]),
        ("devices", "floe", &["mount", "--daemon", "--device-directory=PATH", "image.devices", "DIR"]),
        (
            "image.device1",
            "floe",
            &["mount", "--daemon", "--device=PATH", "--device=image.device2", "image.devices", "DIR"],
        ),
        ("tree", "floe", &["mount", "--daemon", "-o", "spill-file=1m:PATH", "image.erofs", "DIR"]),
    ];
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(name, program, arguments)| {
            let mut complaints = Vec::new();
            for NamedPath { given, .. } in scene.paths_to(name) {
                let place = Place::new();
                let arguments = words(arguments, &given);
                let arguments = arguments.iter().map(|word| word.replace("DIR", place.path.to_str().expect("text")));
                if let Err(complaint) = scene.try_run(program, &arguments.collect::<Vec<_>>()) {
                    complaints.push(complaint);
                }
                if !place.is_mounted() || fs::read_dir(&place.path).map_or(0, Iterator::count) == 0 {
                    complaints.push(format!("{program} {given}: nothing is mounted"));
                }
                place.wait_until_unused();
            }
            complaints
        },
    );
}

#[test]
fn a_mount_notifies_a_pipe_at_any_path() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::new();
    for NamedPath { given, seen } in scene.paths_to("pipe") {
        let place = Place::new();
        let reader = Command::new("timeout").args(["20", "cat"]).arg(&seen).stdout(Stdio::piped()).spawn();
        let reader = reader.expect("it starts");
        let mounted = ["-o", &format!("notify_pipe={given}"), "image.sqfs", place.path.to_str().expect("text")];
        scene.try_run("squashfuse_ll", &mounted.map(str::to_owned)).expect("it is mounted");
        assert_eq!(reader.wait_with_output().expect("it runs").stdout, b"s", "{given}");
    }
}

#[test]
fn a_directory_on_which_an_image_is_mounted_has_any_path() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.folder.path().join("target")).expect("ours");
    let here = scene.folder.path().join("target");
    for NamedPath { given, .. } in scene
        .paths_to("target")
        .into_iter()
        .filter(|path| path.seen == here || path.given.starts_with(&format!("/proc/{}/", scene.holders[0].child.id())))
    {
        for arguments in [&["mount", "--daemon", "image.erofs", "PATH"][..], &["status", "PATH"], &["umount", "PATH"]] {
            if let Err(complaint) = scene.try_run("floe", &words(arguments, &given)) {
                panic!("{complaint}");
            }
        }
        until("it is unmounted", || !here.join("README.txt").exists());
    }
}
