//! The owner of a directory above a mountpoint renames directories, and puts links in their place, while a command works.

use std::{
    fs,
    os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use floe_testkit::{
    check_rows, copy_program,
    skip::{self, Need},
};
use rustix::{mount::UnmountFlags, process::Signal};

use crate::{
    control_sockets::{self, Shared, USER},
    support::{
        front,
        program::{Place, Serving, demo, floe, processes_with, run, told, umount, until},
    },
};

/// The directory of somebody else, with the mountpoint `above/mnt`, and another directory `other/mnt`.
struct Home {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("floe-swapped-").tempdir().expect("a folder");
        let path = folder.path().canonicalize().expect("a folder");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
        for name in ["above/mnt", "other/mnt"] {
            fs::create_dir_all(path.join(name)).expect("ours");
            chown(path.join(name), Some(USER), Some(USER)).expect("ours");
        }
        Self { path, _folder: folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Renames the directory above the mountpoint, and makes its name lead to the other one.
    fn swap(&self) {
        fs::rename(self.at("above"), self.at("renamed")).expect("ours");
        symlink("other", self.at("above")).expect("ours");
    }

    /// Renames the mountpoint, and puts another directory in its place.
    fn replace(&self) {
        fs::rename(self.at("above/mnt"), self.at("above/old")).expect("ours");
        fs::create_dir(self.at("above/mnt")).expect("ours");
    }

    /// Renames the mountpoint, and puts a link in its place.
    fn replace_by_link(&self) {
        fs::rename(self.at("above/mnt"), self.at("above/old")).expect("ours");
        symlink("../other/mnt", self.at("above/mnt")).expect("ours");
    }

    /// The names in the directory on which something is mounted, in the order of the mount table.
    fn mounted(&self) -> Vec<String> {
        // Mounts of other programs may have any name.
        let table = fs::read("/proc/self/mountinfo").expect("the mount table");
        let table = String::from_utf8_lossy(&table);
        let mountpoints = table.lines().filter_map(|line| line.split(' ').nth(4));
        mountpoints
            .filter_map(|path| Some(Path::new(path).strip_prefix(&self.path).ok()?.to_str()?.to_owned()))
            .collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for name in self.mounted() {
            let _ = rustix::mount::unmount(self.at(&name), UnmountFlags::DETACH);
        }
    }
}

/// An image in a file system that stops: whoever opens or reads the image waits.
struct SlowImage {
    /// Keeps the name in the kernel's cache, also if another program empties that. Dropped before the mount.
    _name: fs::File,
    outer: Serving,
    _image: tempfile::TempDir,
    path: PathBuf,
}

impl SlowImage {
    fn new(image: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (tree, outer) = (folder.path().join("tree"), folder.path().join("outer.erofs"));
        fs::create_dir(&tree).expect("ours");
        fs::copy(image, tree.join("image")).expect("a copy");
        let made = run(floe().arg("mkfs").arg(&outer).arg(&tree));
        assert_eq!(told(&made).0, Some(0), "{made:?}");
        let outer = Serving::new(&outer, ["-oallow_other"]);
        let path = outer.place.file("image");
        let name = fs::File::options().read(true).custom_flags(libc::O_PATH).open(&path).expect("an image");
        fs::metadata(&path).expect("an image");
        Self { _name: name, outer, _image: folder, path }
    }
}

/// Whether the program, or one that it started, waits for a file system in user space.
fn waits(directory: &Path) -> bool {
    let tasks = |pid: u32| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let is_waiting = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("wchan")).is_ok_and(|place| place == "request_wait_answer")
    };
    processes_with(directory.to_str().expect("text")).into_iter().any(|pid| tasks(pid).any(is_waiting))
}

/// Starts a command that opens the image, swaps the directories while it waits, and lets it go on. Returns its output once it ends
/// or works.
fn swap_while_it_waits(
    home: &Home,
    image: &SlowImage,
    mut command: Command,
    swap: impl FnOnce(),
) -> thread::JoinHandle<Output> {
    image.outer.stop();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    until("it waits for the image", || waits(&home.at("above/mnt")));
    swap();
    image.outer.signal(Signal::CONT);
    thread::spawn(move || child.wait_with_output().expect("it ends"))
}

/// Ends the servers of mounts in a directory.
fn end(home: &Home) {
    for name in home.mounted() {
        assert_eq!(umount(&home.at(&name)), (Some(0), String::new()), "{name}");
    }
    until("the servers end", || processes_with(home.path.to_str().expect("text")).is_empty());
}

/// A command that mounts, its arguments before the image, and those behind the directory.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = vec![
        ("floe", &["mount"], &["-o", "front=fuse"]),
        ("floe", &["mount"], &["-o", "front=fuse", "--sandbox=off"]),
        ("floe", &["mount", "--daemon"], &["-o", "front=fuse"]),
        ("floe", &["mount"], &["-o", "front=fuse,auto_unmount"]),
        ("mount.floe", &[], &["-o", "front=fuse"]),
        ("mount.fuse.floe", &[], &["-o", "front=fuse"]),
        ("erofsfuse", &["-f"], &[]),
        ("erofsfuse", &[], &[]),
    ];
    if front::ready() {
        rows.extend([
            ("floe", &["mount"][..], &["-o", "front=kernel"][..]),
            ("floe", &["mount", "--daemon"], &["-o", "front=kernel"]),
            ("mount.floe", &[], &["-o", "front=kernel"]),
        ]);
    }
    rows
}

fn command(programs: &Path, (name, before, after): &Row, image: &Path, directory: &Path) -> Command {
    let program = programs.join(name);
    if !program.exists() {
        copy_program(env!("CARGO_BIN_EXE_floe"), &program);
    }
    let mut command = Command::new(program);
    command.args(*before).arg(image).arg(directory).args(*after);
    command
}

#[test]
fn an_image_is_mounted_on_the_directory_that_was_found_first() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    check_rows(
        &rows(),
        |row| format!("{row:?}"),
        |row| {
            let (image, programs) = (SlowImage::new(&demo()), tempfile::tempdir().expect("a folder"));
            let home = Home::new();
            let command = command(programs.path(), row, &image.path, &home.at("above/mnt"));
            let running = swap_while_it_waits(&home, &image, command, || home.swap());
            until("it is mounted", || !home.mounted().is_empty() || running.is_finished());
            let mounted = home.mounted();
            let read = fs::read(home.at("renamed/mnt/README.txt")).unwrap_or_default();
            end(&home);
            let output = running.join().expect("no panic");
            let mut told = Vec::new();
            if mounted != ["renamed/mnt"] {
                told.push(format!("mounts are on {mounted:?}"));
            }
            if read.is_empty() || told_code(&output) != Some(0) {
                told.push(format!("{} bytes were read; {output:?}", read.len()));
            }
            told
        },
    );
}

/// What the owner of a directory above does with `above/mnt`, what is mounted in the end, and what the command says.
type Exchange = (&'static str, fn(&Home), &'static [&'static str], &'static str);

#[test]
fn a_mountpoint_that_was_exchanged_or_removed_is_not_replaced_by_another() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let exchanges: [Exchange; 3] = [
        ("another directory", |home| home.replace(), &["above/old"], ""),
        ("a link", |home| home.replace_by_link(), &["above/old"], ""),
        ("nothing", |home| fs::remove_dir(home.at("above/mnt")).expect("ours"), &[], "cannot mount on"),
    ];
    let fronts = if front::ready() { &["front=fuse", "front=kernel"][..] } else { &["front=fuse"] };
    let rows: Vec<_> = exchanges.iter().flat_map(|row| fronts.iter().map(move |front| (row, front))).collect();
    check_rows(
        &rows,
        |((name, ..), front)| format!("{name}, {front}"),
        |((_, exchange, expected, message), front)| {
            let (image, home) = (SlowImage::new(&demo()), Home::new());
            let mut command = floe();
            command.arg("mount").arg(&image.path).arg(home.at("above/mnt")).args(["-o", front]);
            let running = swap_while_it_waits(&home, &image, command, || exchange(&home));
            until("it is mounted", || !home.mounted().is_empty() || running.is_finished());
            let mounted = home.mounted();
            end(&home);
            let (code, errors) = told(&running.join().expect("no panic"));
            let is_told = if message.is_empty() {
                code == Some(0)
            } else {
                code == Some(1) && errors.contains("No such file") && errors.lines().count() == 1
            };
            if mounted == *expected && is_told { Vec::new() } else { vec![format!("{mounted:?}, {code:?}: {errors}")] }
        },
    );
}

/// Puts a `fusermount3` into a folder that swaps the directories of a home before it does its work.
fn swapping_fusermount(folder: &Path, home: &Path) {
    let script = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\nif test ! -e {0}/renamed; then mv {0}/above {0}/renamed; ln -s other {0}/above; fi\n\
         exec fusermount3 \"$@\"\n",
        home.display()
    );
    let path = folder.join("fusermount3");
    fs::write(&path, script).expect("ours");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
}

#[test]
fn a_mount_of_fusermount_that_is_elsewhere_does_not_stay() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("fusermount3")]) {
        return;
    }
    let (home, folder) = (Home::new(), tempfile::tempdir().expect("a folder"));
    swapping_fusermount(folder.path(), &home.path);
    let mut command = floe();
    command.arg("mount").arg(demo()).arg(home.at("above/mnt")).args(["-o", "front=fuse,auto_unmount"]);
    let (code, errors) = told(&run(command.env("PATH", folder.path())));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("another directory took its place"), "{errors}");
    until("nothing is mounted", || home.mounted().is_empty());
}

#[test]
fn a_users_mount_that_is_elsewhere_does_not_stay() {
    if !control_sockets::ready() {
        return;
    }
    let shared = Shared::after(
        "install -d -o 65534 -g 65534 $1/home $1/home/above $1/home/above/mnt $1/home/other $1/home/other/mnt",
    );
    let home = shared.path("home");
    swapping_fusermount(&shared.path("first"), &home);
    for options in ["front=fuse", "front=fuse,auto_unmount"] {
        let mut command = shared.command(Some(USER), "env");
        command.arg(format!("PATH={}", shared.path("first").display())).arg(shared.path("floe")).arg("mount");
        command.arg(shared.path("image")).arg(home.join("above/mnt")).args(["-o", options]);
        let (code, errors) = told(&run(&mut command));
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{options}: {errors}");
        assert!(errors.contains("another directory took its place"), "{options}: {errors}");
        until("nothing is mounted", || {
            let table = run(shared.command(None, "cat").arg("/proc/self/mountinfo")).stdout;
            !String::from_utf8_lossy(&table).contains(home.to_str().expect("text"))
        });
        fs::remove_file(home.join("above")).expect("a link");
        fs::rename(home.join("renamed"), home.join("above")).expect("ours");
    }
}

#[test]
fn a_launch_is_recorded_on_the_directory_that_was_found_first() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let (image, home) = (SlowImage::new(&demo()), Home::new());
    let mut command = floe();
    command.arg("record").arg(home.at("above/mnt")).arg("--image").arg(&image.path);
    command.arg("--output").arg(home.at("profile")).args(["--", "cat", "/proc/self/mountinfo"]);
    let running = swap_while_it_waits(&home, &image, command, || home.swap());
    let output = running.join().expect("no panic");
    let table = String::from_utf8_lossy(&output.stdout);
    assert_eq!(told_code(&output), Some(0), "{output:?}");
    assert!(table.contains(&format!(" {} ", home.at("renamed/mnt").display())), "{table}");
    assert!(!table.contains("other/mnt") && home.mounted().is_empty(), "{table}");
}

/// A mount on `above/mnt`, and after a swap, another one on the directory to which the path leads then.
fn swapped_mounts(home: &Home, arguments: &[&str]) -> (Serving, Serving) {
    let serve = |name: &str| {
        let mut command = floe();
        command.arg("mount").arg(demo()).arg(home.at(name)).args(arguments);
        Serving::start(command, Place::new())
    };
    let ours = serve("above/mnt");
    home.swap();
    (ours, serve("other/mnt"))
}

#[test]
fn a_signal_unmounts_the_mount_of_the_process_wherever_its_path_leads() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let mut rows: Vec<&[&str]> =
        vec![&["-o", "front=fuse"], &["-o", "front=fuse", "--sandbox=off"], &["-o", "front=fuse,auto_unmount"]];
    if front::ready() {
        rows.push(&["-o", "front=kernel"]);
    }
    for row in rows {
        let home = Home::new();
        let (mut ours, mut other) = swapped_mounts(&home, row);
        assert_eq!(home.mounted(), ["renamed/mnt", "other/mnt"], "{row:?}");
        ours.signal(Signal::TERM);
        let (status, errors) = ours.end();
        assert_eq!((status.code(), errors.as_str()), (Some(0), ""), "{row:?}");
        assert_eq!(home.mounted(), ["other/mnt"], "{row:?}");
        assert!(!fs::read(home.at("above/mnt/README.txt")).expect("it is served").is_empty());
        other.signal(Signal::TERM);
        assert_eq!(other.end().0.code(), Some(0), "{row:?}");
    }
}

#[test]
fn an_upgrade_takes_over_the_mount_that_was_found_first() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for swaps_first in [true, false] {
        let home = Home::new();
        let serve = |name: &str| {
            let mut command = floe();
            command.arg("mount").arg(demo()).arg(home.at(name)).args(["-o", "front=fuse"]);
            Serving::start(command, Place::new())
        };
        let (mut ours, mut other) = (serve("above/mnt"), serve("other/mnt"));
        let program = home.at("program");
        // The directories are swapped when the mount is found and the new process starts.
        let script = format!(
            "#!/bin/sh\nif test ! -e {0}/renamed; then mv {0}/above {0}/renamed; ln -s other {0}/above; fi\nexec {1} \"$@\"\n",
            home.path.display(),
            env!("CARGO_BIN_EXE_floe")
        );
        fs::write(&program, script).expect("ours");
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("ours");
        if swaps_first {
            home.swap();
        }
        let name = if swaps_first { "renamed/mnt" } else { "above/mnt" };
        let output = run(floe().arg("upgrade").arg(home.at(name)).arg("--program").arg(&program));
        assert_eq!(told(&output), (Some(0), String::new()), "{swaps_first}");
        assert_eq!(ours.end().0.code(), Some(0), "{swaps_first}");
        assert!(other.is_running(), "{swaps_first}");
        let status = run(floe().args(["status", "--json"]).arg(home.at("renamed/mnt")));
        assert_eq!(told_code(&status), Some(0), "{status:?}");
        for name in ["renamed/mnt", "other/mnt"] {
            assert!(!fs::read(home.at(name).join("guide/reading.txt")).expect("it is served").is_empty());
        }
        end(&home);
        assert_eq!(other.end().0.code(), Some(0), "{swaps_first}");
    }
}

fn told_code(output: &Output) -> Option<i32> {
    told(output).0
}
