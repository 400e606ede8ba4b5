//! Launches of Python.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::skip::{self, Need};
use serde_json::Value;

use super::launched::{begin, between, demand, launch, profile_option, status, total, unmount, wait_for_state};
use crate::support::{
    front,
    program::{Place, Serving, floe, run, told, until},
};

/// The launch: it finds names, looks for missing ones, lists directories and maps a program.
const SCRIPT: &str = "import json, email.message, argparse, http.client; print(json.dumps(list(range(3))))";

const ANSWER: &str = "[0, 1, 2]\n";

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

        // The kernel may drop clean pages between the replay and the launch, so one good launch of ten is enough.
        let mut attempts_left = 10;
        let (mut replayed, report) = loop {
            let mut replayed = mount(profile_option(&profile));
            let (with, report) = python.replay(&replayed);
            eprintln!("{front}: without replay {without:?}, after it {with:?}; {report}");
            if 4 * total(&with) <= total(&without) {
                break (replayed, report);
            }
            unmount(&mut replayed);
            attempts_left -= 1;
            assert!(attempts_left > 0, "{front}: {with:?} of {without:?}; {report}");
        };
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
fn a_launch_during_its_replay_reads_the_right_bytes() {
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

/// An image with Python and the part of its library that a launch needs.
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

    /// Replays the launch, then launches. Returns the requests of the launch, and the report of the replay.
    fn replay(&self, replayed: &Serving) -> (Vec<(&'static str, u64)>, Value) {
        let before = launch(&replayed.place);
        assert_eq!((&before["state"], &before["found_names"]), (&"waiting".into(), &0.into()));
        begin(&replayed.place, &self.program);
        let report = wait_for_state(&replayed.place, "replayed");
        // Reads that the replay requested from the kernel may still be in progress.
        let mut after_replay = status(&replayed.place);
        until("the reads are done", || {
            let before = std::mem::replace(&mut after_replay, status(&replayed.place));
            before["requests"] == after_replay["requests"] && after_replay["work"]["outstanding"] == 0
        });
        self.launch(&replayed.place.path);
        (between(&after_replay, &status(&replayed.place)), report)
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

    /// The files of a mount that differ from those of the tree.
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
