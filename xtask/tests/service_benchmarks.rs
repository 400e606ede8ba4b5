//! The benchmarks of the service with few mounts: they measure, check what they read, and leave nothing behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use floe_testkit::{
    Tree, run_bounded,
    skip::{Need, ready, skipped},
};
use serde_json::Value;

/// A generous time limit for a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

const NEEDS: [Need; 4] = [Need::Root, Need::Fuse, Need::KernelErofs, Need::KernelSquashfs];

/// The program beside xtask; `None` if only xtask was built.
fn floe() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("floe");
    if program.exists() {
        return Some(program);
    }
    skipped("floe is not built");
    None
}

/// Runs a benchmark, with all its files in `folder`. Returns its reports.
fn bench(floe: &Path, folder: &Path, arguments: &str) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["bench", "service"]).args(arguments.split(' ')).arg("--json").arg("--floe").arg(floe);
    // Other tests of this workspace keep no metadata.
    command.env("TMPDIR", folder).env_remove("FLOE_TEST_KEEP_AFTER_MS");
    let run = run_bounded(&mut command, PATIENCE).expect("it runs");
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{arguments}: {}: {}\n{output}", run.status, run.stderr);
    let left: Vec<_> = fs::read_dir(folder).expect("listed").flatten().map(|entry| entry.path()).collect();
    assert!(left.iter().all(|path| path.is_file()), "{arguments}: {left:?}");
    serde_json::from_slice(&run.stdout).expect("reports")
}

/// The value of a metric of a contender.
fn value(report: &Value, workload: &str, metric: &str, contender: &str) -> f64 {
    let results = report["results"].as_array().expect("results");
    let cell = results
        .iter()
        .find(|cell| cell["workload"] == workload && cell["metric"] == metric && cell["contender"] == contender);
    cell.and_then(|cell| cell["median"].as_f64()).unwrap_or_else(|| panic!("{contender} has no {metric}: {report:#}"))
}

/// A folder that every user may enter.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    rustix::fs::chmod(folder.path(), mode).expect("permitted");
    folder
}

fn image(floe: &Path, folder: &Path, format: &str) -> PathBuf {
    let tree = tempfile::tempdir().expect("a directory");
    Tree { oddities: false, wide_directory_entries: 0, nesting_depth: 0, ..Tree::small(5) }
        .write(tree.path())
        .expect("a tree");
    let image = folder.join(format);
    let made = Command::new(floe).args(["mkfs", "--format", format]).arg(&image).arg(tree.path()).output();
    assert!(made.expect("it runs").status.success());
    image
}

#[test]
fn idle_mounts_of_the_service_share_their_threads() {
    let Some(floe) = ready(&NEEDS).then(floe).flatten() else { return };
    let folder = folder();
    let arguments = "idle --counts 1,3 --generate 2 --idle-seconds 0.1 --rest-seconds 0.1";
    let reports = bench(&floe, folder.path(), arguments);
    let threads = |mounts: &str, contender: &str| value(&reports[0], mounts, "threads", contender);
    for contender in ["service-front", "service-fuse"] {
        assert_eq!(threads("3 mounts", contender), threads("1 mount", contender), "{contender}");
    }
    assert!(threads("3 mounts", "process-fuse") > 2.0 * threads("1 mount", "process-fuse"));
    assert!(value(&reports[0], "3 mounts", "mount p99, ms", "kernel-loop") > 0.0);
}

#[test]
fn one_image_is_read_out_of_both() {
    let Some(floe) = ready(&NEEDS).then(floe).flatten() else { return };
    let folder = folder();
    let image = image(&floe, folder.path(), "erofs");
    let arguments = "speed --rounds 1 --seconds 0.1 --image-caches-only --workload whole-tree,find-8,random-8 --image";
    let reports = bench(&floe, folder.path(), &format!("{arguments} {}", image.display()));
    assert_eq!(reports.len(), 2);
    for (report, contender) in reports.iter().flat_map(|report| [(report, "service"), (report, "floe mount")]) {
        assert!(value(report, "whole tree, 2 threads", "MB/s", contender) > 0.0);
    }
}

#[test]
fn an_ordinary_user_reads_all_mounts() {
    let Some(floe) = ready(&NEEDS).then(floe).flatten() else { return };
    let folder = folder();
    let image = image(&floe, folder.path(), "squashfs");
    let arguments = "user --rounds 1 --image-caches-only --workload stat --image";
    let reports = bench(&floe, folder.path(), &format!("{arguments} {}", image.display()));
    for contender in ["front", "fuse", "root-kernel", "root-front", "root-service"] {
        assert!(value(&reports[0], "stat of random files", "files/s", contender) > 0.0);
    }
}

#[test]
fn readers_and_their_servers_are_measured() {
    let Some(floe) = ready(&NEEDS).then(floe).flatten() else { return };
    let folder = folder();
    let arguments = "readers --readers 2 --reads 5 --file-kib-max 100 --rounds 1 --image-caches-only";
    for report in bench(&floe, folder.path(), arguments) {
        for contender in ["service", "floe mount"] {
            assert!(value(&report, "launch", "read p99, µs", contender) > 0.0);
        }
    }
}
