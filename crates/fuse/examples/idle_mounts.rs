//! Prints what idle mounts of one process cost: `cargo run --release -p floe-fuse --example idle_mounts -- 16 shared` (or
//! `own`: session threads for each mount). Needs root.

#[path = "../tests/mounts/support/mod.rs"]
mod support;

use std::{env, fs, sync::Arc, thread, time::Duration};

use floe_fuse::MountOptions;
use support::{Gate, Numbering, SharedThreads, TestMount, TreeFileSystem};

/// The time in which wake-ups are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// What this process has used so far.
struct Use {
    pss_kib: u64,
    threads: usize,
    wake_ups: u64,
}

impl Use {
    fn now() -> Self {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").expect("procfs");
        let tasks: Vec<_> = fs::read_dir("/proc/self/task").expect("procfs").flatten().collect();
        let statuses = tasks.iter().filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
        let wake_ups = statuses.map(|status| number(&status, "voluntary_ctxt_switches:")).sum();
        Self { pss_kib: number(&rollup, "Pss:"), threads: tasks.len(), wake_ups }
    }
}

fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let count: usize = arguments.first().and_then(|count| count.parse().ok()).expect("a number of mounts");
    let has_own_threads = arguments.get(1).is_some_and(|which| which == "own");
    let shared = SharedThreads::start(MountOptions::default().threads.get());
    let mounts: Vec<_> = (0..count + 1)
        .map(|number| {
            let mut tree = TreeFileSystem::new(Numbering::Nids);
            tree.file("file", &vec![number as u8; 100_000]);
            let tree = Arc::new(tree);
            let reader = shared.reader(&tree, &Arc::<Gate>::default());
            let options = MountOptions::default();
            let mount = match has_own_threads {
                true => TestMount::of(tree, reader, &options),
                false => TestMount::of(tree, reader, shared.setup(&options)),
            };
            fs::read(mount.file("file")).expect("data");
            (mount, Use::now().pss_kib)
        })
        .collect();
    thread::sleep(Duration::from_secs(2));
    let before = Use::now();
    thread::sleep(WINDOW);
    let after = Use::now();
    let first_pss_kib = mounts.first().map_or(0, |(_, pss_kib)| *pss_kib);
    println!(
        "{count} more mounts: {} KiB PSS each, {} threads in all, {} wake-ups in {} s (one is that of this report)",
        after.pss_kib.saturating_sub(first_pss_kib) / count.max(1) as u64,
        after.threads,
        after.wake_ups - before.wake_ups,
        WINDOW.as_secs(),
    );
}
