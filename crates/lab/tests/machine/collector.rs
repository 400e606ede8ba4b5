//! Compares the collector with the running kernel's own counts.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use floe_lab::machine::Undo;
use floe_lab::sched::{Schedule, ThreadTotals, WaitKind, process_totals, totals_between};
use floe_lab::trace::{Collector, CollectorOptions, Event, EventKind, Tracefs};

use crate::TURN;

fn collector(options: CollectorOptions) -> Option<(Undo, Collector)> {
    let undo = Undo::new().expect("a journal");
    match Collector::new(&undo, options) {
        Ok(collector) => Some((undo, collector)),
        Err(error) if error.is_permission() => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name.into()).spawn(body).expect("a thread")
}

fn pin_to(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).expect("one of our CPUs");
}

/// The first CPUs that this process may use: enough to detect differences.
fn some_cpus() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).expect("an affinity");
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(4).collect()
}

/// The kernel's totals of the calling thread.
fn own_totals() -> ThreadTotals {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    process_totals(std::process::id()).expect("schedstat").remove(&tid).expect("this thread")
}

/// Two threads that exchange `count` messages each way. Returns the kernel's totals of both, first those of the thread
/// that answers.
fn ping_pong(count: usize) -> JoinHandle<[ThreadTotals; 2]> {
    let (mut near, mut far) = UnixStream::pair().expect("a socket pair");
    let echo = spawn("lab-echo", move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() {
            far.write_all(&byte).expect("the other end");
        }
        own_totals()
    });
    spawn("lab-ping", move || {
        for _ in 0..count {
            near.write_all(&[1]).expect("the other end");
            near.read_exact(&mut [0]).expect("the other end");
        }
        let totals = own_totals();
        drop(near);
        [echo.join().expect("no panic"), totals]
    })
}

/// The thread shares its CPU with another one, so its waits are long. Compared with them, it does not matter that the
/// kernel skips reading its clock at a switch right after a wakeup.
#[test]
fn records_are_accounted_for_and_latency_agrees_with_schedstat() {
    let _turn = TURN.lock();
    let Some((_undo, mut collector)) = collector(CollectorOptions::default()) else { return };
    for cpu in some_cpus() {
        // Sometimes both sources miss a switch, more often on a busy machine. The test needs one run without such a
        // switch.
        assert!((0..30).any(|_| agrees_with_schedstat(&mut collector, cpu)), "all runs missed a switch");
    }
}

/// Fails if the results disagree; returns false if they are not comparable, because a switch is missing or time was
/// stolen.
fn agrees_with_schedstat(collector: &mut Collector, cpu: usize) -> bool {
    let pid = std::process::id();
    let is_over = Arc::new(AtomicBool::new(false));
    let (mut go, mut wait) = UnixStream::pair().expect("a socket pair");
    let rival = spawn("lab-rival", {
        let is_over = Arc::clone(&is_over);
        move || {
            pin_to(cpu);
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
    });
    let worker = spawn("lab-worker", move || {
        pin_to(cpu);
        wait.read_exact(&mut [0]).expect("go");
        for _ in 0..60 {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        wait.write_all(&[0]).expect("done");
        wait.read_exact(&mut [0]).expect("end");
    });
    std::thread::sleep(Duration::from_millis(50));
    collector.start().expect("started");
    let before = process_totals(pid).expect("schedstat");
    go.write_all(&[0]).expect("go");
    go.read_exact(&mut [0]).expect("done");
    std::thread::sleep(Duration::from_millis(20));
    let after = process_totals(pid).expect("schedstat");
    let trace = collector.stop().expect("stopped");
    go.write_all(&[0]).expect("end");
    is_over.store(true, Ordering::Relaxed);
    worker.join().expect("no panic");
    rival.join().expect("no panic");

    assert!(trace.is_complete(), "lost {} in {:?}", trace.lost, trace.gaps);
    let read: u64 = trace.buffers.iter().map(|buffer| buffer.read).sum();
    assert_eq!(trace.record_count, read, "records parsed against records the kernel says were read");
    assert!(trace.events.is_sorted_by_key(|event| event.time_ns));
    let schedule = Schedule::new(&trace);
    let (tid, worker) = schedule.threads.iter().find(|(_, thread)| thread.name == "lab-worker").expect("the worker");
    let totals = &totals_between(&before, &after)[tid];
    let latency_ns = worker.latency_ns(None);
    eprintln!(
        "CPU {cpu}: latency {} µs, ran {} µs, {} slices, {} invalid, {} unexplained, {} restored; schedstat: {totals:?}",
        latency_ns / 1000,
        worker.running_ns / 1000,
        worker.slice_count,
        worker.invalid_count,
        schedule.unexplained_count,
        schedule.restored_count,
    );
    if schedule.unexplained_count > 0 {
        return false;
    }
    assert_eq!((worker.invalid_count, worker.slice_count), (0, totals.slice_count));
    // The kernel reads its clock slightly before or after it records a switch, more so on a busy machine.
    let apart_ns = totals.waiting_ns / 100 + 20_000 * worker.slice_count;
    assert!(latency_ns.abs_diff(totals.waiting_ns) <= apart_ns, "{latency_ns} against {totals:?}");
    let shortcut_ns = 40_000 * worker.slice_count;
    let tolerated_ns = totals.running_ns / 100 + shortcut_ns;
    assert!(worker.running_ns + tolerated_ns >= totals.running_ns, "{} against {totals:?}", worker.running_ns);
    assert_eq!(worker.sleep_count, totals.sleep_count);
    // The kernel does not count time for interrupts or stolen by a hypervisor as running; no switch shows that.
    worker.running_ns <= totals.running_ns + tolerated_ns
}

/// On some machines, tracing misses the switches away from a CPU's idle task.
#[test]
fn a_thread_that_wakes_an_idle_cpu_is_seen_each_time() {
    let _turn = TURN.lock();
    let Some((_undo, mut collector)) = collector(CollectorOptions::default()) else { return };
    for cpu in some_cpus() {
        collector.start().expect("started");
        let sleeper = spawn("lab-sleeper", move || {
            pin_to(cpu);
            (0..100).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        });
        sleeper.join().expect("no panic");
        let trace = collector.stop().expect("stopped");
        let schedule = Schedule::new(&trace);
        let sleeper = schedule.threads.values().find(|thread| thread.name == "lab-sleeper").expect("the sleeper");
        let what =
            format!("CPU {cpu}: {} restored, {} not: {sleeper:?}", schedule.restored_count, schedule.unexplained_count);
        let seen = sleeper.waits.len() + usize::try_from(sleeper.invalid_count).expect("few");
        let is_explained = sleeper.invalid_count <= schedule.unexplained_count;
        assert!(is_explained && sleeper.sleep_count >= 98 && seen >= 98, "{what}");
        let typical = sleeper.waits.iter().filter(|wait| wait.duration_ns() < 20_000_000).count();
        assert!(typical > 50, "a wait spans sleeps: {what}");
    }
}

/// A thread whose next message is already there does not sleep, so how often it sleeps depends on the load. The kernel
/// counts the sleeps.
#[test]
fn wakeups_of_two_threads_are_all_seen() {
    let _turn = TURN.lock();
    let Some((_undo, mut collector)) = collector(CollectorOptions::default()) else { return };
    for _ in 0..3 {
        collector.start().expect("started");
        let [echo, _] = ping_pong(2000).join().expect("no panic");
        let slept = echo.sleep_count;
        let trace = collector.stop().expect("stopped");
        assert!(trace.is_complete(), "lost {} in {:?}", trace.lost, trace.gaps);
        let schedule = Schedule::new(&trace);
        let (&tid, echo) = schedule.threads.iter().find(|(_, thread)| thread.name == "lab-echo").expect("the echo");
        let is_wakeup = |event: &&Event| matches!(event.kind, EventKind::Waking(wakeup) if wakeup.tid == tid);
        let woken = trace.events.iter().filter(is_wakeup).count() as u64;
        let waits = echo.waits.iter().filter(|wait| wait.kind == WaitKind::Wake).count() as u64;
        let what = format!(
            "slept {slept} times, {} seen; {woken} wakeups, {waits} waits after one, {} invalid; {} switches missing",
            echo.sleep_count, echo.invalid_count, schedule.unexplained_count,
        );
        eprintln!("{what}");
        assert!(slept >= 500, "{what}");
        assert!(woken >= slept && echo.sleep_count + schedule.unexplained_count >= slept, "{what}");
        // The thread also waits when it is new. It does not wait if it is woken before it has left its CPU.
        assert!(waits <= woken + 1 && waits + echo.invalid_count >= slept / 2, "{what}");
    }
}

/// The CPU time that tracing a launch costs per record. A launch has some thousands of records.
#[test]
fn a_record_costs_little() {
    let _turn = TURN.lock();
    let Some((_undo, mut collector)) = collector(CollectorOptions::default()) else { return };
    // The time that this process spends on CPUs; waiting for a busy one does not count.
    let spent = || {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::try_from(clock).expect("time goes forward")
    };
    // On one CPU, to exclude the cost of wakeups on another CPU.
    let timed = || {
        let begin = spent();
        let runner = spawn("lab-runner", || {
            pin_to(some_cpus()[0]);
            ping_pong(5000).join().expect("no panic");
        });
        runner.join().expect("no panic");
        spent() - begin
    };
    let (mut without, mut with, mut record_count) = (Duration::MAX, Duration::MAX, 1);
    for _ in 0..8 {
        collector.rest().expect("rests");
        without = without.min(timed());
        collector.start().expect("started");
        let elapsed = timed();
        let trace = collector.stop().expect("stopped");
        if elapsed < with {
            (with, record_count) = (elapsed, trace.record_count);
        }
    }
    let cost_ns = with.saturating_sub(without).as_nanos() / u128::from(record_count.max(1));
    let witness = if collector.has_second_witness() { ", perf events included" } else { "" };
    eprintln!("{without:?} without, {with:?} with {record_count} records: {cost_ns} ns each{witness}");
    assert!(record_count > 20_000 && cost_ns < 4_000, "{cost_ns} ns for each of {record_count} records");
}

/// Eight processes that each demand 90 % of a CPU switch as often as a launch under load.
#[test]
fn nothing_is_lost_under_heavy_load() {
    let _turn = TURN.lock();
    let Some((undo, mut collector)) = collector(CollectorOptions::default()) else { return };
    let kinds = ["cpu=8x90%".parse().expect("a load")];
    let _load = floe_lab::load::Load::start(&undo, &kinds).expect("burners");
    collector.start().expect("started");
    let talkers = [ping_pong(20_000), ping_pong(20_000)];
    for talker in talkers {
        talker.join().expect("no panic");
    }
    let trace = collector.stop().expect("stopped");
    eprintln!("{} records in {:?}", trace.record_count, Duration::from_nanos(trace.duration_ns()));
    assert!(trace.is_complete() && trace.record_count > 100_000, "lost {} of {}", trace.lost, trace.record_count);
}

#[test]
fn losses_are_counted() {
    let _turn = TURN.lock();
    let options = CollectorOptions { buffer_kib: 8, wake_percent: 100, kept_bytes_max: 1 << 20 };
    let Some((_undo, mut collector)) = collector(options) else { return };
    collector.start().expect("started");
    let totals = ping_pong(20_000).join().expect("no panic");
    let trace = collector.stop().expect("stopped");
    assert!(trace.lost > 0 && !trace.gaps.is_empty(), "nothing was lost from a buffer of 8 KiB");
    assert!(trace.events.iter().any(|event| matches!(event.kind, EventKind::Waking(_))));
    // Each sleep of the two threads is a switch and a wakeup. All are either recorded or counted as lost, except for
    // the few switches that tracing misses.
    let slept: u64 = totals.iter().map(|thread| thread.sleep_count).sum();
    let what = format!("{} recorded, {} lost; {slept} sleeps", trace.record_count, trace.lost);
    eprintln!("{what}");
    assert!(trace.record_count + trace.lost >= 2 * slept * 99 / 100, "{what}");
    let schedule = Schedule::new(&trace);
    let waits = schedule.threads.values().flat_map(|thread| &thread.waits);
    let spanning =
        waits.filter(|wait| trace.gaps.iter().any(|gap| gap.start_ns < wait.end_ns && wait.start_ns < gap.end_ns));
    assert_eq!(spanning.count(), 0, "a wait over lost events was taken for valid");
    assert!(schedule.invalid_count > 0);
}

#[test]
fn discarded_pages_count_as_lost() {
    let _turn = TURN.lock();
    let options = CollectorOptions { kept_bytes_max: 8 << 10, ..CollectorOptions::default() };
    let Some((_undo, mut collector)) = collector(options) else { return };
    collector.start().expect("started");
    ping_pong(2000).join().expect("no panic");
    let trace = collector.stop().expect("stopped");
    assert!(trace.lost > 1000 && !trace.is_complete());
    let read: u64 = trace.buffers.iter().map(|buffer| buffer.read).sum();
    assert_eq!(trace.record_count + trace.lost, read);
}

#[test]
fn instances_go_away() {
    let _turn = TURN.lock();
    let Some((_undo, collector)) = collector(CollectorOptions::default()) else { return };
    let tracefs = Tracefs::open().expect("tracefs");
    let instances = tracefs.root().join("instances");
    let own = || {
        let prefix = format!("floe-lab-{}-", std::process::id());
        let entries = std::fs::read_dir(&instances).expect("instances").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
    };
    assert_eq!(own(), 1);
    drop(collector);
    assert_eq!(own(), 0);
    // An instance of a process that has ended.
    std::fs::create_dir(instances.join("floe-lab-4194999-0")).expect("an instance");
    assert_eq!(tracefs.remove_left_over(), ["floe-lab-4194999-0"]);
}
