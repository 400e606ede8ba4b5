//! `floe exporter` with users who use up its connections, its time and its threads.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::skip::{self, Need};

use crate::{
    exporter::{Exporter, value},
    planted_names::{PLANTER, Shared, USER, ready},
    support::program::{Serving, demo, floe, run, told, until},
};

const NOTHING: [&str; 0] = [];

/// How long an answer may take though others attack, on a busy machine: half of what an idle connection may last.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);

/// A program of another user. It is killed in the end.
struct Attacker(Child);

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program of bash that connects to the exporter, and waits until it has written a line.
fn attack(user: u32, port: &str, script: &str) -> Attacker {
    let user = user.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "bash", "-c", script, "bash", port]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let stdout = child.stdout.take().expect("it is piped");
    assert!(BufReader::new(stdout).lines().next().is_some_and(|line| line.is_ok()), "it does not connect");
    Attacker(child)
}

#[test]
fn connections_of_others_take_no_place_away() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("setpriv"), Need::Peer("bash")]) {
        return;
    }
    let serving = Serving::new(&demo(), NOTHING);
    let exporter = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"]));
    exporter.metrics_of(&[&serving.place]);
    let requests = [
        ("half-sent requests", r"GET /met"),
        ("no requests", ""),
        ("requests whose answers are not read", r"GET /metrics HTTP/1.1\r\nHost: floe\r\n\r\n"),
        ("slow bodies", r"GET /metrics HTTP/1.1\r\nHost: floe\r\nContent-Length: 100\r\n\r\na"),
    ];
    // The last one is of the user who asks too.
    for (name, request) in requests {
        for user in [PLANTER, 0] {
            let script = format!(
                "for i in $(seq 64); do exec {{fd}}<>/dev/tcp/127.0.0.1/$1; printf '{request}' >&$fd; done; echo; exec sleep 600"
            );
            let _attacker = attack(user, exporter.port(), &script);
            for _ in 0..2 {
                let start = Instant::now();
                exporter.metrics_of(&[&serving.place]);
                assert!(start.elapsed() < ANSWER_TIME_MAX, "{name} of {user}: {:?}", start.elapsed());
            }
        }
    }
}

#[test]
fn a_client_that_connects_again_and_again_keeps_nobody_out() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("setpriv"), Need::Peer("bash")]) {
        return;
    }
    let serving = Serving::new(&demo(), NOTHING);
    let exporter = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"]));
    let script = r"echo; while true; do exec {fd}<>/dev/tcp/127.0.0.1/$1; printf 'GET /metrics HTTP/1.1\r\nHost: floe\r\n\r\n' >&$fd; \
                   exec {fd}>&-; done";
    let _attacker = attack(PLANTER, exporter.port(), script);
    for _ in 0..5 {
        let start = Instant::now();
        exporter.metrics_of(&[&serving.place]);
        assert!(start.elapsed() < ANSWER_TIME_MAX, "{:?}", start.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
}

/// The number of names that an attacker creates.
const NAMES: usize = 399_000;

#[test]
fn directories_of_others_are_no_users() {
    if !ready() {
        return;
    }
    let plant = format!(
        "setpriv --reuid {PLANTER} --regid {PLANTER} --clear-groups sh -euc 'seq -f /tmp/floe-%.0f {NAMES} | xargs mkdir -m 700'"
    );
    let shared = Shared::after(&plant);
    let (image, directory) = (shared.path("image"), shared.path("mnt"));
    let (image, directory) = (image.to_str().expect("text"), directory.to_str().expect("text"));
    assert_eq!(told(&shared.floe(USER, &["mount", "-d", image, directory])), (Some(0), String::new()));
    let program = shared.path("floe");
    let mut command = shared.command(None, program.to_str().expect("text"));
    let exporter = Exporter::start(command.args(["exporter", "--all-users", "--listen", "127.0.0.1:0"]));
    let labels = [format!("mountpoint=\"{directory}\""), format!("user=\"{USER}\"")];
    until("the mount is up", || value(&exporter.metrics(), "floe_mount_up", &[&labels[0], &labels[1]]) == Some(1.0));
    drop(exporter);
    assert_eq!(told(&shared.floe(USER, &["umount", directory])), (Some(0), String::new()));
}

#[test]
fn mounts_are_up_though_the_exporter_can_start_no_thread() {
    if !ready() || !skip::ready(&[Need::Peer("prlimit")]) {
        return;
    }
    let shared = Shared::after(":");
    let (image, directory) = (shared.path("image"), shared.path("mnt"));
    let (image, directory) = (image.to_str().expect("text"), directory.to_str().expect("text"));
    assert_eq!(told(&shared.floe(USER, &["mount", "-d", image, directory])), (Some(0), String::new()));
    let program = shared.path("floe");
    let mut command = shared.command(Some(USER), program.to_str().expect("text"));
    let exporter = Exporter::start(command.args(["exporter", "--listen", "127.0.0.1:0"]));
    let label = format!("mountpoint=\"{directory}\"");
    until("the mount is up", || value(&exporter.metrics(), "floe_mount_up", &[&label]) == Some(1.0));
    // The thread that collects waits for its next work; no other one can be started.
    let process = format!("--pid={}", exporter.id());
    let limited = run(shared.command(Some(USER), "prlimit").args([process.as_str(), "--nproc=1:1"]));
    assert!(limited.status.success(), "{limited:?}");
    until("it is still up", || value(&exporter.metrics(), "floe_mount_up", &[&label]) == Some(1.0));
    assert!(fs::metadata(format!("/proc/{}", exporter.id())).is_ok());
    drop(exporter);
    assert_eq!(told(&shared.floe(USER, &["umount", directory])), (Some(0), String::new()));
}
