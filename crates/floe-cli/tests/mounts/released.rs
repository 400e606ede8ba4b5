//! What an ended mount still holds: the file system of its image can be unmounted at once.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    check_rows,
    skip::{self, Need},
};
use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Pid, Signal, kill_process},
};

use crate::support::{
    front,
    program::{Place, Running, demo, floe, processes_with, run, told, until, wait_until_unused},
};

/// How often each front is tried.
const ROUNDS: usize = 12;

/// How often another program may find the image in use after its unmount.
const ATTEMPTS_MAX: usize = 60;

/// A file system in memory with an image, mounted on a directory of its own.
struct Disk {
    place: Place,
}

impl Disk {
    fn new() -> Self {
        let place = Place::new();
        mount("disk", &place.path, "tmpfs", MountFlags::empty(), None).expect("a mount");
        fs::copy(demo(), place.path.join("image")).expect("room");
        Self { place }
    }

    fn image(&self) -> PathBuf {
        self.place.path.join("image")
    }

    /// A directory on the disk, on which the image is mounted and read.
    fn mounted(&self, name: &str, arguments: &[&str]) -> PathBuf {
        let directory = self.place.path.join(name);
        let _ = fs::create_dir(&directory);
        let mut command = floe();
        command.arg("mount").arg("--daemon").arg(self.image()).arg(&directory).args(arguments);
        assert_eq!(told(&run(&mut command)), (Some(0), String::new()), "{arguments:?}");
        assert!(!fs::read(directory.join("README.txt")).expect("data").is_empty());
        directory
    }

    fn umount(&self) -> bool {
        run(Command::new("umount").arg(&self.place.path)).status.success()
    }

    /// Whether another mount namespace has the disk: those that other tests create have copies of all mounts.
    fn is_elsewhere(&self) -> bool {
        let path = self.place.path.to_str().expect("text");
        let own = fs::read_link("/proc/self/ns/mnt").expect("it has one");
        let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|process| process.path());
        let elsewhere = processes.filter(|process| fs::read_link(process.join("ns/mnt")).is_ok_and(|of| of != own));
        elsewhere
            .into_iter()
            .any(|process| fs::read_to_string(process.join("mountinfo")).is_ok_and(|table| table.contains(path)))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let prefix = format!(" {}/", self.place.path.display());
        for line in table.lines().filter(|line| line.contains(&prefix)) {
            let _ = unmount(line.split(' ').nth(4).unwrap_or_default(), UnmountFlags::DETACH);
        }
    }
}

fn ready() -> bool {
    skip::ready(&[Need::Root, Need::Fuse])
}

fn fronts() -> Vec<&'static str> {
    let mut fronts = vec!["front=fuse", "front=fuse,clone-fd=on", "front=fuse,threads=16"];
    if front::ready() {
        fronts.extend(["front=kernel", "front=kernel,transport=dev"]);
    }
    fronts
}

#[test]
fn floe_umount_returns_when_the_image_is_released() {
    if !ready() {
        return;
    }
    check_rows(
        &fronts(),
        |options| (*options).to_owned(),
        |options| {
            let mut told_of = Vec::new();
            for round in 0..ROUNDS {
                let disk = Disk::new();
                // Several mounts of one image.
                let names = if round % 4 == 0 { &["one", "two", "three"][..] } else { &["one"] };
                let directories: Vec<_> = names.iter().map(|name| disk.mounted(name, &["-o", options])).collect();
                let serving = processes_with(disk.image().to_str().expect("text"));
                directories.iter().for_each(|directory| wait_until_unused(directory));
                let was_elsewhere = disk.is_elsewhere();
                let unmounted = told(&run(floe().arg("umount").args(&directories)));
                let is_released = disk.umount();
                if !is_released && (was_elsewhere || disk.is_elsewhere()) {
                    continue;
                }
                if unmounted != (Some(0), String::new()) {
                    told_of.push(format!("{unmounted:?}"));
                }
                if !is_released {
                    told_of.push(format!("the file system of the image is busy in round {round}"));
                }
                let left: Vec<_> = serving.iter().filter(|process| is_alive(**process)).collect();
                if serving.len() != names.len() || !left.is_empty() {
                    told_of.push(format!("{left:?} of {serving:?} run"));
                }
            }
            told_of
        },
    );
}

/// Whether a process runs, unlike one that its parent has not waited for.
fn is_alive(process: u32) -> bool {
    state(&PathBuf::from(format!("/proc/{process}"))).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// The state of a process or thread, given by its directory in `/proc`.
fn state(task: &Path) -> Option<char> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Another program unmounts, and does not wait for the process that serves: on a busy machine, that needs the CPU first.
#[test]
fn the_image_is_closed_soon_after_an_unmount_by_another_program() {
    if !ready() {
        return;
    }
    let mut ways = vec!["umount", "umount -R"];
    if skip::ready(&[Need::Peer("fusermount3")]) {
        ways.push("fusermount3 -u");
    }
    let rows: Vec<_> = fronts().into_iter().flat_map(|front| ways.iter().map(move |way| (front, *way))).collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(options, way)| {
            if way.starts_with("fusermount3") && options.starts_with("front=kernel") {
                return Vec::new();
            }
            // `umount -R` leaves the process no time, so what counts is that the image is released in the end.
            let attempts = if *way == "umount -R" { 1 } else { ATTEMPTS_MAX };
            let is_released_at_once = (0..attempts).any(|_| {
                let disk = Disk::new();
                let directory = disk.mounted("one", &["-o", options]);
                wait_until_unused(&directory);
                let mut words = way.split(' ');
                let mut command = Command::new(words.next().expect("a program"));
                command.args(words);
                let is_released = if *way == "umount -R" {
                    run(command.arg(&disk.place.path)).status.success()
                } else {
                    assert!(run(command.arg(&directory)).status.success(), "{way}");
                    disk.umount()
                };
                until("it is released", || {
                    !disk.place.is_mounted()
                        || run(Command::new("umount").arg("-R").arg(&disk.place.path)).status.success()
                });
                is_released
            });
            let is_busy = !is_released_at_once && attempts > 1;
            is_busy.then(|| format!("busy after {attempts} unmounts")).into_iter().collect()
        },
    );
}

/// Runs `floe umount` on a mount whose process is stopped. Returns what it said, and whether the mount is still there.
fn umount_of_stopped(options: &str, arguments: &[&str]) -> ((Option<i32>, String), bool) {
    let disk = Disk::new();
    let directory = disk.mounted("one", &["-o", options]);
    wait_until_unused(&directory);
    let serving = processes_with(disk.image().to_str().expect("text"));
    let [process] = serving[..] else { panic!("{serving:?}") };
    let process = Pid::from_raw(process.cast_signed()).expect("a process");
    kill_process(process, Signal::STOP).expect("it runs");
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let is_stopped = |task: fs::DirEntry| state(&task.path()).is_none_or(|state| state == 'T');
    until("it is stopped", || fs::read_dir(&tasks).expect("it runs").flatten().all(is_stopped));
    let said = told(&run(floe().arg("umount").args(arguments).arg(&directory)));
    let table = fs::read_to_string("/proc/self/mountinfo").expect("text");
    let is_mounted = table.contains(directory.to_str().expect("text"));
    kill_process(process, Signal::CONT).expect("it runs");
    until("it is released", || disk.umount());
    (said, is_mounted)
}

#[test]
fn a_stopped_process_delays_an_unmount_for_a_limited_time() {
    if !ready() {
        return;
    }
    let arguments = [&[][..], &["--lazy"]];
    let rows: Vec<_> = fronts().into_iter().flat_map(|front| arguments.map(|arguments| (front, arguments))).collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(options, arguments)| {
            let ((code, errors), is_mounted) = umount_of_stopped(options, arguments);
            assert_eq!((code, is_mounted), (Some(0), false), "{errors}");
            let is_said = errors.contains("is unmounted, but the program that served it (process ");
            let expected = (arguments.is_empty(), usize::from(arguments.is_empty()));
            assert_eq!((is_said, errors.lines().count()), expected, "{errors}");
            Vec::new()
        },
    );
}

/// A process in a mount namespace of its own, to which no unmount propagates.
fn in_another_namespace() -> Running {
    let child = Running::start(Command::new("unshare").args(["-m", "--propagation", "private", "sleep", "600"]));
    let own = fs::read_link("/proc/self/ns/mnt").expect("it has one");
    until("it has its namespace", || {
        fs::read_link(format!("/proc/{}/ns/mnt", child.id())).is_ok_and(|of_child| of_child != own)
    });
    child
}

#[test]
fn files_that_are_in_use_elsewhere_delay_an_unmount_only_shortly() {
    if !ready() {
        return;
    }
    check_rows(
        &fronts(),
        |options| (*options).to_owned(),
        |options| {
            let (bound, elsewhere) = (Disk::new(), Disk::new());
            let (directory, other) = (bound.mounted("one", &["-o", options]), Place::new());
            rustix::mount::mount_bind(&directory, &other.path).expect("a mount");
            let also = elsewhere.mounted("one", &["-o", options]);
            let process = in_another_namespace();
            for directory in [directory, also, other.path.clone()] {
                wait_until_unused(&directory);
                let said = told(&run(floe().arg("umount").arg(&directory)));
                assert_eq!(said, (Some(0), String::new()), "{}", directory.display());
            }
            assert!(!elsewhere.umount(), "the mount is still served");
            drop(process);
            until("both are released", || {
                [&bound, &elsewhere].iter().all(|disk| !disk.place.is_mounted() || disk.umount())
            });
            Vec::new()
        },
    );
}
