//! The kernel's EROFS in front of a program that is killed, stuck or short of memory: readers get an error or their data,
//! and all mounts can be unmounted.

use std::{
    collections::BTreeSet,
    fs,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use floe_testkit::{KernelCaches, drop_kernel_caches, keep_kernel_caches, skip};
use rustix::process::Signal;

use crate::support::{
    front::{Scene, ready},
    program::{Place, Serving, floe, is_running, processes_with, run, told, umount, until, within},
};

/// The number of readers that wait at a time.
const READER_COUNT: usize = 100;

/// An image whose source can hang: a file in another mount of Floe, whose program can be stopped.
struct Stoppable {
    scene: Scene,
    below: Serving,
}

impl Stoppable {
    fn new(scene: Scene) -> Self {
        let outer = scene.folder.path().join("outer");
        fs::create_dir(&outer).expect("ours");
        fs::copy(&scene.image, outer.join("image.erofs")).expect("room");
        let holder = scene.folder.path().join("holder.erofs");
        let made = run(floe().arg("mkfs").arg(&holder).arg(&outer));
        assert!(made.status.success(), "{made:?}");
        let below = Serving::new(&holder, ["-o", "front=fuse,deadline=off"]);
        Self { scene, below }
    }

    fn fronted(&self, options: &str) -> Serving {
        let image = self.below.place.file("image.erofs");
        Serving::new(&image, ["-o", "front=kernel,fetch-around=off", "-o", options])
    }
}

impl Drop for Stoppable {
    fn drop(&mut self) {
        self.below.signal(Signal::CONT);
    }
}

/// Threads that each read their own file, and are counted when they are done.
struct Readers {
    done: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    fn start(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let (done, failed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let read = |path: PathBuf| {
            let (done, failed) = (Arc::clone(&done), Arc::clone(&failed));
            thread::spawn(move || {
                failed.fetch_add(usize::from(fs::read(path).is_err()), Relaxed);
                done.fetch_add(1, Relaxed);
            })
        };
        let threads = paths.into_iter().map(read).collect();
        Self { done, failed, threads }
    }

    fn end(self) -> usize {
        let Self { failed, threads, .. } = self;
        within(move || threads.into_iter().for_each(|thread| thread.join().expect("no panic")));
        failed.load(Relaxed)
    }
}

/// Waits until the program that serves a mount waits for its source, on behalf of a reader.
fn wait_until_stuck(serving: &Serving) {
    until("a reader waits", || {
        let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["work"]["outstanding"].as_u64().expect("a number") > 0
    });
}

/// What the kernel has reported of hung tasks and of faults of its own. Each task counts once, although the kernel repeats its
/// report, so tasks that hung before are no difference.
fn hung_tasks() -> BTreeSet<String> {
    let log = run(Command::new("dmesg").arg("--notime"));
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let reported = log.lines().filter_map(|line| {
        let is_fault = line.contains("WARNING:");
        let task = line.split_once(" blocked for more than").map(|(task, _)| task);
        task.or(is_fault.then_some(line)).map(str::to_owned)
    });
    reported.collect()
}

/// Checks that the kernel has reported no further faults. Its log is short: it may have forgotten earlier ones.
fn check_faults(before: &BTreeSet<String>) {
    let now = hung_tasks();
    assert!(now.is_subset(before), "{:?}", now.difference(before));
}

#[test]
fn a_killed_program_leaves_a_front_that_gives_errors_and_can_be_unmounted() {
    if !ready() {
        return;
    }
    let scene = Scene::many(40, 100_000);
    let before = hung_tasks();
    for options in ["ro", "sandbox=off"] {
        let mut serving = scene.fronted(options);
        let cached = serving.place.file("0/0");
        let caches = keep_kernel_caches();
        let expected = fs::read(&cached).expect("data");
        serving.signal(Signal::KILL);
        serving.end();
        let uncached = serving.place.file("5/35");
        let (again, missed) = within(move || (fs::read(cached), fs::read(uncached)));
        drop(caches);
        assert!(again.expect("it is cached") == expected);
        // If the name is not cached either, the kernel's EROFS returns the error of the hidden mount; ECANCELED while the
        // kernel still takes the rings down.
        let errno = missed.map(|_| ()).map_err(|error| error.raw_os_error());
        let is_expected = |errno| matches!(errno, libc::EIO | libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED);
        assert!(errno.is_err_and(|errno| errno.is_some_and(is_expected)), "{options}: {errno:?}");
        let path = &serving.place.path;
        let (code, errors) = told(&run(floe().arg("mount").arg(&scene.image).arg(path)));
        assert!(code == Some(1) && errors.contains("run floe umount"), "{errors}");
        let (code, errors) = told(&run(floe().arg("status").arg(path)));
        assert!(code == Some(1) && errors.contains("no program answers"), "{errors}");
        assert_eq!(umount(path), (Some(0), String::new()), "{options}");
        assert!(!serving.place.is_mounted());
    }
    check_faults(&before);
}

#[test]
fn auto_unmount_removes_the_mount_of_a_killed_program() {
    if !ready() {
        return;
    }
    let scene = Scene::many(10, 1000);
    for options in ["auto_unmount", "auto_unmount,sandbox=off"] {
        let mut serving = scene.fronted(options);
        let keeper = serving.keeper();
        let file = fs::File::open(serving.place.file("0/0")).expect("a file");
        serving.signal(Signal::KILL);
        serving.end();
        until("it is unmounted", || !serving.place.is_mounted());
        drop(file);
        until("the keeper ends", || !is_running(keeper));
    }
}

/// Readers of a front whose source has stopped. `None` if this machine cannot drop the kernel's caches.
fn stuck_readers(options: &str) -> Option<(Stoppable, Serving, Readers)> {
    let stoppable = Stoppable::new(Scene::many(READER_COUNT, 70_000));
    let serving = stoppable.fronted(options);
    let names: Vec<_> = stoppable.scene.contents.keys().map(|name| serving.place.path.join(name)).collect();
    names.iter().for_each(|name| assert!(fs::metadata(name).is_ok(), "{name:?} is there"));
    if !drop_kernel_caches(KernelCaches::All) {
        return None;
    }
    stoppable.below.stop();
    let readers = Readers::start(names);
    Some((stoppable, serving, readers))
}

#[test]
fn a_killed_program_lets_waiting_readers_go() {
    if !ready() {
        return;
    }
    let Some((stoppable, mut serving, readers)) = stuck_readers("deadline=off") else { return };
    wait_until_stuck(&serving);
    assert!(readers.done.load(Relaxed) < READER_COUNT, "some wait");
    let (code, errors) = told(&run(floe().arg("umount").arg(&serving.place.path)));
    assert!(code == Some(1) && errors.contains("in use"), "{code:?} {errors}");
    serving.signal(Signal::KILL);
    assert!(readers.end() > 0, "some readers had to wait and failed");
    // The program itself may wait for the source, uninterruptibly, until the source continues.
    stoppable.below.signal(Signal::CONT);
    serving.end();
    assert_eq!(umount(&serving.place.path), (Some(0), String::new()));
}

#[test]
fn a_stuck_source_gives_errors_after_the_deadline() {
    if !ready() {
        return;
    }
    let Some((stoppable, mut serving, readers)) = stuck_readers("deadline=1s") else { return };
    assert!(readers.end() > 0, "readers of missing bytes fail");
    // Nothing waits any more, so the mount can be unmounted.
    let path = serving.place.path.clone();
    until("it is unmounted", || run(floe().arg("umount").arg(&path)).status.success());
    stoppable.below.signal(Signal::CONT);
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn waiting_readers_get_their_data_when_the_source_goes_on() {
    if !ready() {
        return;
    }
    let stoppable = Stoppable::new(Scene::many(READER_COUNT, 70_000));
    let mut serving = stoppable.fronted("deadline=off");
    // Names still resolve through the open directory after the mount has left the tree.
    let root = fs::File::open(&serving.place.path).expect("the root");
    let inside = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let names: Vec<_> = stoppable.scene.contents.keys().map(|name| inside.join(name)).collect();
    names.iter().for_each(|name| assert!(fs::metadata(name).is_ok(), "{name:?} is there"));
    if !drop_kernel_caches(KernelCaches::All) {
        return;
    }
    stoppable.below.stop();
    let readers = Readers::start(names);
    wait_until_stuck(&serving);
    assert_eq!(told(&run(floe().args(["umount", "--lazy"]).arg(&serving.place.path))), (Some(0), String::new()));
    assert!(!serving.place.is_mounted() && serving.is_running());
    stoppable.below.signal(Signal::CONT);
    assert_eq!(readers.end(), 0, "all readers succeed after the mount has left the tree");
    drop(root);
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn a_truncated_image_gives_errors() {
    if !ready() {
        return;
    }
    let scene = Scene::many(200, 100_000);
    let mut serving = scene.fronted("ro");
    let names: Vec<_> = scene.contents.keys().map(|name| serving.place.path.join(name)).collect();
    names.iter().for_each(|name| assert!(fs::metadata(name).is_ok(), "{name:?} is there"));
    let len = fs::metadata(&scene.image).expect("it is there").len();
    let image = fs::File::options().write(true).open(&scene.image).expect("ours");
    image.set_len(len / 4).expect("ours");
    if !drop_kernel_caches(KernelCaches::All) {
        return;
    }
    let wrong = Readers::start(names).end();
    assert!(wrong > 0 && wrong <= 200, "{wrong}");
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
    assert!(!serving.place.is_mounted());
}

/// A control group with a memory limit. Removed when dropped.
struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    fn new(limit_bytes: u64) -> Option<Self> {
        let name = format!("floe-front-{}-{limit_bytes}", std::process::id());
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        roots.iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path };
            fs::write(group.path.join(limit), limit_bytes.to_string()).ok().map(|()| group)
        })
    }

    /// A command whose process is in the group.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs")).arg(program);
        command
    }

    /// The bytes of cached files that are charged to the group.
    fn file_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.path.join("memory.stat")).expect("the kernel says so");
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
        value("cache ").or_else(|| value("file ")).expect("the kernel says so")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        until("the group is empty", || fs::remove_dir(&self.path).is_ok());
    }
}

#[test]
fn a_mount_that_is_short_of_memory_reads_right() {
    if !ready() {
        return;
    }
    // Less than the size of the files.
    let Some(group) = ControlGroup::new(48 << 20) else {
        return skip::skipped("there is no control group with a limit on memory to be had");
    };
    let scene = Scene::many(100, 500_000);
    let place = Place::new();
    let mut command = group.command(env!("CARGO_BIN_EXE_floe"));
    command.arg("mount").arg(&scene.image).arg(&place.path).args(["-o", "front=kernel,cache=4M,reserved-pages=64"]);
    let mut serving = Serving::start(command, place);
    let checksum = |mut command: Command| {
        let output = run(command.args(["-c", "cat \"$0\"/*/* | md5sum"]).arg(&serving.place.path));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let outside = checksum(Command::new("sh"));
    if !drop_kernel_caches(KernelCaches::All) {
        return;
    }
    assert_eq!(checksum(group.command("sh")), outside);
    assert_eq!(scene.wrong(&serving.place.path), [""; 0]);
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn a_mount_in_a_small_control_group_reads_a_whole_tree() {
    if !ready() {
        return;
    }
    let scene = Scene::many(300, 100_000);
    let image = scene.folder.path().join("large-blocks.erofs");
    let made =
        run(floe().args(["mkfs", "--compress", "zstd", "-C1048576"]).arg(&image).arg(scene.folder.path().join("tree")));
    assert!(made.status.success(), "{made:?}");
    // The text of this program, which is much longer than that of a release, is charged to the first group that reads it.
    fs::read(env!("CARGO_BIN_EXE_floe")).expect("it was built");
    let rows = [("fuse", 16), ("fuse", 20), ("kernel", 20), ("kernel", 24), ("kernel", 32)];
    for (front, mib) in rows {
        let Some(group) = ControlGroup::new(mib << 20) else {
            return skip::skipped("there is no control group with a limit on memory to be had");
        };
        let place = Place::new();
        let mut command = group.command(env!("CARGO_BIN_EXE_floe"));
        command.arg("mount").arg(&image).arg(&place.path).args(["-o", &format!("front={front}")]);
        let mut serving = Serving::start(command, place);
        let mut readers = group.command("sh");
        readers.args(["-c", "find \"$0\" -type f -print0 | xargs -0 -P6 -n8 cat | wc -c"]).arg(&serving.place.path);
        let read = run(&mut readers).stdout;
        assert_eq!(String::from_utf8_lossy(&read).trim(), "30000000", "front={front} in {mib} MiB");
        assert!(serving.is_running(), "front={front} in {mib} MiB");
        serving.signal(Signal::TERM);
        assert_eq!(serving.end().0.code(), Some(0), "front={front} in {mib} MiB");
    }
}

#[test]
fn read_data_has_one_copy_in_memory() {
    if !ready() {
        return;
    }
    let Some(group) = ControlGroup::new(4 << 30) else {
        return skip::skipped("there is no control group with a limit on memory to be had");
    };
    let scene = Scene::many(400, 500_000);
    let place = Place::new();
    let mut command = group.command(env!("CARGO_BIN_EXE_floe"));
    command.arg("mount").arg(&scene.image).arg(&place.path).args(["-o", "front=kernel"]);
    // Cached pages of the image and the program would be charged too.
    fs::read(&scene.image).expect("it is there");
    fs::read(env!("CARGO_BIN_EXE_floe")).expect("it is there");
    let mut serving = Serving::start(command, place);
    let before = group.file_bytes();
    let mut reading = group.command("sh");
    let read = run(reading.args(["-c", "cat \"$0\"/*/* | wc -c"]).arg(&serving.place.path));
    let bytes: u64 = String::from_utf8_lossy(&read.stdout).trim().parse().expect("a number");
    assert_eq!(bytes, scene.contents.values().map(|content| content.len() as u64).sum::<u64>());
    // The pages of the front are freed when nothing reads them any more.
    let bound = before + bytes + bytes / 10;
    until("one copy is left", || {
        // Pages of these files that were dropped and read again are charged to the group.
        [scene.image.as_path(), Path::new(env!("CARGO_BIN_EXE_floe"))].into_iter().for_each(forget_pages);
        group.file_bytes() <= bound
    });
    assert!(group.file_bytes() >= before + bytes / 10 * 9, "the bytes read are in memory");
    serving.signal(Signal::TERM);
    assert_eq!(serving.end().0.code(), Some(0));
}

fn forget_pages(path: &Path) {
    let file = fs::File::open(path).expect("it is there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("it is a file");
}

#[test]
fn kills_at_any_moment_leave_nothing_behind() {
    if !ready() {
        return;
    }
    let scene = Scene::many(60, 50_000);
    let before = hung_tasks();
    for delay_ms in (0..60).step_by(5) {
        let place = Place::new();
        let mut command = floe();
        command.arg("mount").arg(&scene.image).arg(&place.path).args(["-o", "front=kernel,auto_unmount"]);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().expect("the program starts");
        thread::sleep(Duration::from_millis(delay_ms));
        let readers = Readers::start(scene.contents.keys().map(|name| place.path.join(name)));
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        readers.end();
        let name = place.path.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
        until("the keeper ends", || processes_with(&name).is_empty());
        until("nothing is mounted", || !place.is_mounted());
    }
    check_faults(&before);
}
