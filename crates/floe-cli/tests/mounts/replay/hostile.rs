//! Profiles with garbage or absurd contents, and replays without privileges.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
};

use floe_testkit::{
    check_rows, copy_program,
    skip::{self, Need},
};
use rustix::process::Signal;
use serde_json::Value;

use super::launched::{between, profile_option, total, unmount, wait_for_state};
use crate::support::{
    self,
    front::Scene,
    program::{Place, Serving, children_of, floe, run, told, until},
};

#[test]
fn hostile_profiles_are_one_error_or_do_nothing() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(20, 5000);
    let profile = scene.folder.path().join("profile");
    // The length suggests 100 million entries and more.
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

/// The faults in the refusal of a mount with this profile.
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
    for (options, words) in [("profile=learn,subdir=guide", "omit subdir="), ("profile=", "name a file")] {
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
