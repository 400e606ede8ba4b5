//! Replays without privileges.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    process::Command,
};

use floe_testkit::{
    copy_program,
    skip::{self, Need},
};
use rustix::process::Signal;
use serde_json::Value;

use super::launched::{between, total};
use crate::support::{
    front::Scene,
    program::{Place, Serving, children_of, run, until},
};

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

    let learn = format!("profile=learn,cache-directory={}", cache.display());
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
        // The program runs in a namespace where this test does not see its mount.
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
