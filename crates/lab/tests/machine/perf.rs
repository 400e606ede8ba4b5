//! Compares the collector with `perf sched timehist` on the same run.

use std::process::{Command, Stdio};
use std::time::Duration;

use floe_lab::load::{Load, LoadKind};
use floe_lab::machine::Undo;
use floe_lab::sched::{Schedule, WaitKind};
use floe_lab::trace::{Collector, CollectorOptions};

use crate::TURN;

/// The rows of timehist for a thread: time off the CPU before each run, and the part of it from wakeup to running, in
/// milliseconds.
fn timehist_rows_ms(text: &str, task: &str) -> Vec<(f64, f64)> {
    let rows = text.lines().filter_map(|line| {
        // time [cpu] task[tid] wait delay run
        let mut columns = line.split_once(']')?.1.split_whitespace().rev();
        let (_run, delay, wait) = (columns.next()?, columns.next()?, columns.next()?);
        let is_task = columns.next()?.split('[').next()? == task;
        is_task.then(|| Some((wait.parse().ok()?, delay.parse().ok()?)))?
    });
    rows.collect()
}

/// Some virtual machines miss a switch now and then, in either recorder. One of twelve recordings without such a switch
/// suffices.
#[test]
fn latency_agrees_with_perf_sched_timehist() {
    let _turn = TURN.lock();
    if Command::new("perf").arg("--version").output().is_err() {
        return eprintln!("skipped: no perf");
    }
    let undo = Undo::new().expect("a journal");
    let mut collector = match Collector::new(&undo, CollectorOptions::default()) {
        Ok(collector) => collector,
        Err(error) if error.is_permission() => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let agrees = (0..12).any(|_| is_close_to_timehist(&undo, &mut collector));
    assert!(agrees, "no recording of twelve agrees with perf");
}

/// Records the same run twice and compares.
fn is_close_to_timehist(undo: &Undo, collector: &mut Collector) -> bool {
    let home = tempfile::tempdir().expect("a directory");
    let data = home.path().join("perf.data");
    let load = Load::start(undo, &[LoadKind::Cpu { count: 4, percent: 90 }]).expect("burners");
    let perf = Command::new("perf")
        .args(["sched", "record", "-m", "4096", "-o"])
        .arg(&data)
        .args(["--", "sleep", "5"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut perf = perf.expect("perf");
    collector.start().expect("started");
    std::thread::sleep(Duration::from_millis(1500));
    // Both recordings contain the whole compared run.
    let worker = std::thread::Builder::new().name("lab-timehist".into()).spawn(|| {
        for _ in 0..20 {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(4) {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    worker.expect("a thread").join().expect("no panic");
    let trace = collector.stop().expect("stopped");
    drop(load);
    assert!(perf.wait().expect("perf").success());
    let schedule = Schedule::new(&trace);
    let ours = schedule.threads.values().find(|thread| thread.name == "lab-timehist").expect("the worker");
    let output = Command::new("perf").args(["sched", "timehist", "-i"]).arg(&data).output().expect("perf");
    let text = String::from_utf8_lossy(&output.stdout);
    // perf prints no row for the last run, during which the thread ended.
    let rows = timehist_rows_ms(&text, "lab-timehist");
    let theirs_ms: f64 = std::iter::zip(&ours.waits, &rows)
        .map(|(wait, (waited, woken))| if wait.kind == WaitKind::Wake { woken } else { waited })
        .sum();
    let ours_ms: f64 = ours.waits.iter().take(rows.len()).map(|wait| milliseconds(wait.duration_ns())).sum();
    eprintln!("latency over {} of {} waits: ours {ours_ms:.3} ms, perf {theirs_ms:.3}", rows.len(), ours.waits.len());
    let is_whole = trace.is_complete() && rows.len() + 1 == ours.waits.len();
    is_whole && (ours_ms - theirs_ms).abs() <= theirs_ms / 100.0
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
