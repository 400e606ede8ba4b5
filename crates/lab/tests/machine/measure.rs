//! Runs each measurement on a small tree. Its numbers must be complete, and no process, mount or changed setting may
//! remain.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floe_lab::Interrupt;
use floe_lab::alloc::{self, AllocOptions};
use floe_lab::launch::{self, LaunchOptions, LaunchReport, Programs, Temperature, Tier, Variant};
use floe_lab::load::LoadKind;
use floe_lab::metadata::{self, MetadataOptions};
use floe_lab::read::{self, ReadOptions};
use floe_lab::report::{launch_page, launch_text};
use floe_lab::sched::{NamePattern, SchedOptions, SchedReport, watch};
use floe_testkit::peer;
use floe_testkit::skip::{Need, ready};

use crate::TURN;

struct Images {
    home: tempfile::TempDir,
}

impl Images {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let tree = home.path().join("tree");
        std::fs::create_dir_all(tree.join("inner")).expect("made");
        for index in 0..24_u32 {
            let text: String = (0..20_000).map(|line| format!("{index} {} {}\n", line % 97, line * index)).collect();
            let folder = if index % 2 == 0 { tree.clone() } else { tree.join("inner") };
            std::fs::write(folder.join(format!("file{index}")), text).expect("written");
        }
        let images = Self { home };
        images.make("mkfs.erofs", &["--quiet", "-zlz4hc", "-C16384"], &["tree.erofs", "tree"]);
        images.make("mksquashfs", &[], &["tree", "tree.sqfs", "-quiet", "-no-progress"]);
        images
    }

    fn make(&self, program: &str, options: &[&str], places: &[&str]) {
        let mut command = Command::new(peer(program).expect("the test needs it"));
        command.args(options).args(places).current_dir(self.home.path()).stdout(Stdio::null());
        assert!(command.status().expect("runs").success());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn variants(&self, texts: &[&str]) -> Vec<Variant> {
        texts.iter().map(|text| Variant::parse(text, &self.path("tree.erofs")).expect("a variant")).collect()
    }
}

fn programs() -> Programs {
    let mut programs = Programs::default();
    for name in ["erofsfuse", "squashfuse_ll"] {
        if let Some(path) = peer(name) {
            programs.set(&format!("{name}={}", path.display())).expect("a peer");
        }
    }
    programs
}

const NEEDS: [Need; 6] = [
    Need::Root,
    Need::Fuse,
    Need::KernelErofs,
    Need::KernelSquashfs,
    Need::Peer("mkfs.erofs"),
    Need::Peer("mksquashfs"),
];

fn launch(options: &LaunchOptions) -> floe_lab::Result<LaunchReport> {
    launch::run(options, &Interrupt::listen(), &mut |_| {})
}

fn assert_nothing_is_left() {
    let own = format!("floe-lab-{}-", std::process::id());
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&own), "{mounts}");
    for entry in std::fs::read_dir(std::env::temp_dir()).expect("listed").flatten() {
        assert!(!entry.file_name().to_string_lossy().starts_with(&own), "{:?}", entry.path());
    }
}

fn autogroup() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").ok()
}

#[test]
fn launches_of_all_temperatures_and_tiers() {
    if !ready(&NEEDS) || !ready(&[Need::Peer("erofsfuse")]) {
        return;
    }
    let _turn = TURN.lock();
    let images = Images::new();
    let before = autogroup();
    let cat = ["sh", "-c", "cat {mount}/file* inner/* > /dev/null"].map(str::to_owned).to_vec();
    let variants = images.variants(&["kernel", "disk=kernel:loop", "erofsfuse"]);
    for (temperature, tier) in
        [(Temperature::Cold, None), (Temperature::Warm, Some(Tier::Counting)), (Temperature::Cold, Some(Tier::Tracing))]
    {
        let mut options = LaunchOptions::new(cat.clone(), variants.clone());
        (options.launch_count, options.control_count, options.block_count) = (2, 1, 2);
        (options.temperature, options.tier, options.programs) = (temperature, tier, programs());
        options.stage.load = vec![LoadKind::Cpu { count: 1, percent: 20 }];
        options.stage.load_lead = std::time::Duration::ZERO;
        options.trace_directory = Some(images.path("."));
        let report = launch(&options).expect("launched");
        assert_nothing_is_left();
        assert_eq!(autogroup(), before, "autogroup was not given back");
        assert_eq!(report.launches.len(), 3 * 3 * 2);
        assert!(!report.is_interrupted);
        let is_counting = tier == Some(Tier::Counting);
        for launch in &report.launches {
            let name = &report.variants[launch.variant].name;
            assert!(launch.wall_ns > 100_000 && launch.cpu_ns > 0, "{launch:?}");
            if is_counting {
                assert!(!launch.is_traced && launch.reader.total_ns + launch.reader.running_ns > 0, "{launch:?}");
                continue;
            }
            if !launch.is_traced {
                continue;
            }
            assert!(launch.reader.running_ns > 0 && !launch.reader.waits_ns.is_empty(), "{name} {launch:?}");
            let waits = launch.decompression.as_ref().map_or(0, |latency| latency.waits_ns.len());
            if name != "kernel" {
                assert!(waits > 0, "{name}: no decompression was observed");
            }
        }
        if !is_counting {
            assert_eq!(report.traces.len(), 3);
            assert!(report.traces.iter().all(|trace| std::fs::metadata(trace).is_ok_and(|trace| trace.len() > 1000)));
        }
        let (text, page) = (launch_text(&report), launch_page(&report));
        assert!(text.contains("disk") && text.contains("time of the launch") && page.contains("</html>"), "{text}");
        serde_json::to_value(&report).expect("JSON");
    }
}

#[test]
fn hot_launches_and_failures() {
    if !ready(&NEEDS) {
        return;
    }
    let _turn = TURN.lock();
    let images = Images::new();
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut options = LaunchOptions::new(
        words(&["sh", "-c", "while read -r name; do cat \"$name\" > /dev/null; echo done; done"]),
        images.variants(&["kernel", "directory@/usr"]),
    );
    (options.launch_count, options.control_count, options.block_count) = (3, 0, 1);
    options.temperature = Temperature::Hot;
    options.hot_line = "/proc/self/status".to_owned();
    let report = launch(&options).expect("launched");
    assert_eq!(report.launches.len(), 6);
    assert_nothing_is_left();

    options.temperature = Temperature::Cold;
    let rows: [(&[&str], &str, &str); 4] = [
        (&["sh", "-c", "echo no such luck >&2; exit 3"], "kernel", "no such luck"),
        (&["/no/such/program"], "kernel", "cannot run /no/such/program"),
        (&["true"], "erofsfuse", "--peer"),
        (&["true"], "kernel@/no/image", "cannot open /no/image"),
    ];
    options.programs.erofsfuse = "no-such-erofsfuse".into();
    for (command, variant, expected) in rows {
        options.command = words(command);
        options.variants = images.variants(&[variant]);
        let error = launch(&options).expect_err("refused").to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        assert_nothing_is_left();
    }
}

#[test]
fn an_interrupt_returns_the_results_so_far() {
    if !ready(&NEEDS) {
        return;
    }
    let _turn = TURN.lock();
    let images = Images::new();
    let mut options = LaunchOptions::new(vec!["sleep".into(), "0.05".into()], images.variants(&["kernel"]));
    options.launch_count = 1000;
    let interrupt = Interrupt::listen();
    let report = launch::run(&options, &interrupt, &mut |progress| {
        if progress.done == 3 {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::INT).expect("signalled");
        }
    });
    let report = report.expect("the results so far");
    assert!(report.is_interrupted && (3..10).contains(&report.launches.len()), "{}", report.launches.len());
    assert_nothing_is_left();
}

#[test]
fn pages_from_the_pool_are_faster() {
    let _turn = TURN.lock();
    let options = AllocOptions { round_count: 30, limit_bytes: 16 << 20, ..AllocOptions::default() };
    let report = alloc::run(&options, &Interrupt::listen()).expect("measured");
    let text = report.text();
    assert!(report.columns.len() == 4 || text.contains("without memory pressure only"), "{text}");
    for pair in report.columns.chunks(2) {
        // Not the sum: a round during which the machine stalled would dominate it.
        let median = |index: usize| {
            let mut rounds_ns = pair[index].rounds_ns.clone();
            rounds_ns.sort_unstable();
            rounds_ns[rounds_ns.len() / 2]
        };
        assert_eq!(pair[0].rounds_ns.len(), 30);
        assert!(median(1) < median(0), "{text}");
    }
    assert!(report.page().contains("</html>"));
    assert_nothing_is_left();
}

#[test]
fn walks_and_reads_of_all_readers() {
    if !ready(&NEEDS) || !ready(&[Need::Peer("erofsfuse"), Need::Peer("squashfuse_ll")]) {
        return;
    }
    let _turn = TURN.lock();
    let images = Images::new();
    let squashfs = images.path("tree.sqfs");
    let tree = images.path("tree");
    let variants = images.variants(&[
        "kernel",
        "erofsfuse",
        &format!("sq=kernel@{}", squashfs.display()),
        &format!("squashfuse@{}", squashfs.display()),
        &format!("plain=directory@{}", tree.display()),
    ]);
    let mut options = ReadOptions::new(variants.clone());
    (options.round_count, options.random_count, options.programs) = (2, 50, programs());
    let report = read::run(&options, &Interrupt::listen()).expect("read");
    assert_eq!((report.rounds.len(), report.rounds[0].file_count), (10, 24));
    assert!(report.rounds.iter().all(|round| round.random_ns.len() == 50 && round.byte_count > 1 << 20));
    let hash = report.rounds[0].content_hash;
    assert!(report.rounds.iter().all(|round| round.content_hash == hash), "readers differ: {report:?}");
    assert!(report.page().contains("</html>") && report.text().contains("squashfuse"));

    let mut options = MetadataOptions::new(variants);
    (options.round_count, options.walker_counts, options.programs) = (2, vec![1, 4], programs());
    let report = metadata::run(&options, &Interrupt::listen()).expect("walked");
    assert_eq!(report.walks.len(), 5 * 2 * 2);
    assert!(report.page().contains("</html>") && report.text().contains("published"));
    assert_nothing_is_left();
}

#[test]
fn threads_are_watched_by_name_in_both_tiers() {
    let _turn = TURN.lock();
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let sleeper = std::thread::Builder::new().name("lab-watched".into()).spawn(move || {
        while receive.recv_timeout(std::time::Duration::from_millis(2))
            == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        {
            let begin = std::time::Instant::now();
            while begin.elapsed().as_millis() < 3 {}
        }
    });
    let sleeper = sleeper.expect("a thread");
    // The kernel counts 0 ns if a wakeup preempts at once; only with all CPUs busy is there certainly a wait.
    let spinning = Arc::new(AtomicBool::new(true));
    let spinners: Vec<_> = (0..std::thread::available_parallelism().map_or(2, usize::from))
        .map(|_| {
            let spinning = Arc::clone(&spinning);
            std::thread::spawn(move || while spinning.load(Ordering::Relaxed) {})
        })
        .collect();
    for tier in [Some(Tier::Counting), None] {
        let options = SchedOptions {
            threads: vec![NamePattern::new("lab-watch*")],
            processes: Vec::new(),
            workqueues: Vec::new(),
            duration: Some(std::time::Duration::from_secs(1)),
            tier,
        };
        // On a busy machine, the thread may hardly run within a second.
        let mut reports = (0..60).map(|_| {
            let mut shown = 0;
            let report = watch(&options, &Interrupt::listen(), &mut |_| shown += 1).expect("watched");
            assert_eq!((report.rows.len(), shown), (1, 1), "{}", report.text());
            assert_eq!(report.rows[0].name, "lab-watched", "{}", report.text());
            report
        });
        let has_waited = |report: &SchedReport| report.rows[0].wait_count > 5 && report.rows[0].total_ns > 0;
        let report = reports.find(has_waited).expect("it waits for CPUs");
        assert!(report.page().contains("</html>"));
    }
    spinning.store(false, Ordering::Relaxed);
    spinners.into_iter().for_each(|spinner| spinner.join().expect("no panic"));
    drop(send);
    sleeper.join().expect("no panic");
    let nothing = SchedOptions { threads: vec![], processes: vec![], workqueues: vec![], duration: None, tier: None };
    assert!(watch(&nothing, &Interrupt::listen(), &mut |_| {}).is_err());
}
