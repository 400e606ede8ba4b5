//! Load behaves as specified and leaves nothing behind.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use floe_lab::load::{Load, LoadKind};
use floe_lab::machine::Undo;
use floe_lab::sched::process_totals;

use crate::TURN;

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn start(kinds: &[&str]) -> floe_lab::Result<Load> {
    let kinds: Vec<LoadKind> = kinds.iter().map(|kind| kind.parse().expect("a load")).collect();
    Load::start(&Undo::new()?, &kinds)
}

/// Waits up to half a minute until a condition is true; returns whether it is. The limit is generous, for busy
/// machines.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    (0..1500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        is_so()
    })
}

#[test]
fn burners_demand_the_requested_share_and_end_with_the_load() {
    let _turn = TURN.lock();
    let begin = std::time::Instant::now();
    let mut load = start(&["cpu=2x50%"]).expect("burners");
    let pids = load.pids();
    for pid in &pids {
        let totals = || process_totals(*pid).expect("alive")[&pid.cast_signed()].clone();
        // A burner is awake half of the time: it runs, or waits for a busy CPU.
        let awake_ns = || totals().running_ns + totals().waiting_ns;
        assert!(until(|| awake_ns() >= 150_000_000 && totals().sleep_count >= 1), "{:?}", totals());
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("alive");
        assert!(name.starts_with("floe-burn/"), "{name}");
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("alive").count();
        assert!(fds <= 3, "{fds} files open in a burner");
        let session = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
        let session: Vec<_> = session.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(session[3], pid.to_string(), "a session of its own");
        let awake_ns = awake_ns();
        let lived_ns = u64::try_from(begin.elapsed().as_nanos()).expect("short");
        assert!(awake_ns <= lived_ns, "awake for {awake_ns} ns of {lived_ns}");
    }
    assert_eq!(load.notes(), [""; 0]);
    drop(load);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn load_ends_with_the_thread_that_started_it() {
    let _turn = TURN.lock();
    let pids = std::thread::spawn(|| {
        let load = start(&["cpu=2x10%"]).expect("burners");
        let pids = load.pids();
        // Simulates a killed process, which drops nothing.
        std::mem::forget(load);
        pids
    });
    let pids = pids.join().expect("no panic");
    let ended = |pid: u32| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
    };
    assert!(until(|| pids.iter().all(|&pid| ended(pid))));
}

#[test]
fn random_reads_read() {
    let _turn = TURN.lock();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), vec![1; 1 << 20]).expect("written");
    let load = start(&[&format!("randread={}", file.path().display())]).expect("a reader");
    let pid = load.pids()[0];
    let reads = || {
        let counts = std::fs::read_to_string(format!("/proc/{pid}/io")).expect("alive");
        let reads = counts.lines().find_map(|line| line.strip_prefix("syscr: ")).expect("a count");
        reads.parse::<u64>().expect("a number")
    };
    assert!(until(|| reads() > 20), "{}", reads());
    drop(load);
    assert!(!is_alive(pid));
    std::fs::write(file.path(), "too small").expect("written");
    let error = start(&[&format!("randread={}", file.path().display())]).expect_err("refused");
    assert!(error.to_string().contains("too small"), "{error}");
}

#[test]
fn the_hog_presses_and_its_group_goes_away() {
    let _turn = TURN.lock();
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: control groups need root");
    }
    let load = match start(&["memory=16M"]) {
        Ok(load) => load,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    // File data of twice the limit, read inside the group.
    let file = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file");
    std::fs::write(file.path(), vec![1; 32 << 20]).expect("written");
    rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
    file.as_file().sync_all().expect("synced");
    rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).expect("dropped");
    let mut command = Command::new("cat");
    command.arg(file.path()).stdout(std::process::Stdio::null());
    let status = load.confine(&mut command).expect("confined").status().expect("cat");
    assert!(status.success());
    let counts = load.memory_counts().expect("a group");
    assert!(counts.limit_hits > 0 && counts.peak_bytes >= 15 << 20, "{counts:?}");
    // If no page is reclaimable for a moment, the kernel may kill the hog, but not the command.
    assert!(counts.out_of_memory_kills <= 1, "{counts:?}");
    let pids = load.pids();
    drop(load);
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
    let prefix = format!("floe-lab-{}-", std::process::id());
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"] {
        for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
            assert!(!entry.file_name().to_string_lossy().starts_with(&prefix), "{:?}", entry.path());
        }
    }
}

#[test]
fn fio_runs_and_its_jobs_end_too() {
    let _turn = TURN.lock();
    if Command::new("fio").arg("--version").output().is_err() {
        return eprintln!("skipped: no fio");
    }
    let home = tempfile::tempdir().expect("a directory");
    let job = home.path().join("burn.fio");
    let name = format!("burn{}", std::process::id());
    let text = format!("[{name}]\nioengine=cpuio\ncpuload=10\nnumjobs=2\ntime_based\nruntime=60\n");
    std::fs::write(&job, text).expect("written");
    let running = || {
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let path = job.as_os_str().as_encoded_bytes();
        lines.filter(|line| line.windows(path.len()).any(|window| window == path)).count()
    };
    let load = start(&[&format!("fio:{}", job.display())]).expect("fio");
    assert!(until(|| running() >= 2), "{}", running());
    drop(load);
    assert!(until(|| running() == 0), "{}", running());
    std::fs::write(&job, "[x]\nioengine=nonsense\n").expect("written");
    let error = start(&[&format!("fio:{}", job.display())]).expect_err("refused");
    assert!(error.to_string().contains("fio ended at once"), "{error}");
}
