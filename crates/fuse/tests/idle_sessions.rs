//! Many idle mounts that share their session threads cost no thread and no wake-up. The test counts those of its process.

#[path = "mounts/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_fuse::{Detach, Ended, MountOptions};
use support::{Gate, Numbering, SharedThreads, TreeFileSystem, can_mount};

const MOUNTS: usize = 50;

/// How long the threads may take until they are idle, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A time in which every periodic wake-up would show.
const WINDOW: Duration = Duration::from_millis(1500);

/// The threads of this process that do not belong to the test, each with its name and the number of times that it slept.
fn threads() -> BTreeMap<String, (String, u64)> {
    let mut found = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let value = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
        let sleeps = value("voluntary_ctxt_switches:").parse().expect("a number");
        if value("Name:").starts_with("floe-") {
            found.insert(task.file_name().to_string_lossy().into_owned(), (value("Name:").to_owned(), sleeps));
        }
    }
    found
}

/// Waits until no thread wakes up during a window.
fn until_idle(what: &str) {
    let started = Instant::now();
    loop {
        let before = threads();
        thread::sleep(WINDOW);
        let after = threads();
        if before == after {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: {before:?} {after:?}");
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: {:?}", names());
        thread::sleep(Duration::from_millis(1));
    }
}

fn names() -> Vec<String> {
    threads().into_values().map(|(name, _)| name).collect()
}

#[test]
fn idle_mounts_cost_no_thread_and_no_wake_up() {
    if !can_mount() {
        return;
    }
    let (shared, gate) = (SharedThreads::start(2), Arc::<Gate>::default());
    // A thread names itself at its first turn.
    let has = |name: &str| names().iter().any(|other| other == name);
    until("the threads run", || ["floe-fuse/0", "floe-fuse/1", "floe-watch"].into_iter().all(has));
    until_idle("without mounts");
    let before = names();
    let mounts: Vec<_> = (0..MOUNTS)
        .map(|number| {
            let mut tree = TreeFileSystem::new(Numbering::Nids);
            tree.file("file", &vec![number as u8; 100_000]);
            shared.mount(tree, &gate, &MountOptions::default())
        })
        .collect();
    assert_eq!(names().len(), before.len(), "mounts have threads of their own: {:?}", names());
    until_idle("after the mounts");
    for (number, mount) in mounts.iter().enumerate() {
        assert!(fs::read(mount.file("file")).expect("data") == vec![number as u8; 100_000]);
    }
    until_idle("after reads");
    for mut mount in mounts {
        mount.unmounter().unmount(Detach::Never).expect("it is not in use");
        assert!(matches!(mount.take().wait(), Ended::Unmounted));
    }
    until_idle("after the unmounts");
    assert!(names().contains(&"floe-fuse/0".to_owned()), "other mounts may follow");
    drop(shared);
    until("the threads end", || !names().iter().any(|name| name.starts_with("floe-fuse/") || name == "floe-watch"));
}
