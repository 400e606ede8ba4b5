//! The collector beside `perf sched timehist`, on the same run.

use std::process::{Command, Stdio};
use std::time::Duration;

use floe_lab::load::{Load, LoadKind};
use floe_lab::machine::Undo;
use floe_lab::sched::{Schedule, Wait, WaitKind};
use floe_lab::trace::{Collector, CollectorOptions};

/// What timehist prints for a thread, in milliseconds: off the CPU, the part of it from woken to running, and how many
/// rows.
fn timehist_ms(text: &str, task: &str) -> (f64, f64, usize) {
    let rows = text.lines().filter_map(|line| {
        // time [cpu] task[tid] wait delay run
        let mut columns = line.split_once(']')?.1.split_whitespace().rev();
        let (_run, delay, wait) = (columns.next()?, columns.next()?, columns.next()?);
        let is_task = columns.next()?.split('[').next()? == task;
        is_task.then(|| Some((wait.parse::<f64>().ok()?, delay.parse::<f64>().ok()?)))?
    });
    rows.fold((0.0, 0.0, 0), |(waits, delays, count), (wait, delay)| (waits + wait, delays + delay, count + 1))
}

/// Some virtual machines hide a switch now and then, from one recorder or the other; not in each of four recordings.
#[test]
fn latency_agrees_with_perf_sched_timehist() {
    if Command::new("perf").arg("--version").output().is_err() {
        return eprintln!("skipped: no perf");
    }
    let undo = Undo::new().expect("a journal");
    let mut collector = match Collector::new(&undo, CollectorOptions::default()) {
        Ok(collector) => collector,
        Err(error) if error.is_permission() => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let agrees = (0..4).any(|_| is_close_to_timehist(&undo, &mut collector));
    assert!(agrees, "no recording of four agrees with perf");
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
    // The run to be compared lies within both recordings.
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
    let (waited_ms, woken_ms, count) = timehist_ms(&text, "lab-timehist");
    // timehist has no row for the time before a thread first runs.
    let first_ns = ours.waits.first().map_or(0, Wait::duration_ns);
    let wake_ms = milliseconds(ours.latency_ns(Some(WaitKind::Wake)) - first_ns);
    let all_ms = milliseconds(ours.latency_ns(None) - first_ns);
    let off_ms = milliseconds(ours.sleep_ns) + all_ms;
    eprintln!(
        "woken to running: ours {wake_ms:.3} ms, perf {woken_ms:.3}; off the CPU: ours {off_ms:.3} ms, perf {:.3}; \
         {} slices, perf {count}; {all_ms:.3} ms of latency",
        waited_ms, ours.slice_count,
    );
    let is_close = |ours: f64, theirs: f64| (ours - theirs).abs() <= theirs / 100.0 + 0.05;
    trace.is_complete() && is_close(wake_ms, woken_ms) && is_close(off_ms, waited_ms)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
