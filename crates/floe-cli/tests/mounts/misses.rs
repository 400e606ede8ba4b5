//! Many misses on a stuck source, concurrent reads of cached bytes, and clients that are stopped while they wait (SIGSTOP, or
//! Ctrl-Z in a shell).

use std::{
    fs::{self, File},
    num::NonZero,
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_engine::{Blocking, EngineOptions, Reader, Volume, VolumeOptions};
use floe_erofs::Erofs;
use floe_fuse::{Mount, MountOptions, Mountpoint};
use floe_testkit::{
    HeldSource, MemorySource, Random,
    skip::{self, Need},
};
use rustix::{
    fs::{Advice, fadvise},
    process::{Pid, Signal, kill_process},
};

use crate::support::program::{Serving, demo, floe, told, until};

/// The number of concurrent reads that miss.
const MISS_COUNT: usize = 500;

/// The number of timed reads of cached bytes, with and without misses.
const HIT_COUNT: usize = 5000;

/// How long the machine may take to have the misses under way.
const PATIENCE: Duration = Duration::from_secs(300);

/// The size of the uncached file in bytes.
const COLD_BYTES: usize = 96 << 20;

/// An image with one file that will be cached, whose blocks are too large to be decoded for each small read, and one that will
/// not.
fn image(folder: &Path) -> Vec<u8> {
    let tree = folder.join("tree");
    fs::create_dir(&tree).expect("ours");
    let mut random = Random::new(41);
    fs::write(tree.join("hot"), random.text(1 << 20)).expect("ours");
    fs::write(tree.join("cold"), random.text(COLD_BYTES)).expect("ours");
    let path = folder.join("image");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_floe"));
    let made = command.args(["mkfs", "--compress", "lz4", "-C65536"]).arg(&path).arg(&tree).output();
    let made = made.expect("the program starts");
    assert!(made.status.success(), "{made:?}");
    fs::read(path).expect("the image")
}

/// Times reads that the program answers without its source. Sorted.
fn time_hits(file: &File) -> Vec<Duration> {
    let mut random = Random::new(42);
    let mut times = Vec::new();
    for _ in 0..HIT_COUNT {
        let offset = random.below(255) * 4096;
        fadvise(file, offset, NonZero::new(4096), Advice::DontNeed).expect("a hint");
        let mut bytes = [0; 4096];
        let started = Instant::now();
        file.read_exact_at(&mut bytes, offset).expect("data");
        times.push(started.elapsed());
    }
    times.sort();
    times
}

fn open_at_random(path: &Path) -> File {
    let file = File::open(path).expect("it is there");
    fadvise(&file, 0, None, Advice::Random).expect("a hint");
    file
}

#[test]
fn misses_do_not_delay_hits_through_a_mount() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let source = Arc::new(HeldSource::new(Arc::new(MemorySource::new(image(folder.path())))));
    let options = VolumeOptions { read_around: false, ..VolumeOptions::default() };
    let volume = Volume::alone(vec![Arc::clone(&source) as _], &EngineOptions::default(), &options);
    let volume = volume.expect("an engine");
    let erofs = Erofs::open(volume.block_reader(Blocking::Allowed)).expect("an image");
    let reader = Reader::new(Arc::clone(&volume), Arc::new(erofs));
    let place = folder.path().join("mount");
    fs::create_dir(&place).expect("ours");
    let mountpoint = Mountpoint::find(&place).expect("a directory");
    let mount =
        Mount::new(reader, mountpoint, &MountOptions { deadline: None, ..MountOptions::default() }).expect("a mount");
    let (hot, cold) = (open_at_random(&place.join("hot")), open_at_random(&place.join("cold")));
    for offset in (0..1 << 20).step_by(4096) {
        hot.read_exact_at(&mut [0; 4096], offset).expect("data");
    }
    let before = volume.counters();
    let alone = time_hits(&hot);
    assert_eq!(volume.counters().fetches, before.fetches, "all of it is cached");

    source.hold();
    let beside = thread::scope(|scope| {
        for index in 0..MISS_COUNT {
            // Offsets far from each other.
            let page = index * 7919 % (COLD_BYTES / 4096);
            let cold = &cold;
            scope.spawn(move || cold.read_exact_at(&mut [0; 4096], page as u64 * 4096).expect("data"));
        }
        let started = Instant::now();
        while volume.counters().outstanding < MISS_COUNT as u64 * 9 / 10 {
            if started.elapsed() > PATIENCE {
                source.release();
                panic!("only {} misses are outstanding", volume.counters().outstanding);
            }
            thread::sleep(Duration::from_millis(1));
        }
        let beside = time_hits(&hot);
        assert!(source.is_held(), "a hit waited for a miss");
        source.release();
        beside
    });
    drop((hot, cold, mount));
    let quantile = |times: &[Duration], parts_of_1000| times[times.len() * parts_of_1000 / 1000];
    for (name, times) in [("alone", &alone), ("beside misses", &beside)] {
        let [p50, p99, p999] = [500, 990, 999].map(|parts| quantile(times, parts));
        eprintln!("{name}: p50 {p50:?}, p99 {p99:?}, p99.9 {p999:?}, max {:?}", times[times.len() - 1]);
    }
    assert!(volume.counters().outstanding_max >= MISS_COUNT as u64 * 9 / 10);
}

/// The state of a process: one letter.
fn state(process: &Child) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process waits in a system call on a socket.
fn waits_on_a_socket(process: &Child) -> bool {
    let of_process = format!("/proc/{}", process.id());
    let descriptor = || {
        let call = fs::read_to_string(format!("{of_process}/syscall")).ok()?;
        let descriptor = call.split(' ').nth(1)?.strip_prefix("0x")?;
        u32::from_str_radix(descriptor, 16).ok()
    };
    let target = descriptor().and_then(|number| fs::read_link(format!("{of_process}/fd/{number}")).ok());
    state(process) == Some('S') && target.is_some_and(|target| target.to_string_lossy().starts_with("socket:"))
}

#[test]
fn clients_that_are_stopped_get_their_answers() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let arguments: [&str; 0] = [];
    let serving = Serving::new(&demo(), arguments);
    for (words, expected) in
        [(&["status"][..], "EROFS image"), (&["tune"], "fetch-around"), (&["tune", "cache=1M"], "")]
    {
        // It accepts connections, and does not answer.
        serving.stop();
        let mut command: Command = floe();
        command.arg(words[0]).arg(&serving.place.path).args(&words[1..]);
        let client = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let client = client.expect("the program starts");
        let pid = Pid::from_child(&client);
        let has_ended = || state(&client) == Some('Z');
        for _ in 0..3 {
            until("it waits for the answer", || waits_on_a_socket(&client) || has_ended());
            kill_process(pid, Signal::STOP).expect("our own child");
            until("it is stopped", || state(&client) == Some('T') || has_ended());
            kill_process(pid, Signal::CONT).expect("our own child");
            until("it continues", || state(&client) != Some('T'));
        }
        serving.signal(Signal::CONT);
        let output = client.wait_with_output().expect("it ends");
        assert_eq!(told(&output), (Some(0), String::new()), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(expected), "{words:?}: {output:?}");
    }
}
