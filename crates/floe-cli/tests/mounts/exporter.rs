//! `floe exporter`: the metrics of all mounts, over HTTP; users who use up its connections, its time and its threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{
    skip::{self, Need},
    workspace_root,
};
use rustix::process::Signal;

use crate::{
    control_sockets::{PLANTER, Shared, USER, ready},
    support::program::{PATIENCE, Place, Serving, demo, floe, run, told, until},
};

const NOTHING: [&str; 0] = [];

/// An exporter that runs until this is dropped.
pub(crate) struct Exporter {
    child: Child,
    address: String,
}

impl Exporter {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the exporter starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("text");
        let address = line.trim().strip_prefix("metrics are at http://").and_then(|rest| rest.strip_suffix("/metrics"));
        Self { child, address: address.unwrap_or_else(|| panic!("no address: {line}")).to_owned() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> &str {
        self.address.rsplit(':').next().expect("a port")
    }

    /// The status line, the headers and the body of the answer to a request.
    fn answer(&self, request: &str) -> (String, String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(stream, "{request} HTTP/1.1\r\nHost: floe\r\nConnection: close\r\n\r\n").expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("headers end");
        let (status, headers) = head.split_once("\r\n").expect("a status");
        (status.to_owned(), headers.to_lowercase(), body.to_owned())
    }

    pub(crate) fn metrics(&self) -> String {
        let (status, headers, body) = self.answer("GET /metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(headers.contains("content-type: text/plain; version=0.0.4"), "{headers}");
        body
    }

    /// The metrics once these mounts answer: on a busy machine an answer may come too late for one request.
    pub(crate) fn metrics_of(&self, places: &[&Place]) -> String {
        let mut metrics = String::new();
        until("the mounts answer in time", || {
            metrics = self.metrics();
            places.iter().all(|place| value(&metrics, "floe_mount_up", &[&mountpoint(place)]) == Some(1.0))
        });
        metrics
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of the sample of a metric whose labels contain all these texts.
pub(crate) fn value(metrics: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let mut lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The label of a mountpoint.
pub(crate) fn mountpoint(place: &Place) -> String {
    format!("mountpoint=\"{}\"", place.path.display())
}

#[test]
fn one_endpoint_has_the_metrics_of_all_mounts() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let exporter = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"]));
    let (first, second) = (Serving::new(&demo(), NOTHING), Serving::new(&demo(), NOTHING));
    fs::read(first.place.file("README.txt")).expect("data");
    let metrics = exporter.metrics_of(&[&first.place, &second.place]);
    for serving in [&first, &second] {
        let label = mountpoint(&serving.place);
        assert_eq!(value(&metrics, "floe_mount_up", &[&label, "user=\"0\""]), Some(1.0), "{metrics}");
        assert!(value(&metrics, "floe_uptime_seconds", &[&label]).is_some_and(|seconds| seconds > 0.0));
    }
    let reads = |serving: &Serving| value(&metrics, "floe_requests_total", &[&mountpoint(&serving.place), "\"read\""]);
    assert!(reads(&first) > Some(0.0) && reads(&second) == Some(0.0), "{metrics}");
    // Prometheus rejects a metric that is declared twice, and a repeated sample.
    let (mut begun, mut samples) = (BTreeSet::new(), BTreeMap::new());
    for line in metrics.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(header) => assert!(begun.insert(header), "{line}"),
            None if !line.starts_with('#') => {
                let (labels, value) = line.rsplit_once(' ').expect("a value");
                assert!(samples.insert(labels, value).is_none(), "{line}");
            }
            None => {}
        }
    }
    // A mount whose process was killed stays in the tree; an unmounted one does not.
    let (killed, mut ended) = (first, second);
    killed.signal(Signal::KILL);
    ended.signal(Signal::TERM);
    ended.end();
    let metrics = exporter.metrics();
    assert_eq!(value(&metrics, "floe_mount_up", &[&mountpoint(&killed.place)]), Some(0.0), "{metrics}");
    assert!(!metrics.contains(&mountpoint(&ended.place)), "{metrics}");
}

#[test]
fn a_mount_that_hangs_is_down_and_the_others_are_not() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let exporter = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"]));
    let (stopped, working) = (Serving::new(&demo(), NOTHING), Serving::new(&demo(), NOTHING));
    // On a busy machine a mount that works may answer one scrape too late.
    let are_up = |expected: [f64; 2]| {
        let metrics = exporter.metrics();
        let up = |serving: &Serving| value(&metrics, "floe_mount_up", &[&mountpoint(&serving.place)]);
        if expected[0] == 0.0 {
            assert_eq!(up(&stopped), Some(0.0), "{metrics}");
        }
        [up(&stopped), up(&working)] == expected.map(Some)
    };
    stopped.stop();
    until("only the mount that works is up", || are_up([0.0, 1.0]));
    stopped.signal(Signal::CONT);
    until("both mounts are up", || are_up([1.0, 1.0]));
}

#[test]
fn root_may_include_the_mounts_of_users() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    if !Path::new("/usr/bin/fusermount3").exists() {
        skip::skipped("users mount with fusermount3, which is not installed");
        return;
    }
    // The files are where the user can reach them, and all users may open the device, as on most machines.
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    for (from, to) in [(Path::new(env!("CARGO_BIN_EXE_floe")), "floe"), (&demo(), "image")] {
        fs::copy(from, folder.path().join(to)).expect("a copy");
    }
    let made = run(Command::new("mknod").args(["-m", "666"]).arg(folder.path().join("fuse")).args(["c", "10", "229"]));
    assert!(made.status.success(), "{made:?}");
    let place = Place::new();
    chown(&place.path, Some(USER), None).expect("root may");
    let script = "mount --bind $1/fuse /dev/fuse && \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups $1/floe mount $1/image $2";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(folder.path()).arg(&place.path);
    command.env_remove("XDG_RUNTIME_DIR");
    let serving = Serving::start(command, place);
    let label = mountpoint(&serving.place);
    let own = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"]));
    assert!(!own.metrics().contains(&label));
    let all = Exporter::start(floe().args(["exporter", "--all-users", "--listen", "127.0.0.1:0"]));
    let metrics = all.metrics_of(&[&serving.place]);
    assert_eq!(value(&metrics, "floe_mount_up", &[&label, &format!("user=\"{USER}\"")]), Some(1.0), "{metrics}");
}

#[test]
fn other_requests_are_answered_with_what_to_do() {
    let exporter = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"]));
    for (request, status, words) in [
        ("GET /", "404 Not Found", "metrics are at /metrics"),
        ("POST /metrics", "405 Method Not Allowed", "use GET"),
        ("HEAD /metrics", "200 OK", ""),
    ] {
        let (answered, _, body) = exporter.answer(request);
        assert_eq!(answered, format!("HTTP/1.1 {status}"), "{request}");
        assert!(body.contains(words) && body.is_empty() == words.is_empty(), "{request}: {body}");
    }
    let second = run(floe().args(["exporter", "--listen", &exporter.address]));
    let expected =
        format!("floe: cannot serve metrics at {}: Address already in use (os error 98)\n", exporter.address);
    assert_eq!(told(&second), (Some(1), expected));
}

#[test]
fn the_dashboard_shows_metrics_that_exist() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let serving = Serving::new(&demo(), NOTHING);
    fs::read(serving.place.file("README.txt")).expect("data");
    let metrics = Exporter::start(floe().args(["exporter", "--listen", "127.0.0.1:0"])).metrics();
    let text = fs::read_to_string(workspace_root().join("packaging/grafana-dashboard.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() >= 8);
    for panel in panels {
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
            let named: Vec<_> = words.filter(|word| word.starts_with("floe_")).collect();
            assert!(!named.is_empty(), "{expression}");
            for name in named {
                // A local image has no server metrics.
                let exists = name.starts_with("floe_remote_") || metrics.contains(&format!("\n{name}{{"));
                assert!(exists, "{name} in {expression}");
            }
        }
    }
}

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
const NAMES: usize = 100_000;

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
