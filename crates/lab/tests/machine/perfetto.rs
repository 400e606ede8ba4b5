//! Reads our traces with Perfetto's trace processor.
//!
//! Runs if `FLOE_PERFETTO_QUERY` names a program that takes a trace and SQL queries, and prints rows with columns
//! separated by ` | `, after a line `-- query` and a line of column names.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use floe_lab::machine::Undo;
use floe_lab::report::write_perfetto;
use floe_lab::sched::{Schedule, WaitKind};
use floe_lab::trace::{Collector, CollectorOptions, EventKind, ProcessTree, Trace};

use crate::TURN;

type Rows = Vec<Vec<String>>;

fn query(program: &str, trace: &std::path::Path, sql: &[&str]) -> Vec<Rows> {
    let words: Vec<&str> = program.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).arg(trace).args(sql).output().expect("the query program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut answers: Vec<Rows> = Vec::new();
    for line in text.lines() {
        if line.starts_with("-- ") {
            answers.push(Vec::new());
        } else if let Some(rows) = answers.last_mut() {
            rows.push(line.split(" | ").map(str::to_owned).collect());
        }
    }
    // The first row has the column names.
    answers.into_iter().map(|rows| rows.into_iter().skip(1).collect()).collect()
}

/// Records some short processes, and a thread that reports a decode.
fn record(collector: &mut Collector) -> (ProcessTree, Trace, Schedule) {
    let before = ProcessTree::read();
    collector.start().expect("started");
    let marker = collector.marker();
    let mark = || {
        let mut marker = std::fs::OpenOptions::new().write(true).open(&marker).expect("a marker");
        std::io::Write::write_all(&mut marker, b"floe_decode 12345 4097\n").expect("marked");
        std::io::Write::write_all(&mut marker, b"what somebody else has to say\n").expect("marked");
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new().name("lab-decoder".into()).spawn_scoped(scope, mark).map(drop)
    })
    .expect("a thread");
    let status = Command::new("sh").args(["-c", "for i in 1 2 3; do (ls /; ls /) | sort | wc -l; done"]).output();
    assert!(status.expect("a shell").status.success());
    std::thread::sleep(Duration::from_millis(20));
    let trace = collector.stop().expect("stopped");
    let schedule = Schedule::new(&trace);
    (before, trace, schedule)
}

/// The time from `task_newtask` to `sched_wakeup_new` of a thread created during the recording.
fn made_to_woken_ns(trace: &Trace, new_tid: i32) -> u64 {
    let time_of = |test: &dyn Fn(&EventKind) -> bool| trace.events.iter().find(|e| test(&e.kind)).map(|e| e.time_ns);
    let made = time_of(&|kind| matches!(kind, EventKind::NewTask { tid, .. } if *tid == new_tid));
    let woken = time_of(&|kind| matches!(kind, EventKind::WakeupNew(wakeup) if wakeup.tid == new_tid));
    made.zip(woken).map_or(0, |(made, woken)| woken - made)
}

#[test]
fn perfetto_finds_the_same_slices_and_the_same_latency() {
    let _turn = TURN.lock();
    let Ok(program) = std::env::var("FLOE_PERFETTO_QUERY") else {
        return eprintln!("skipped: FLOE_PERFETTO_QUERY names no program that runs SQL over a trace");
    };
    let undo = Undo::new().expect("a journal");
    let mut collector = match Collector::new(&undo, CollectorOptions::default()) {
        Ok(collector) => collector,
        Err(error) if error.is_permission() => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let (before, trace, schedule) = (0..20)
        .map(|_| record(&mut collector))
        .min_by_key(|(_, _, schedule)| schedule.unexplained_count)
        .expect("recordings");
    let after = ProcessTree::read();
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("trace.gz");
    let lasted = [("what was done".to_owned(), trace.start_ns + 1000, 2_000_000)];
    write_perfetto(&path, &trace, (&before, &after), &lasted).expect("written");
    let answers = query(
        &program,
        &path,
        &[
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
            "select count(*) from ftrace_event where name = 'sched_switch'",
            "select name, ts, dur from slice where name = 'what was done'",
            "select tid, sum(dur) from thread_state join thread using(utid) where state in ('R', 'R+') and dur >= 0 \
             and tid != 0 group by tid",
            "select tid, count(*) from sched_slice join thread using(utid) where tid != 0 and dur >= 0 group by tid",
            "select distinct p.name from process p join thread using(upid) where thread.name = 'wc'",
            "select thread.name, slice.name, slice.dur from slice join thread_track on slice.track_id = thread_track.id \
             join thread using(utid) where slice.name like 'decode%'",
            "select release from (select str_value as release from metadata where name = 'system_release')",
        ],
    );
    let numbers = |rows: &Rows| -> BTreeMap<i32, u64> {
        rows.iter().filter_map(|row| Some((row[0].parse().ok()?, row[1].parse().ok()?))).collect()
    };
    let flaws = match schedule.unexplained_count {
        0 => Rows::new(),
        count => vec![vec!["mismatched_sched_switch_tids".to_owned(), count.to_string()]],
    };
    assert_eq!(answers[0], flaws, "errors in Perfetto's statistics");
    let switches = trace.events.iter().filter(|e| matches!(e.kind, EventKind::Switch(_))).count();
    assert_eq!(answers[1], [[switches.to_string()]]);
    assert_eq!(answers[2], [["what was done".to_owned(), lasted[0].1.to_string(), lasted[0].2.to_string()]]);
    assert_eq!(answers[6], [["lab-decoder", "decode 5 KiB", "12345"]]);
    let (latency, slices) = (numbers(&answers[3]), numbers(&answers[4]));
    let mut compared = 0;
    for (tid, thread) in &schedule.threads {
        // Perfetto usually counts a new thread from its creation, not from its first wakeup.
        let before_woken_ns = if thread.waits.is_empty() { 0 } else { made_to_woken_ns(&trace, *tid) };
        let theirs = latency.get(tid).copied().unwrap_or(0);
        let from_made_ns = if theirs == thread.latency_ns(None) { 0 } else { before_woken_ns };
        let ours = thread.latency_ns(None) + from_made_ns;
        let preempted = thread.latency_ns(Some(WaitKind::Preempt));
        eprintln!("{tid} {}: {ours} ns ({preempted} preempted), Perfetto {theirs}", thread.name);
        if schedule.unexplained_count == 0 {
            assert_eq!(ours, theirs, "{tid} {}", thread.name);
            assert_eq!(thread.slice_count, slices.get(tid).copied().unwrap_or(0), "{tid} {}", thread.name);
        }
        compared += 1;
    }
    assert!(compared > 10, "{compared} threads compared");
    eprintln!("{compared} threads compared, {} switches not shown by the kernel", schedule.unexplained_count);
}
