//! Mounts for which there are too few processes and threads: each one that cannot be started in turn.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use floe_testkit::{
    check_rows, copy_program,
    skip::{self, Need},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    front,
    program::{Place, Running, Serving, children_of, demo, floe, processes_with, run, told, until, wait_until_unused},
};

/// A number of processes and threads with which every mount works.
const ENOUGH: u32 = 24;

/// A user of whom no other processes run, and whom fusermount3 can name: `games` on Debian.
const USER: u32 = 5;

/// A control group that limits processes and threads.
struct Group {
    directory: PathBuf,
}

impl Group {
    fn new(name: &str) -> Option<Self> {
        let versions = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let directory =
            versions.map(|version| Path::new(version).join(format!("floe-test-{}-{name}", std::process::id())));
        let usable = directory.into_iter().find(|directory| {
            let _ = fs::create_dir(directory);
            let is_usable = directory.join("pids.max").exists();
            if !is_usable {
                let _ = fs::remove_dir(directory);
            }
            is_usable
        });
        if usable.is_none() {
            skip::skipped("there is no control group with pids.max that can be written");
        }
        usable.map(|directory| Self { directory })
    }

    /// A shell script's line that enters the group.
    fn entry(&self, limit: u32) -> String {
        fs::write(self.directory.join("pids.max"), limit.to_string()).expect("ours");
        format!("echo $$ > {}/cgroup.procs", self.directory.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("the group is empty", || fs::remove_dir(&self.directory).is_ok());
    }
}

/// Runs a script that mounts on a place, and checks what it leaves. `umount` is the program as the same user.
fn check(
    script: &str,
    image: &Path,
    place: &Place,
    umount: &dyn Fn() -> Command,
    read: &dyn Fn() -> bool,
) -> Vec<String> {
    let mut told_of = Vec::new();
    let output = run(Command::new("sh").arg("-c").arg(script).arg(image).arg(&place.path));
    let (code, errors) = told(&output);
    if code == Some(0) {
        if !read() {
            told_of.push("it is mounted, but cannot be read".to_owned());
        }
        wait_until_unused(&place.path);
        let unmounted = told(&run(umount().arg("umount").arg(&place.path)));
        if unmounted.0 != Some(0) {
            told_of.push(format!("it cannot be unmounted: {unmounted:?}"));
        }
    } else if errors.lines().count() != 1 {
        told_of.push(format!("it says {errors:?}"));
    }
    // The last process of a failed mount may be about to end.
    let since = Instant::now();
    let name = place.path.to_str().expect("text");
    while !processes_with(name).is_empty() && since.elapsed() < Duration::from_secs(10) {}
    if place.is_mounted() {
        told_of.push(format!("after exit code {code:?}, a mount is left: {errors:?}"));
    }
    if !processes_with(name).is_empty() {
        told_of.push(format!("after exit code {code:?}, processes are left"));
    }
    told_of
}

#[test]
fn a_mount_of_root_with_too_few_processes_leaves_nothing_behind() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let mut options = vec!["front=fuse", "front=fuse,threads=6", "front=auto"];
    if front::ready() {
        options.extend(["front=kernel", "front=kernel,transport=dev"]);
    }
    let rows: Vec<_> = options.iter().flat_map(|options| (1..=ENOUGH).map(move |limit| (*options, limit))).collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(options, limit)| {
            let Some(group) = Group::new(&format!("{}-{limit}", options.replace(['=', ','], "-"))) else {
                return Vec::new();
            };
            let place = Place::new();
            let program = env!("CARGO_BIN_EXE_floe");
            let script = format!("{}; exec {program} mount -d -o {options} \"$0\" \"$1\"", group.entry(*limit));
            let read = || fs::read(place.file("README.txt")).is_ok_and(|bytes| !bytes.is_empty());
            check(&script, &demo(), &place, &|| Command::new(program), &read)
        },
    );
}

#[test]
fn a_mount_of_a_user_with_too_few_processes_leaves_nothing_behind() {
    let programs = ["setpriv", "unshare", "prlimit", "fusermount3"].map(Need::Peer);
    if !skip::ready(&[Need::Root, Need::Fuse]) || !skip::ready(&programs) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let (program, image, device) =
        (folder.path().join("floe"), folder.path().join("image"), folder.path().join("fuse"));
    copy_program(env!("CARGO_BIN_EXE_floe"), &program);
    fs::copy(demo(), &image).expect("a copy");
    let made = run(Command::new("mknod").args(["-m", "666"]).arg(&device).args(["c", "10", "229"]));
    assert!(made.status.success(), "{made:?}");
    let as_user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups");
    // One after the other: the limit counts all processes of the user.
    for limit in 1..=ENOUGH {
        let place = Place::new();
        chown(&place.path, Some(USER), Some(USER)).expect("ours");
        // In the end, the shell looks at its own namespace.
        let script = format!(
            "mount --bind {device} /dev/fuse
             {as_user} prlimit --nproc={limit} {program} mount -d \"$0\" \"$1\"; code=$?
             if test $code = 0; then
                 {as_user} cat \"$1\"/README.txt >/dev/null && {as_user} {program} umount \"$1\" || echo 'cannot be used' >&2
             fi
             grep -q \" $1 \" /proc/self/mountinfo && echo 'a mount is left' >&2
             exit $code",
            device = device.display(),
            program = program.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(&image).arg(&place.path);
        let (code, errors) = told(&run(&mut command));
        let lines = errors.lines().count();
        // The mount works without some threads.
        let is_notice = errors.is_empty() || errors.starts_with("floe: the mount works, but ");
        let is_right =
            if code == Some(0) { lines < 2 && is_notice } else { lines == 1 && errors.starts_with("floe: ") };
        assert!(is_right, "{limit}: {code:?} {errors}");
        let name = place.path.to_str().expect("text");
        until("no process is left", || processes_with(name).is_empty());
    }
}

#[test]
fn the_first_signal_unmounts_also_if_no_thread_can_be_started() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let Some(group) = Group::new("signal") else { return };
    let place = Place::new();
    let mut command = Command::new("sh");
    let entry = group.entry(ENOUGH);
    command.arg("-c").arg(format!("{entry}; exec \"$@\"")).arg("sh").arg(env!("CARGO_BIN_EXE_floe"));
    command.arg("mount").arg(demo()).arg(&place.path).args(["-o", "front=fuse"]);
    let mut serving = Serving::start(command, place);
    fs::write(group.directory.join("pids.max"), "1").expect("ours");
    serving.place.wait_until_unused();
    serving.signal(Signal::TERM);
    let (status, errors) = serving.end();
    assert_eq!((status.code(), errors.as_str(), serving.place.is_mounted()), (Some(0), "", false));
}

/// The process that serves the mount that `floe mount --daemon` is about to make, and its keeper, as far as they exist.
fn starting(parent: u32) -> (Option<u32>, Option<u32>) {
    let server = children_of(parent, "floe").into_iter().next();
    let keeper = server.and_then(|server| children_of(server, "floe-keeper").into_iter().next());
    (server, keeper)
}

#[test]
fn a_mount_whose_processes_are_killed_while_it_starts_leaves_nothing_behind() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let mut options = vec!["front=fuse"];
    if front::ready() {
        options.push("front=kernel");
    }
    let victims = ["server", "keeper", "both"];
    let rows: Vec<_> = options.iter().flat_map(|options| victims.map(|victims| (*options, victims))).collect();
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(options, victims)| {
            let mut told_of = Vec::new();
            for delay in (0..40).step_by(2).map(Duration::from_millis) {
                let place = Place::new();
                let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
                command.args(["mount", "-d", "-o", options]).arg(demo()).arg(&place.path);
                let child = Running::start(&mut command);
                std::thread::sleep(delay);
                let (server, keeper) = starting(child.id());
                let chosen = match *victims {
                    "server" => [server, None],
                    "keeper" => [keeper, None],
                    _ => [server, keeper],
                };
                for victim in chosen.into_iter().flatten().filter_map(|victim| Pid::from_raw(victim.cast_signed())) {
                    let _ = kill_process(victim, Signal::KILL);
                }
                let (code, errors) = child.end();
                let name = place.path.to_str().expect("text").to_owned();
                if code == Some(0) {
                    // It was too late, or the mount works without the keeper.
                    let _ = run(floe().args(["umount", "--lazy"]).arg(&place.path));
                } else if place.is_mounted() {
                    told_of.push(format!("after {delay:?} and exit code {code:?}, a mount is left: {errors:?}"));
                }
                until("no process is left", || processes_with(&name).is_empty());
            }
            told_of
        },
    );
}
