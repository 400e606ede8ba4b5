//! Recorded launches that are replayed: `floe mount -o profile=…`, `--learn`, and profiles in images.

mod support;

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::fs::{FileExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use floe_testkit::{
    check_rows, copy_program,
    skip::{self, Need},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{
    front::{self, Scene},
    program::{Place, Serving, floe, run, told, until},
};

/// The kinds of requests that a replay makes before the launch does.
const KINDS: [&str; 5] = ["lookup", "read", "readdir", "readdirplus", "readlink"];

/// The launch: it finds names, misses others, lists directories and maps a program.
const SCRIPT: &str = "import json, email.message, argparse, http.client; print(json.dumps(list(range(3))))";

const ANSWER: &str = "[0, 1, 2]\n";

/// The report of `floe status`.
fn status(place: &Place) -> Value {
    let output = run(floe().args(["status", "--json"]).arg(&place.path));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    report.get("mounts").map_or(report.clone(), |mounts| mounts[0].clone())
}

fn launch(place: &Place) -> Value {
    status(place)["launch"].clone()
}

fn is_state(place: &Place, state: &str) -> bool {
    launch(place)["state"] == state
}

fn wait_for_state(place: &Place, state: &str) -> Value {
    until(&format!("the launch is {state}: {}", launch(place)), || is_state(place, state));
    launch(place)
}

/// The requests that programs made, by kind: those of the replay are left out.
fn demand(report: &Value) -> Vec<(&'static str, u64)> {
    let count = |of: &Value, kind: &str| of[kind].as_u64().unwrap_or(0);
    KINDS.map(|kind| (kind, count(&report["requests"], kind) - count(&report["launch"]["requests"], kind))).to_vec()
}

fn total(demand: &[(&str, u64)]) -> u64 {
    demand.iter().map(|(_, count)| count).sum()
}

/// What is requested between two reports.
fn between(before: &Value, after: &Value) -> Vec<(&'static str, u64)> {
    demand(before).into_iter().zip(demand(after)).map(|((kind, before), (_, after))| (kind, after - before)).collect()
}

/// An image with a Python and the part of its library that a launch needs.
struct Python {
    folder: tempfile::TempDir,
    program: String,
}

impl Python {
    /// Copies this machine's Python; without one, the test is skipped.
    fn new() -> Option<Self> {
        let program = fs::canonicalize("/usr/bin/python3").ok();
        let name = program.as_ref().and_then(|program| program.file_name()?.to_str().map(str::to_owned));
        let library = name.as_ref().map(|name| Path::new("/usr/lib").join(name));
        let Some(((program, name), library)) = program.zip(name).zip(library.filter(|library| library.is_dir())) else {
            skip::skipped("there is no Python in /usr");
            return None;
        };
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let usr = folder.path().join("tree/usr");
        fs::create_dir_all(usr.join("bin")).expect("ours");
        fs::copy(program, usr.join("bin").join(&name)).expect("a copy");
        let target = usr.join("lib").join(&name);
        copy_files(&library, &target);
        for part in ["__pycache__", "collections", "email", "encodings", "http", "importlib", "json", "re", "urllib"] {
            copy_tree(&library.join(part), &target.join(part));
        }
        let python = Self { folder, program: format!("usr/bin/{name}") };
        python.mkfs("image", &["-zlz4"]);
        Some(python)
    }

    fn mkfs(&self, name: &str, options: &[&str]) {
        let mut command = floe();
        command.arg("mkfs").arg(self.path(name)).arg(self.path("tree")).arg("--quiet").args(options);
        assert_eq!(told(&run(&mut command)).0, Some(0));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, mount: &Path) -> Command {
        let mut command = Command::new(mount.join(&self.program));
        command.env_clear().env("PYTHONHOME", mount.join("usr")).args(["-s", "-B", "-c", SCRIPT]);
        command
    }

    fn launch(&self, mount: &Path) {
        let output = run(&mut self.command(mount));
        assert_eq!(String::from_utf8_lossy(&output.stdout), ANSWER, "{output:?}");
    }

    fn record(&self) -> PathBuf {
        let (place, profile) = (Place::new(), self.path("profile"));
        let launch = self.command(&place.path);
        let mut command = floe();
        command.arg("record").arg(&place.path).arg("--image").arg(self.path("image")).arg("--output").arg(&profile);
        command.arg("--").arg("env").arg(format!("PYTHONHOME={}", place.path.join("usr").display()));
        command.arg(launch.get_program()).args(launch.get_args());
        let output = run(&mut command);
        assert!(output.status.success(), "{output:?}");
        profile
    }

    /// The files of a mount that are not those of the tree.
    fn wrong(&self, mount: &Path) -> String {
        let output = run(Command::new("diff").arg("-r").arg(self.path("tree")).arg(mount));
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("ours");
    for entry in fs::read_dir(from).expect("it is there").map(|entry| entry.expect("listed")) {
        if entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    if from.is_dir() {
        copy_files(from, to);
        for entry in fs::read_dir(from).expect("it is there").map(|entry| entry.expect("listed")) {
            if entry.file_type().expect("a type").is_dir() {
                copy_tree(&entry.path(), &to.join(entry.file_name()));
            }
        }
    }
}

fn profile_option(profile: &Path) -> [OsString; 2] {
    ["-o".into(), format!("profile={}", profile.display()).into()]
}

/// Begins a launch by the first byte of the program.
fn begin(place: &Place, file: &str) {
    let file = fs::File::open(place.file(file)).expect("it is there");
    let mut first = [0];
    file.read_exact_at(&mut first, 0).expect("it is read");
}

/// Unmounts. A process that another test starts holds copies of all files that are open here until it runs its program.
fn detach(serving: &Serving) {
    let mut told_last = (None, String::new());
    let unmounted = || {
        told_last = told(&run(floe().arg("umount").arg(&serving.place.path)));
        assert!(told_last.0 == Some(0) || told_last.1.contains("in use"), "{told_last:?}");
        told_last.0 == Some(0)
    };
    until("the place is unmounted", unmounted);
}

fn unmount(serving: &mut Serving) {
    detach(serving);
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn a_replayed_launch_makes_a_fraction_of_the_requests() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let Some(python) = Python::new() else { return };
    let profile = python.record();
    let text = fs::read_to_string(&profile).expect("text");
    for kind in ["\nname /usr/", "\nmissing /usr/", "\nlist /usr/", "\n0 "] {
        assert!(text.contains(kind), "{kind:?} is not in the profile");
    }
    let mut fronts = vec!["front=fuse"];
    if front::ready() {
        fronts.push("front=kernel");
    }
    for front in fronts {
        let mount = |more: [OsString; 2]| {
            Serving::new(&python.path("image"), ["-o".into(), front.into()].into_iter().chain(more))
        };
        let mut plain = mount(["-o".into(), "profile=off".into()]);
        python.launch(&plain.place.path);
        let without = demand(&status(&plain.place));
        assert_eq!(launch(&plain.place)["state"], "off");
        unmount(&mut plain);

        let mut replayed = mount(profile_option(&profile));
        let before = launch(&replayed.place);
        assert_eq!((&before["state"], &before["found_names"]), (&"waiting".into(), &0.into()));
        begin(&replayed.place, &python.program);
        let report = wait_for_state(&replayed.place, "replayed");
        // What the kernel was asked to read is under way.
        let mut after_replay = status(&replayed.place);
        until("the reads are done", || {
            let before = std::mem::replace(&mut after_replay, status(&replayed.place));
            before["requests"] == after_replay["requests"] && after_replay["work"]["outstanding"] == 0
        });
        python.launch(&replayed.place.path);
        let with = between(&after_replay, &status(&replayed.place));
        eprintln!("{front}: without replay {without:?}, after it {with:?}; {report}");
        assert!(4 * total(&with) <= total(&without), "{front}: {with:?} of {without:?}; {report}");
        assert_eq!(report["failed_names"], 0, "{report}");
        assert!(
            report["missing_names"].as_u64() > Some(0) && report["range_bytes"].as_u64() > Some(1 << 20),
            "{report}"
        );
        assert_eq!(python.wrong(&replayed.place.path), "");
        let text = run(floe().arg("status").arg(&replayed.place.path));
        assert!(String::from_utf8_lossy(&text.stdout).contains("launch       replayed\n"), "{text:?}");
        unmount(&mut replayed);
    }
}

#[test]
fn a_launch_that_goes_on_while_it_is_replayed_reads_what_is_there() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let Some(python) = Python::new() else { return };
    let profile = python.record();
    python.mkfs("profiled", &["-zlz4", "--profile", profile.to_str().expect("text")]);
    for (image, options) in [("image", profile_option(&profile)), ("profiled", ["-o".into(), "profile=image".into()])] {
        let mut serving = Serving::new(&python.path(image), options);
        python.launch(&serving.place.path);
        let report = wait_for_state(&serving.place, "replayed");
        assert!(report["found_names"].as_u64() > Some(50), "{image}: {report}");
        assert_eq!(report["skipped_steps"], 0, "{image}: {report}");
        assert_eq!(python.wrong(&serving.place.path), "");
        unmount(&mut serving);
    }
}

#[test]
fn the_first_launch_is_learned_and_the_next_ones_replay_it() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(40, 20_000);
    let mut fronts = vec!["front=fuse"];
    if front::ready() {
        fronts.push("front=kernel");
    }
    for front in fronts {
        let cache = tempfile::tempdir().expect("a directory");
        let options = format!("learn,cache-directory={},{front}", cache.path().display());
        let mount = || Serving::new(&scene.image, ["-o", &options]);
        let read = |serving: &Serving, number: usize| {
            let name = format!("{}/{number}", number % 10);
            assert_eq!(fs::read(serving.place.file(&name)).expect("read"), scene.contents[Path::new(&name)]);
        };
        let files = || -> Vec<PathBuf> {
            let images = fs::read_dir(cache.path().join("launches")).into_iter().flatten().flatten();
            let files = images.flat_map(|image| fs::read_dir(image.path()).into_iter().flatten().flatten());
            files.map(|file| file.path()).collect()
        };
        let profile = || {
            let files = files();
            assert!(files.len() == 1 && files[0].ends_with("profile"), "{files:?}");
            files[0].clone()
        };

        let mut idle = mount();
        assert_eq!(launch(&idle.place)["state"], "learning", "{front}");
        unmount(&mut idle);
        assert_eq!(files(), Vec::<PathBuf>::new(), "nothing was read");

        let mut first = mount();
        [31, 7, 22].iter().for_each(|number| read(&first, *number));
        let _ = fs::metadata(first.place.file("no such name"));
        unmount(&mut first);
        let learned = fs::read_to_string(profile()).expect("written");
        let ranges = ["0 20000 /1/31\n", "0 20000 /7/7\n", "0 20000 /2/22\n"].map(|line| learned.find(line));
        assert!(ranges.iter().all(Option::is_some) && ranges.is_sorted(), "{front}: {learned}");
        assert_eq!(learned.contains("missing /no such name\n"), front == "front=fuse", "{learned}");

        let mut second = mount();
        read(&second, 31);
        let report = wait_for_state(&second.place, "replayed");
        assert_eq!(report["source"], profile().to_str().expect("text"), "{report}");
        assert_eq!(report["ranges"], 3, "{report}");
        [7, 22].iter().for_each(|number| read(&second, *number));
        assert_eq!(scene.wrong(&second.place.path), Vec::<String>::new());
        unmount(&mut second);

        // A profile that something has damaged is learned again.
        fs::write(profile(), "# floe profile 2\nnonsense").expect("ours");
        let mut third = mount();
        read(&third, 5);
        detach(&third);
        let (status, errors) = third.end();
        assert_eq!(status.code(), Some(0));
        assert!(errors.contains("line 2") && errors.lines().count() == 1, "{errors}");
        assert!(fs::read_to_string(profile()).expect("text").contains("0 20000 /5/5\n"));
    }
}

/// The processes with this name whose parent is this one.
fn children_of(parent: u32, name: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_wanted = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        text.contains(&format!("Name:\t{name}\n")) && text.contains(&format!("PPid:\t{parent}\n"))
    };
    pids.filter(is_wanted).collect()
}

/// The process that mounts for the one that serves a place.
fn keeper_of(place: &Place) -> Pid {
    let server = status(place)["process"].as_u64().expect("a number") as u32;
    let pids = children_of(server, "floe-keeper");
    assert_eq!(pids.len(), 1, "{pids:?}");
    Pid::from_raw(pids[0].cast_signed()).expect("a process")
}

#[test]
fn a_launch_that_leaves_the_profile_ends_the_replay() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(100, 5000);
    let profile = scene.folder.path().join("profile");
    let lines: String = (0..50).map(|number| format!("0 5000 /{}/{number}\n", number % 10)).collect();
    fs::write(&profile, format!("# floe profile 1\n{lines}")).expect("ours");
    for (outside, state) in [(50, "left"), (10, "replayed")] {
        let mut serving = Serving::new(&scene.image, profile_option(&profile));
        // While the keeper is stopped, names are not looked up ahead, so the launch is the faster one.
        let keeper = keeper_of(&serving.place);
        kill_process(keeper, Signal::STOP).expect("it runs");
        fs::read(serving.place.file("0/0")).expect("read");
        until("the replay begins", || is_state(&serving.place, "replaying"));
        for number in 50..50 + outside {
            fs::read(serving.place.file(&format!("{}/{number}", number % 10))).expect("read");
        }
        kill_process(keeper, Signal::CONT).expect("it runs");
        let report = wait_for_state(&serving.place, state);
        assert_eq!(report["outside_files"], outside, "{report}");
        assert!(state == "replayed" || report["ranges"].as_u64() < Some(50), "{report}");
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        unmount(&mut serving);
    }
}

#[test]
fn a_mount_ends_in_the_middle_of_a_replay() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(100, 5000);
    let profile = scene.folder.path().join("profile");
    let lines: String = (0..100).map(|number| format!("0 5000 /{}/{number}\n", number % 10)).collect();
    fs::write(&profile, format!("# floe profile 1\n{lines}")).expect("ours");
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let mut serving = Serving::new(&scene.image, profile_option(&profile));
        let keeper = keeper_of(&serving.place);
        kill_process(keeper, Signal::STOP).expect("it runs");
        fs::read(serving.place.file("0/0")).expect("read");
        until("the replay begins", || is_state(&serving.place, "replaying"));
        match signal {
            None => detach(&serving),
            Some(signal) => serving.signal(signal),
        }
        kill_process(keeper, Signal::CONT).expect("it runs");
        let (status, errors) = serving.end();
        match signal {
            Some(Signal::KILL) => assert_eq!(status.code(), None, "{errors}"),
            _ => assert_eq!((status.code(), errors.as_str()), (Some(0), "")),
        }
        until("the keeper ends", || !Path::new(&format!("/proc/{}", keeper.as_raw_nonzero())).exists());
    }
}

#[test]
fn hostile_profiles_are_one_error_or_do_nothing() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(20, 5000);
    let profile = scene.folder.path().join("profile");
    // 100 million entries and more, as far as the length tells.
    let endless = scene.folder.path().join("endless");
    fs::write(&endless, "# floe profile 1\n").expect("ours");
    fs::File::options().write(true).open(&endless).expect("ours").set_len(1 << 30).expect("sparse");
    let many = format!("# floe profile 1\n{}", "0 1 /a\n".repeat(300_000));
    let refused: [(&str, &str); 9] = [
        ("", "the first line"),
        ("\x7fELF garbage", "the first line"),
        ("# floe profile 9\n", "the first line"),
        ("# floe profile 1\n0 50", "line 2"),
        ("# floe profile 1\nname /0/0\n", "line 2"),
        ("# floe profile 2\nname /0/../../etc/passwd\n", "line 2"),
        ("# floe profile 2\nname //0\n", "line 2"),
        ("# floe profile 1\n18446744073709551615 2 /0/0\n", "line 2"),
        (&many, "more than 262144 steps"),
    ];
    check_rows(
        &refused,
        |row| row.0.chars().take(60).collect(),
        |(text, words)| {
            let profile = tempfile::Builder::new().prefix("profile").tempfile().expect("a file");
            fs::write(profile.path(), text).expect("ours");
            refusal(&scene.image, profile.path(), words)
        },
    );
    assert_eq!(refusal(&scene.image, &endless, "at most 16 MiB"), Vec::<String>::new());
    assert_eq!(refusal(&scene.image, &scene.folder.path().join("none"), "No such file"), Vec::<String>::new());

    let long_name = "a".repeat(300);
    let long_path = "/a".repeat(4000);
    let harmless = [
        "0 18446744073709551614 /0/0".to_owned(),
        "9223372036854775807 1 /0/0".to_owned(),
        "0 0 /0/0".to_owned(),
        "0 5000 /0".to_owned(),
        "0 5000 /".to_owned(),
        "list /0/0".to_owned(),
        "link /0/0".to_owned(),
        format!("name /{long_name}"),
        format!("missing {long_path}"),
        "missing /0/0".to_owned(),
        "name /0/0/0".to_owned(),
        "0 5000 /not there".to_owned(),
    ];
    let repeated: String = (0..1000).flat_map(|_| harmless.iter().flat_map(|line| [line.as_str(), "\n"])).collect();
    fs::write(&profile, format!("# floe profile 2\n{repeated}0 5000 /1/1\n")).expect("ours");
    let mut serving = Serving::new(&scene.image, profile_option(&profile));
    fs::read(serving.place.file("0/0")).expect("read");
    let report = wait_for_state(&serving.place, "replayed");
    assert!(report["skipped_steps"].as_u64() >= Some(1000), "{report}");
    assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
    unmount(&mut serving);

    // A broken profile in an image is ignored.
    fs::write(&profile, "# floe profile 1\n0 5000 /0/0\n").expect("ours");
    let (profiled, tree) = (scene.folder.path().join("profiled"), scene.folder.path().join("tree"));
    let made = run(floe().arg("mkfs").arg(&profiled).arg(&tree).arg("--profile").arg(&profile));
    assert!(made.status.success(), "{made:?}");
    let bytes = fs::read(&profiled).expect("read");
    let at = bytes.windows(8).rposition(|bytes| bytes == b"FloeProf").expect("it has one");
    for place in [at, at + 8, at + 12, at + 20] {
        let mut broken = bytes.clone();
        broken[place] ^= 0x5a;
        fs::write(&profiled, broken).expect("ours");
        let mut serving = Serving::new(&profiled, ["-o", "profile=image"]);
        let report = wait_for_state(&serving.place, "none");
        assert_eq!(report["reason"], "the image has no profile", "byte {place}");
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        unmount(&mut serving);
    }
}

/// What is wrong with how a mount with this profile is refused.
fn refusal(image: &Path, profile: &Path, words: &str) -> Vec<String> {
    let place = Place::new();
    let output = run(floe().arg("mount").arg(image).arg(&place.path).args(profile_option(profile)));
    let (code, errors) = told(&output);
    let is_one_line = errors.lines().count() == 1 && errors.contains(words);
    if code == Some(1) && is_one_line && !place.is_mounted() { Vec::new() } else { vec![format!("{code:?}: {errors}")] }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = Place::new();
    for (options, words) in [("learn,profile=off", "omit profile="), ("profile=", "name a file")] {
        let output = run(floe().arg("mount").arg(support::program::demo()).arg(&place.path).args(["-o", options]));
        let (code, errors) = told(&output);
        assert!(code == Some(2) && errors.contains(words), "{options}: {code:?} {errors}");
    }
}

const USER: u32 = 65_534;

#[test]
fn a_user_without_privileges_replays_and_learns() {
    let programs = ["setpriv", "unshare", "nsenter", "fusermount3"].map(Need::Peer);
    if !skip::ready(&[Need::Root, Need::Fuse]) || !skip::ready(&programs) {
        return;
    }
    let scene = Scene::many(60, 20_000);
    let folder = scene.folder.path();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("ours");
    let program = folder.join("floe");
    copy_program(env!("CARGO_BIN_EXE_floe"), &program);
    let device = folder.join("fuse");
    assert!(run(Command::new("mknod").args(["-m", "666"]).arg(&device).args(["c", "10", "229"])).status.success());
    let cache = folder.join("cache");
    fs::create_dir(&cache).expect("ours");
    chown(&cache, Some(USER), Some(USER)).expect("ours");
    let profile = folder.join("profile");
    let lines: String = (0..50).map(|number| format!("0 20000 /{}/{number}\n", number % 10)).collect();
    fs::write(&profile, format!("# floe profile 2\nmissing /none\n{lines}")).expect("ours");
    const AS_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

    let learn = format!("learn,cache-directory={}", cache.display());
    let replay = format!("profile={}", profile.display());
    for (options, state) in [("profile=off", "off"), (&replay, "replayed"), (&learn, "learning"), (&learn, "replayed")]
    {
        let place = Place::new();
        chown(&place.path, Some(USER), Some(USER)).expect("ours");
        let script = format!("set -e; mount --bind {} /dev/fuse; exec {AS_USER} \"$@\"", device.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(&program);
        command.args(["mount", "-o", options]).arg(&scene.image).arg(&place.path).env_remove("XDG_RUNTIME_DIR");
        let mut serving = Serving::start(command, place);
        // The program runs where this test does not see its mount.
        let path = serving.place.path.to_str().expect("text").to_owned();
        let has_mounted =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|table| table.contains(&path));
        let servers = children_of(std::process::id(), "floe");
        let server = servers.into_iter().find(has_mounted).expect("it runs");
        let beside = |arguments: &[&str]| {
            let mut command = Command::new("nsenter");
            command.args(["-t", &server.to_string(), "-m"]).args(AS_USER.split(' ')).env_remove("XDG_RUNTIME_DIR");
            run(command.args(arguments))
        };
        let report = || -> Value {
            let path = serving.place.path.to_str().expect("text");
            let output = beside(&[program.to_str().expect("text"), "status", "--json", path]);
            let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            report.get("mounts").map_or(report.clone(), |mounts| mounts[0].clone())
        };
        let read = |numbers: std::ops::Range<usize>| {
            let names = numbers.map(|number| format!("{}/{number}", number % 10));
            let paths: Vec<String> = names.map(|name| serving.place.file(&name).display().to_string()).collect();
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let output = beside(&[&["cat"], &paths[..]].concat());
            assert_eq!(output.stdout.len(), paths.len() * 20_000, "{output:?}");
        };
        read(0..1);
        until(state, || report()["launch"]["state"] == state);
        let before = report();
        read(0..50);
        let after = report();
        let with = between(&before, &after);
        eprintln!("{options}: {with:?}; {}", after["launch"]);
        if state == "replayed" {
            assert!(total(&with) <= 100 / 4, "{with:?}; {}", after["launch"]);
            assert_eq!(after["launch"]["failed_names"], 0);
        } else {
            assert!(total(&with) >= 49, "{with:?}");
        }
        serving.signal(Signal::TERM);
        let (status, errors) = serving.end();
        assert_eq!((status.code(), errors.as_str()), (Some(0), ""), "{options}");
    }
}

/// Serves a file over HTTP, by ranges. Returns its URL.
fn serve_over_http(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let bytes: &'static [u8] = fs::read(file).expect("it is there").leak();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                let mut stream = stream;
                loop {
                    let (mut range, mut method) = (None, String::new());
                    loop {
                        let mut line = String::new();
                        if !matches!(reader.read_line(&mut line), Ok(1..)) {
                            return;
                        }
                        let line = line.trim_end().to_ascii_lowercase();
                        match line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
                            _ if line.is_empty() => break,
                            Some((from, to)) => range = from.parse::<usize>().ok().zip(to.parse::<usize>().ok()),
                            None if method.is_empty() => method = line,
                            None => {}
                        }
                    }
                    let (from, to) = range.unwrap_or((0, usize::MAX));
                    let to = to.min(bytes.len() - 1);
                    let (status, part) = match range {
                        Some(_) => ("206 Partial Content", &bytes[from..=to]),
                        None => ("200 OK", bytes),
                    };
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{to}/{}\r\nETag: \"one\"\r\n\
                         Accept-Ranges: bytes\r\n\r\n",
                        part.len(),
                        bytes.len()
                    );
                    let body = if method.starts_with("head") { &[][..] } else { part };
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("http://{address}/image.erofs")
}

#[test]
fn a_remote_image_is_learned_and_replayed() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(40, 20_000);
    let url = serve_over_http(scene.image.clone());
    let cache = tempfile::tempdir().expect("a directory");
    let options = format!("learn,cache-directory={}", cache.path().display());
    for state in ["learning", "replayed"] {
        let mut serving = Serving::new(Path::new(&url), ["-o", &options]);
        fs::read(serving.place.file("1/31")).expect("read");
        wait_for_state(&serving.place, state);
        let before = status(&serving.place);
        for number in 0..30 {
            fs::read(serving.place.file(&format!("{}/{number}", number % 10))).expect("read");
        }
        let with = between(&before, &status(&serving.place));
        match state {
            "learning" => assert!(total(&with) >= 60, "{with:?}"),
            _ => assert!(total(&with) <= 60 / 4, "{with:?}"),
        }
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        unmount(&mut serving);
    }
}
