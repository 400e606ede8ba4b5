//! `floe lab` as a program: a killed run leaves nothing behind, and wrong usage gets a one-line message.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use floe_testkit::{
    peer,
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
