//! `floe exporter --all-users` with users who attack it: the metrics of all other mounts stay right.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            fs::{PermissionsExt, symlink},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::{
    copy_program,
    skip::{self, Need},
};
use rustix::{net, process::Signal};
use serde_json::{Value, json};

use crate::{
    exporter::{Exporter, mountpoint, value},
    support::program::{Serving, demo, floe, run, until, within},
};

/// The user who attacks. No other test is this user.
const ATTACKER: u32 = 54_321;
/// A user whose directory for sockets is a mount that hangs.
const HANGING: u32 = 54_322;

/// The variable with the directory of the answers that the attacker's program serves.
const DIRECTORY: &str = "FLOE_TEST_SOCKETS";

/// A process in its own mount namespace. It is killed in the end.
struct Attacker(Child);

impl Attacker {
    /// Starts a program there after a script, as the attacker, and waits until it writes a line. `$1` is `place`.
    fn start(script: &str, place: &Path) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", script, "sh"]).arg(place);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("it is piped");
        let attacker = Self(child);
        // The test harness also writes lines.
        let lines =
            within(move || BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line.contains("ready")));
        assert!(lines, "the attacker does not start");
        attacker
    }

    /// An exporter that sees the same mounts.
    fn exporter(&self) -> Exporter {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.0.id())).arg(env!("CARGO_BIN_EXE_floe"));
        Exporter::start(command.args(["exporter", "--all-users", "--listen", "127.0.0.1:0"]))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The report of a mount, as its program sends it.
fn report(serving: &Serving) -> Value {
    let output = run(floe().args(["status", "--json"]).arg(&serving.place.path));
    serde_json::from_slice(&output.stdout).expect("a report")
}

/// The device number in a report, in the form of socket names.
fn socket(report: &Value) -> String {
    format!("{}.sock", report["device"].as_str().expect("a number").replace(':', "-"))
}

/// A user's answers to a status query, by device number: one per file.
fn lies(truth: &Value, folder: &Path) {
    let lie = |device: &str, change: &dyn Fn(&mut Value)| {
        let mut report = truth.clone();
        change(&mut report);
        fs::write(folder.join(device), json!({ "status": report }).to_string()).expect("ours");
    };
    // It claims to be another user's mount, with the same directory and device number.
    lie("0-4001.sock", &|_| ());
    // It uses the number of another user's mount.
    lie(&socket(truth), &|_| ());
    // Labels with line ends, which could inject samples.
    lie("0-4002.sock", &|report| report["image"]["path"] = "x\"} 1\nfloe_mount_up{mountpoint=\"/forged\"} 1\n#".into());
    // Prometheus rejects repeated samples.
    lie("0-4003.sock", &|report| {
        let latency = report["latency"].as_array_mut().expect("stages");
        latency.push(latency[0].clone());
    });
    // A long label that is repeated by many samples.
    lie("0-4004.sock", &|report| {
        report["mountpoint"] = format!("/{}", "x".repeat(4000)).into();
        report["requests"] = (0..10_000).map(|kind| (kind.to_string(), json!(1))).collect();
    });
    lie("0-4005.sock", &|report| report["mountpoint"] = format!("/{}", "x".repeat(100_000)).into());
    lie("0-4006.sock", &|report| report["schema"] = 99.into());
    fs::write(folder.join("0-4007.sock"), "{}").expect("ours");
}

/// Serves the sockets of the attacker until it is killed. The tests below run it.
#[test]
#[ignore = "a program of another test"]
fn attacker() {
    let Some(directory) = env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let lies = env::current_exe().expect("this").with_file_name("lies");
    for entry in fs::read_dir(lies).expect("lies").flatten() {
        let answer = fs::read(entry.path()).expect("a lie");
        serve(&directory.join(entry.file_name()), move |mut stream| {
            let _ = stream.write_all(&answer).and_then(|()| stream.write_all(b"\n"));
        });
    }
    // It accepts connections and sends nothing.
    serve(&directory.join("0-4010.sock"), |mut stream| drop(stream.read_to_end(&mut Vec::new())));
    // It sends single bytes, each within the time limit.
    serve(&directory.join("0-4011.sock"), |mut stream| {
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
    });
    // It sends without end.
    serve(&directory.join("0-4012.sock"), |mut stream| while stream.write_all(&[b' '; 65_536]).is_ok() {});
    // Its connection queue is full.
    let full = directory.join("0-4013.sock");
    let listener = UnixListener::bind(&full).expect("a socket");
    net::listen(listener.as_fd(), 0).expect("a shorter queue");
    let _connection = UnixStream::connect(&full).expect("there is room for one");
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

fn serve(path: &Path, answer: impl Fn(UnixStream) + Send + Sync + Clone + 'static) {
    let listener = UnixListener::bind(path).expect("a socket");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || answer(stream));
        }
    });
}

/// The samples of a user.
fn of_user(metrics: &str, user_id: u32) -> BTreeSet<&str> {
    metrics.lines().filter(|line| line.contains(&format!(",user=\"{user_id}\""))).collect()
}

#[test]
fn users_can_only_report_on_their_own_mounts() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let serving = Serving::new(&demo(), ["-o", "front=fuse"]);
    let truth = report(&serving);
    let device = truth["device"].as_str().expect("a number").to_owned();
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
    copy_program(env::current_exe().expect("this"), folder.path().join("tests"));
    fs::create_dir(folder.path().join("lies")).expect("ours");
    lies(&truth, &folder.path().join("lies"));
    // A link to a socket of root, which a user cannot create.
    symlink(format!("/run/floe/{}", socket(&truth)), folder.path().join("link")).expect("ours");
    let script = format!(
        "mkdir -p /run/user && mount -t tmpfs users /run/user && mkdir -p /run/user/{ATTACKER}/floe
        cp -P $1/link /run/user/{ATTACKER}/floe/0-4014.sock
        chmod 700 /run/user/{ATTACKER}/floe && chown {ATTACKER} /run/user/{ATTACKER} /run/user/{ATTACKER}/floe
        export {DIRECTORY}=/run/user/{ATTACKER}/floe
        exec setpriv --reuid {ATTACKER} --regid {ATTACKER} --clear-groups $1/tests exporter_trust::attacker --exact --ignored --nocapture"
    );
    let attacker = Attacker::start(&script, folder.path());
    let exporter = attacker.exporter();
    // Concurrent requests wait for each other.
    let all: Vec<String> = thread::scope(|scope| {
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(|| exporter.metrics())).collect();
        asked.into_iter().map(|asked| asked.join().expect("metrics")).collect()
    });
    // On a busy machine an answer may come too late for one request, and the next requests leave out a user who is still asked.
    let is_complete = |metrics: &String| {
        of_user(metrics, ATTACKER).iter().filter(|line| line.starts_with("floe_mount_up{")).count() == 2
            && value(metrics, "floe_mount_up", &[&mountpoint(&serving.place)]) == Some(1.0)
    };
    let mut complete = all.into_iter().find(is_complete);
    until("both reports of the attacker come in time, and that of root", || {
        complete = complete.take().or_else(|| Some(exporter.metrics()).filter(is_complete));
        complete.is_some()
    });
    let metrics = &complete.expect("they came");
    let label = mountpoint(&serving.place);
    let right = [label.as_str(), &format!("device=\"{device}\""), "user=\"0\""];
    assert_eq!(value(metrics, "floe_mount_up", &right), Some(1.0), "{metrics}");
    assert!(value(metrics, "floe_uptime_seconds", &right).is_some(), "{metrics}");
    // Two of the lies are valid reports. They are attributed to the attacker, under device numbers that belong to no mounts.
    let told = of_user(metrics, ATTACKER);
    let up: Vec<_> = told.iter().filter(|line| line.starts_with("floe_mount_up{")).collect();
    assert_eq!(up.len(), 2, "{up:?}");
    for device in ["0:4001", "0:4002"] {
        assert!(up.iter().any(|line| line.contains(&format!("device=\"{device}\""))), "{up:?}");
    }
    assert!(!metrics.lines().any(|line| line.starts_with("floe_mount_up{mountpoint=\"/forged\"")), "{metrics}");
    let mut series = BTreeSet::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (labels, _) = line.rsplit_once(' ').expect("a value");
        assert!(labels.contains(",user=\"") && series.insert(labels), "{line}");
    }
}

#[test]
fn a_directory_that_hangs_delays_only_its_user() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let working = Serving::new(&demo(), ["-o", "front=fuse"]);
    // With allow_root, the kernel caches no attributes, so each access to the directory waits for the program.
    let stopped = Serving::new(&demo(), ["-o", "front=fuse,allow_root"]);
    let script = format!(
        "mkdir -p /run/user && mount -t tmpfs users /run/user && mkdir -p /run/user/{HANGING}/floe
        mount --bind $1 /run/user/{HANGING}/floe && echo ready && exec sleep 600"
    );
    let namespace = Attacker::start(&script, &stopped.place.path);
    let exporter = namespace.exporter();
    stopped.stop();
    for _ in 0..2 {
        let metrics = exporter.metrics_of(&[&working.place]);
        assert_eq!(value(&metrics, "floe_mount_up", &[&mountpoint(&stopped.place)]), Some(0.0), "{metrics}");
    }
    stopped.signal(Signal::CONT);
    // The directory is the root of the image, which the user does not own, so the user has no mounts.
    assert!(of_user(&exporter.metrics(), HANGING).is_empty());
}
