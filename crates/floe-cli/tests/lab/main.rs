//! `floe lab` as a program: a killed run leaves nothing behind, wrong usage and machines that lack something get a clear
//! message.
//!
//! Programs on such machines run in mount namespaces of their own, in which all users may open the device, as on most machines,
//! or something is missing.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use floe_testkit::{
    copy_program, peer,
    skip::{Need, ready},
};

const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

fn floe(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg("lab").args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn image(home: &Path) -> String {
    let tree = home.join("tree");
    fs::create_dir(&tree).expect("made");
    for index in 0..8_u32 {
        let text: String = (0..20_000).map(|line| format!("{index} {} {}\n", line % 97, line * index)).collect();
        fs::write(tree.join(format!("file{index}")), text).expect("written");
    }
    let image = home.join("tree.erofs");
    let mut mkfs = Command::new(peer("mkfs.erofs").expect("the test needs it"));
    assert!(
        mkfs.args(["--quiet", "-zlz4"]).args([&image, &tree]).stdout(Stdio::null()).status().expect("runs").success()
    );
    image.to_str().expect("text").to_owned()
}

/// Anything that a run of the process `pid` left behind, in words.
fn left_by(pid: u32) -> Vec<String> {
    let own = format!("floe-lab-{pid}-");
    let mut left = Vec::new();
    for line in fs::read_to_string("/proc/mounts").expect("mounts").lines().filter(|line| line.contains(&own)) {
        left.push(format!("mount {line}"));
    }
    for folder in ["/tmp", "/var/tmp", "/run/floe-lab", "/sys/kernel/tracing/instances", "/sys/fs/cgroup/memory"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&own) || name.starts_with(&format!("{pid}-")) {
                left.push(format!("{folder}/{name}"));
            }
        }
    }
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let environment = fs::read_to_string(entry.path().join("environ")).unwrap_or_default();
        if environment.contains("FLOE_LAB_TEST_MARK=") {
            left.push(format!("process {}", entry.path().display()));
        }
    }
    left
}

/// Whether autogroup is as before, or becomes so once another lab ends.
fn is_restored(before: Option<&str>) -> bool {
    // It was off before, by the user's choice or because of a running lab.
    let is_off = before.is_some_and(|before| before.trim() == "0");
    let is_as_before = || fs::read_to_string(AUTOGROUP).ok().as_deref() == before;
    (0..600).any(|_| {
        thread::sleep(Duration::from_millis(100));
        is_off || is_as_before()
    })
}

/// Whether a run has mounted anything in its own namespace.
fn is_mounted_by(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tables = tasks.filter_map(|task| fs::read_to_string(task.path().join("mounts")).ok());
    tables.any(|table| table.contains(&format!("floe-lab-{pid}-")))
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    if !ready(&[Need::Root, Need::Fuse, Need::KernelErofs, Need::Peer("mkfs.erofs")]) {
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let image = image(home.path());
    let before = fs::read_to_string(AUTOGROUP).ok();
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::INT] {
        let arguments =
            ["launch", "--image", &image, "--load", "cpu=2x20%", "--load", "memory=64M", "--launches", "1000"];
        let mut run = floe(&arguments).env("FLOE_LAB_TEST_MARK", "run").spawn().expect("runs");
        // Until it starts the launch. Another lab may still hold the machine.
        let is_launching = (0..1200).any(|_| {
            thread::sleep(Duration::from_millis(100));
            left_by(run.id()).iter().any(|left| left.contains("/proc/")) && is_mounted_by(run.id())
        });
        assert!(is_launching, "a run in progress is not seen: {:?}", left_by(run.id()));
        assert!(run.try_wait().expect("waited").is_none(), "the run is over already");
        let pid = rustix::process::Pid::from_raw(i32::try_from(run.id()).expect("small")).expect("a number");
        rustix::process::kill_process(pid, signal).expect("signalled");
        run.wait().expect("waited");
        let is_clean = (0..600).any(|_| {
            thread::sleep(Duration::from_millis(100));
            left_by(run.id()).is_empty()
        });
        assert!(
            is_clean && is_restored(before.as_deref()),
            "{signal:?} left {:?}, autogroup {:?}",
            left_by(run.id()),
            fs::read_to_string(AUTOGROUP)
        );
    }
}

#[test]
fn mistakes_get_one_line() {
    let home = tempfile::tempdir().expect("a directory");
    let no_image = home.path().join("none");
    fs::write(&no_image, "no image").expect("written");
    let no_image = no_image.to_str().expect("text");
    let rows: [(&[&str], i32, &str); 8] = [
        (&["launch", "--image", no_image], 1, "is neither EROFS nor SquashFS"),
        (&["launch", "--compare", "windows"], 2, "--image-b"),
        (&["launch", "--compare", "pool", "--variant", "floe"], 2, "cannot be used with"),
        (&["launch", "--image", no_image, "--load", "cpu=0x3%"], 2, "processes of 1 to 100 %"),
        (&["launch", "--image", no_image, "--temperature", "tepid"], 2, "use cold, warm or hot"),
        (
            &["launch", "--variant", "directory@/etc", "--traces", "/nothing/there"],
            1,
            "--traces: there is no directory /nothing/there",
        ),
        (&["sched"], 1, "nothing to watch"),
        (&["alloc", "--pages", "0"], 1, "pages must be 1 to"),
    ];
    for (arguments, code, expected) in rows {
        let output = floe(arguments).stderr(Stdio::piped()).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected) && said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[test]
fn a_second_run_waits_for_the_first() {
    if !ready(&[Need::Root]) {
        return;
    }
    let before = fs::read_to_string(AUTOGROUP).ok();
    let home = tempfile::tempdir().expect("a directory");
    let go = home.path().join("go");
    let arguments = [
        &["launch", "--variant", "directory@/etc", "--launches", "4", "--controls", "0", "--blocks", "1"][..],
        &["--", "sh", "-c", "until [ -e \"$0\" ]; do sleep 0.1; done", go.to_str().expect("text")],
    ]
    .concat();
    let (sender, lines) = mpsc::channel();
    let runs: Vec<_> = (0..3)
        .map(|_| {
            let mut run = floe(&arguments).stderr(Stdio::piped()).spawn().expect("runs");
            let (stderr, sender) = (run.stderr.take().expect("it is piped"), sender.clone());
            thread::spawn(move || {
                BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
            run
        })
        .collect();
    drop(sender);
    // The launches of the first run last until the others wait. A lab of somebody else may hold the machine before it.
    let (mut said, mut waiting_count) = (Vec::new(), 0);
    while waiting_count < 2 {
        let line =
            lines.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("no two runs wait: {said:?}"));
        waiting_count += usize::from(line.contains("waiting for another floe lab"));
        said.push(line);
    }
    fs::write(&go, "").expect("ours");
    for mut run in runs {
        assert!(run.wait().expect("waited").success(), "{said:?} {:?}", lines.try_iter().collect::<Vec<_>>());
    }
    assert!(is_restored(before.as_deref()), "autogroup is {:?}", fs::read_to_string(AUTOGROUP));
}

/// Plants links under the names that a program with this process number could choose, and becomes the program.
const PLANT: &str = r#"
victim=$1; shift
for name in floe floe-$$ floe-demo-$$ floe-lab-$$ floe-lab-$$-demo.erofs .floe.$$ tree.erofs; do
    ln -s "$victim" "$TMPDIR/$name"
done
exec "$@"
"#;

#[test]
fn nothing_is_written_through_planted_links() {
    let few = ["lab", "launch", "--launches", "2", "--controls", "1", "--blocks", "1"];
    for (arguments, needs) in [
        (&few[..], &[Need::Root, Need::Fuse][..]),
        (&["demo", "--no-mount"], &[]),
        (&["mkfs", "--quiet", "--fragments=all", "-zlz4", "IMAGE", "."], &[]),
    ] {
        if !ready(needs) {
            continue;
        }
        let home = tempfile::tempdir().expect("a folder");
        let (victim, temporaries) = (home.path().join("victim"), home.path().join("temporaries"));
        fs::write(&victim, "text").expect("written");
        fs::create_dir(&temporaries).expect("made");
        let image = home.path().join("image.erofs");
        let image = image.to_str().expect("text");
        let arguments = arguments.iter().map(|argument| if *argument == "IMAGE" { image } else { argument });
        let mut command = Command::new("sh");
        command.args(["-c", PLANT, "sh"]).arg(&victim).arg(env!("CARGO_BIN_EXE_floe")).args(arguments);
        command.env("TMPDIR", &temporaries).current_dir("/usr/include").stdin(Stdio::null());
        let output = command.output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
        assert!(fs::read(&victim).expect("it is there") == b"text", "{command:?} has written to another file");
        let left = fs::read_dir(&temporaries).expect("listed").flatten();
        let left: Vec<_> = left.filter(|entry| !entry.path().is_symlink()).map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

const AS_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const WITHOUT_MOUNTING: &str = "setpriv --bounding-set=-sys_admin";
const NO_TRACEFS: &str = "mount -t tmpfs none /sys/kernel/tracing; \
    if test -d /sys/kernel/debug/tracing; then mount -t tmpfs none /sys/kernel/debug; fi";
const NO_CONTROL_GROUPS: &str = "umount -R /sys/fs/cgroup; mount -t tmpfs -o ro none /sys/fs/cgroup";
const FEW: [&str; 6] = ["--launches", "2", "--controls", "1", "--blocks", "1"];

/// The situation, its preparation, the user, the arguments, and the expected result.
type Row<'text, Expected> = (&'text str, &'text str, &'text str, Vec<&'text str>, Expected);

/// A copy of the program that a user can reach, wherever the project is.
struct Reachable {
    folder: tempfile::TempDir,
}

impl Reachable {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
        let device = folder.path().join("fuse");
        let made = Command::new("mknod").args(["-m", "666"]).arg(&device).args(["c", "10", "229"]).status();
        assert!(made.expect("mknod").success());
        Self { folder }
    }

    /// Runs `floe lab` in its own namespace, after a preparation, with the user that `identity` selects.
    fn lab(&self, preparation: &str, identity: &str, arguments: &[&str]) -> Output {
        let folder = self.folder.path();
        let script = format!(
            "set -e; mount --bind {} /dev/fuse; {preparation}; exec {identity} \"$@\"",
            folder.join("fuse").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(folder.join("floe")).arg("lab").args(arguments);
        // Its temporary files would be left here.
        command.env("TMPDIR", folder.join("tmp")).env_remove("XDG_RUNTIME_DIR");
        let _ = fs::create_dir(folder.join("tmp"));
        fs::set_permissions(folder.join("tmp"), fs::Permissions::from_mode(0o777)).expect("ours");
        command.stdin(Stdio::null()).output().expect("unshare")
    }

    fn is_tidy(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("tmp")).expect("listed").flatten();
        let mut left: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        left.extend(
            mounts.lines().filter(|line| line.contains(self.folder.path().to_str().expect("text"))).map(Into::into),
        );
        left
    }
}

#[test]
fn missing_capabilities_are_reported_and_the_rest_is_measured() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("fusermount3")]) {
        return;
    }
    let place = Reachable::new();
    let launch = |more: &[&'static str]| [&["launch"], &FEW[..], more].concat();
    let rows: [Row<&[&str]>; 7] = [
        (
            "a user's launches",
            ":",
            AS_USER,
            launch(&[]),
            &["kernel counts for each thread", "needs root", "autogroup", "fastest on average", "blocks decompressed"],
        ),
        (
            "a user watches",
            ":",
            AS_USER,
            vec!["sched", "--thread", "floe*", "--seconds", "0.3"],
            &["kernel counts", "floe"],
        ),
        (
            "a user's pages",
            ":",
            AS_USER,
            vec!["alloc", "--rounds", "5"],
            &["without memory pressure only", "page pool"],
        ),
        (
            "no tracefs",
            NO_TRACEFS,
            WITHOUT_MOUNTING,
            launch(&["--variant", "directory@/etc", "--", "true"]),
            &["kernel counts for each thread", "cannot open tracefs", "fastest on average"],
        ),
        ("no control groups", NO_CONTROL_GROUPS, "", vec!["alloc", "--rounds", "5"], &["without memory pressure only"]),
        ("no FUSE", "mount --bind /dev/null /dev/fuse", "", launch(&["--variant", "kernel"]), &["fastest on average"]),
        ("all is there", ":", "", launch(&[]), &["kernel tracing", "trace records lost: 0", "kernel"]),
    ];
    for (what, preparation, identity, arguments, expected) in rows {
        let output = place.lab(preparation, identity, &arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{what}: {complaint}");
        for text in expected {
            assert!(said.contains(text), "{what}: no {text:?} in {said}");
        }
        assert_eq!(place.is_tidy(), [""; 0], "{what}");
    }
}

#[test]
fn impossible_measurements_are_refused_in_one_line() {
    if !ready(&[Need::Root, Need::Fuse, Need::Peer("fusermount3")]) {
        return;
    }
    let place = Reachable::new();
    let launch = |more: &[&'static str]| [&["launch"], &FEW[..], more].concat();
    let rows: [Row<&str>; 6] = [
        ("a failing command", ":", "", launch(&["--", "sh", "-c", "echo out of luck >&2; exit 3"]), "out of luck"),
        ("a user's memory load", ":", AS_USER, launch(&["--load", "memory=40M"]), "control group"),
        ("memory load without groups", NO_CONTROL_GROUPS, "", launch(&["--load", "memory=40M"]), "control group"),
        ("no FUSE", "mount --bind /dev/null /dev/fuse", "", launch(&["--variant", "floe"]), "floe"),
        ("a user's kernel mount", ":", AS_USER, launch(&["--variant", "kernel"]), "cannot mount"),
        ("tracing without tracefs", NO_TRACEFS, WITHOUT_MOUNTING, launch(&["--tier", "tracing"]), "tracing needs root"),
    ];
    for (what, preparation, identity, arguments, expected) in rows {
        let output = place.lab(preparation, identity, &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{what}: {said}");
        // Another lab may have changed the machine.
        let lines: Vec<_> = said.lines().filter(|line| !line.contains("waiting for another floe lab")).collect();
        assert!(said.contains(expected) && lines.len() == 1, "{what}: {said}");
        assert_eq!(place.is_tidy(), [""; 0], "{what}");
    }
}
