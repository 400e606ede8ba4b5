//! `floe record` and `floe mkfs --profile`: the files of a launch come first in the image, and are listed in it. The output
//! files of `floe record` and `floe lab`.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use floe::{ByteRange, Extent, ExtentData, FormatImage, Image, Nid, OpenOptions};
use floe_testkit::{
    copy_program, run_bounded,
    skip::{self, Need},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::program::{said, until};

fn floe(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("floe runs")
}

fn open(folder: &Path, name: &str) -> Image {
    Image::open(folder.join(name), &OpenOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn launch_list(image: &Image) -> Vec<(Nid, ByteRange)> {
    let FormatImage::Erofs(erofs) = image.format_image() else { panic!("it is EROFS") };
    erofs.launch_list().expect("it can be read")
}

/// The offset of a file's data in the image.
fn first_byte(image: &Image, path: &str) -> u64 {
    let nid = image.resolve(path).expect("it is there");
    let mut extents: Vec<Extent> = Vec::new();
    image.file_system().map(nid, ByteRange::new(0, 1), &mut extents).expect("mapped");
    match extents.first().expect("there is one").data {
        ExtentData::Plain { offset, .. } => offset,
        ExtentData::Encoded { block, .. } => block.offset,
        ExtentData::Hole => panic!("{path} is a hole"),
    }
}

/// A folder with a tree of numbered files in `source`, of 20 KiB each.
fn scene() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source/d");
    fs::create_dir_all(&source).expect("made");
    for number in 0..40u64 {
        let line = |at: u64| format!("{} {}\n", at, at.wrapping_mul(0x9E37_79B9_7F4A_7C15 + number));
        let text: String = (0..).map(line).take(1000).collect();
        fs::write(source.join(format!("{number:02}")), &text[..20 << 10]).expect("written");
    }
    folder
}

/// The files that a launch reads, not in the order of their names.
const READ: [&str; 4] = ["/d/31", "/d/07", "/d/22", "/d/08"];

#[test]
fn recorded_files_come_first() {
    let scene = scene();
    let folder = scene.path();
    let lines: String = READ.iter().map(|path| format!("4096 8192 {path}\n")).collect();
    fs::write(folder.join("profile"), format!("# floe profile 1\n{lines}0 1 /d/missing\n")).expect("written");
    for more in [&[][..], &["-z", "lz4"], &["-z", "zstd", "--dedupe"], &["--chunk", "4k"]] {
        let build = |image, profile: &[&str]| {
            let output = floe(folder, &[&["mkfs", image, "source", "--verify=full"], profile, more].concat());
            assert!(output.status.success(), "{more:?}: {}", said(&output));
            said(&output)
        };
        build("plain", &[]);
        let told = build("profiled", &["--profile", "profile"]);
        assert!(told.contains("1 ranges of the profile belong to files"), "{told}");
        let (plain, profiled) = (open(folder, "plain"), open(folder, "profiled"));
        assert_eq!(launch_list(&plain), []);
        let nid = |path: &&str| profiled.resolve(path).expect("it is there");
        let expected: Vec<_> = READ.iter().map(|path| (nid(path), ByteRange::new(4096, 8192))).collect();
        assert_eq!(launch_list(&profiled), expected, "{more:?}");
        let places = READ.map(|path| first_byte(&profiled, path));
        assert!(places.is_sorted(), "{more:?}: {places:?}");
        let rest = (0..40).map(|number| format!("/d/{number:02}")).filter(|path| !READ.contains(&path.as_str()));
        assert!(rest.map(|path| first_byte(&profiled, &path)).all(|place| place > places[3]), "{more:?}");
        profiled.read_ahead_of_launch();
        // Bytes that no reader uses may differ.
        let bytes = fs::read(folder.join("profiled")).expect("read");
        let start = bytes.len() - 4096;
        for place in [0, 8, 12, 16, 30, 47] {
            let mut bytes = bytes.clone();
            bytes[start + place] ^= 0xff;
            fs::write(folder.join("changed"), bytes).expect("written");
            assert_eq!(launch_list(&open(folder, "changed")), [], "{more:?}: byte {place}");
        }
        fs::write(folder.join("changed"), &bytes[..start + 40]).expect("written");
        assert_eq!(launch_list(&open(folder, "changed")), [], "{more:?}: cut off");
    }
}

#[test]
fn a_launch_is_recorded_as_it_reads() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    fs::create_dir(folder.join("mount")).expect("made");
    let paths = READ.map(|path| format!("mount{path}"));
    let run = |arguments: &[&str]| {
        let output = floe(folder, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        output
    };
    run(&["mkfs", "image", "source", "-z", "lz4", "-C", "16k"]);
    let cat: Vec<&str> = ["cat"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let record = |more: &[&str]| run(&[&["record", "mount", "--output", "profile"], more, &["--"], &cat].concat());
    let check = |what: &str, output: &Output| {
        assert_eq!(output.stdout.len(), READ.len() * (20 << 10), "{what}");
        let profile = fs::read_to_string(folder.join("profile")).expect("written");
        let found: Vec<&str> = profile.lines().skip(1).collect();
        assert_eq!(found, READ.map(|path| format!("0 20480 {path}")), "{what}");
    };
    check("with nothing mounted", &record(&["--image", "image"]));
    run(&["mount", "image", "mount", "--daemon"]);
    // Reads of bytes in the page cache are recorded too.
    fs::read(folder.join("mount/d/07")).expect("read");
    check("over a mount of Floe", &record(&[]));
    assert!(folder.join("mount/d/07").exists(), "the mount from before is still there");
    run(&["umount", "mount"]);
    let ours = Command::new("mount").args(["-t", "erofs", "-o", "ro", "image", "mount"]).current_dir(folder).status();
    assert!(ours.expect("mount runs").success());
    // The kernel shows the file only if the source is a device.
    check("over a mount of the kernel", &record(&["--image", "image"]));
    assert!(Command::new("umount").arg(folder.join("mount")).status().expect("umount runs").success());

    // The image with the profile can be mounted by the kernel and by Floe.
    run(&["mkfs", "image", "source", "-z", "lz4", "-C", "16k", "--profile", "profile"]);
    for mount in [&["mount", "-t", "erofs", "-o", "ro"][..], &[env!("CARGO_BIN_EXE_floe"), "mount", "--daemon"]] {
        let mut command = Command::new(mount[0]);
        command.args(&mount[1..]).args(["image", "mount"]).current_dir(folder).stdin(Stdio::null());
        assert!(command.status().expect("it runs").success(), "{mount:?}");
        let same = Command::new("diff").args(["-r", "source", "mount"]).current_dir(folder).status();
        assert!(Command::new("umount").arg(folder.join("mount")).status().expect("umount runs").success());
        assert!(same.expect("diff runs").success(), "{mount:?}");
    }
}

/// The lines of the mount table for `mount` in a folder, the oldest first.
fn mount_lines(folder: &Path) -> Vec<String> {
    let directory = folder.join("mount").canonicalize().expect("it is there");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    let is_ours = |line: &&str| line.split(' ').nth(4).is_some_and(|path| Path::new(path) == directory);
    table.lines().filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn signals_end_the_command_and_its_reads_are_recorded() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    fs::create_dir(folder.join("mount")).expect("made");
    for arguments in [&["mkfs", "image", "source"][..], &["mount", "image", "mount", "--daemon"]] {
        assert!(floe(folder, arguments).status.success(), "{arguments:?}");
    }
    let mounted = mount_lines(folder);
    let killed = "the command does not end; killing it";
    for (signals, trap, code, words) in [
        (&[Signal::INT][..], "", 130, ""),
        (&[Signal::TERM], "", 143, ""),
        (&[Signal::HUP], "", 129, ""),
        (&[Signal::TERM], "trap 'exit 3' TERM", 3, ""),
        (&[Signal::INT], "trap '' INT", 137, killed),
        (&[Signal::INT, Signal::INT], "trap '' INT", 137, killed),
    ] {
        if !skip::ready(&[Need::Signal(signals[0])]) {
            continue;
        }
        let case = format!("{signals:?}: {trap}");
        let server = if trap.is_empty() { "exec sleep 600" } else { "while :; do sleep 0.1; done" };
        let _ = (fs::remove_file(folder.join("profile")), fs::remove_file(folder.join("ready")));
        let script = format!("{trap}\ncat mount/d/31 > ready.new && mv ready.new ready; {server}");
        let recorder = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["record", "mount", "--output", "profile", "--", "sh", "-c", &script])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        until("the command is ready", || folder.join("ready").exists());
        for signal in signals {
            kill_process(Pid::from_child(&recorder), *signal).expect("it runs");
            thread::sleep(Duration::from_millis(100));
        }
        let output = recorder.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(code), "{case}: {}", said(&output));
        assert!(said(&output).contains(words), "{case}: {}", said(&output));
        let profile = fs::read_to_string(folder.join("profile")).expect("written");
        assert!(profile.contains("0 20480 /d/31"), "{case}: {profile}");
        assert_eq!(mount_lines(folder), mounted, "{case}");
        assert!(folder.join("mount/d/07").exists(), "{case}: what was mounted before is seen again");
    }
    assert!(floe(folder, &["umount", "mount"]).status.success());
}

#[test]
fn the_flags_of_the_covered_mount_are_kept() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    fs::create_dir(folder.join("mount")).expect("made");
    assert!(floe(folder, &["mkfs", "image", "source"]).status.success());
    let words = |line: &str| -> Vec<String> {
        const FLAGS: [&str; 6] = ["nosuid", "nodev", "noexec", "nosymfollow", "allow_other", "default_permissions"];
        let fields = line.split([' ', ',']).filter(|word| FLAGS.contains(word));
        fields.map(str::to_owned).collect()
    };
    for (options, more, is_kernel) in [
        ("", "", false),
        ("suid,dev", "", false),
        ("noexec,nosymfollow", "", false),
        ("access=private", "", false),
        ("access=private,noexec", "allow_other,exec", false),
        ("nosuid,nodev,noexec", "", true),
        ("ro", "", true),
    ] {
        let mut mount = if is_kernel { Command::new("mount") } else { Command::new(env!("CARGO_BIN_EXE_floe")) };
        match is_kernel {
            true => mount.args(["-t", "erofs", "-o", &format!("ro,{options}"), "image", "mount"]),
            false => mount.args(["mount", "image", "mount", "--daemon", "-o", options]),
        };
        assert!(mount.current_dir(folder).stdout(Stdio::null()).status().expect("it runs").success(), "{options}");
        let covered = mount_lines(folder);
        let arguments = ["record", "mount", "-o", more, "--image", "image", "--", "cat", "/proc/self/mountinfo"];
        let output = floe(folder, &arguments);
        assert!(output.status.success(), "{}", said(&output));
        let table = String::from_utf8(output.stdout).expect("text");
        let at = folder.join("mount").canonicalize().expect("it is there");
        let line = table.lines().rfind(|line| line.contains(at.to_str().expect("text"))).expect("it is mounted");
        let mut expected = words(&covered[0]);
        // With the kernel's EROFS, alone or in front of Floe, the kernel checks permissions and lets all users in.
        if covered[0].contains(" - erofs ") {
            expected.extend(["default_permissions".to_owned(), "allow_other".to_owned()]);
        } else if !more.is_empty() {
            expected.retain(|word| word != "noexec");
            expected.push("allow_other".to_owned());
        }
        assert_eq!(words(line), expected, "{options}: {line}");
        assert!(Command::new("umount").arg(&at).status().expect("it runs").success(), "{options}");
    }
}

#[test]
fn the_exit_code_of_a_failed_command_is_returned() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    fs::create_dir(folder.join("mount")).expect("made");
    assert!(floe(folder, &["mkfs", "image", "source"]).status.success());
    for (arguments, exit, words) in [
        (&["--image", "image", "--", "sh", "-c", "exit 7"][..], 7, "0 ranges"),
        (&["--image", "image", "--", "/nothing/there"], 1, "/nothing/there: No such file"),
        (&["--", "true"], 2, "name the image with --image"),
        (&["--image", "missing", "--", "true"], 1, "missing: No such file"),
    ] {
        let output = floe(folder, &[&["record", "mount"], arguments].concat());
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{arguments:?}: {}", said(&output));
        assert_eq!(fs::read_dir(folder.join("mount")).expect("listed").count(), 0, "{arguments:?}");
    }
}

/// Far less than the measurements below would take.
const AT_ONCE: Duration = Duration::from_secs(120);
/// A measurement of some milliseconds, which every user may run.
const SHORT: [&str; 5] = ["lab", "alloc", "--rounds", "2", "--pages=1"];

fn floe_command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[test]
fn an_unwritable_report_is_refused_before_the_work() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("directory")).expect("made");
    let endless = ["lab", "alloc", "--rounds", "1000000000", "--pages", "1"];
    for option in ["--json", "--html"] {
        for (path, words) in [
            ("missing/report", "cannot write missing/report: No such file"),
            ("directory", "cannot write directory: Is a directory"),
        ] {
            let mut command = floe_command(folder.path(), &[&endless[..], &[option, path]].concat());
            let run = run_bounded(&mut command, AT_ONCE).expect("floe runs");
            assert!(!run.is_timed_out, "{option} {path} is not tried before the measurement");
            assert_eq!(run.status.code(), Some(1), "{option} {path}: {}", run.stderr);
            assert!(run.stderr.contains(words) && run.stderr.lines().count() == 1, "{}", run.stderr);
        }
    }
    // The report that was created first is removed again.
    let arguments = [&endless[..], &["--json", "new", "--html", "directory"]].concat();
    let run = run_bounded(&mut floe_command(folder.path(), &arguments), AT_ONCE).expect("floe runs");
    assert!(!run.is_timed_out && !folder.path().join("new").exists(), "{}", run.stderr);
}

#[test]
fn a_failed_measurement_keeps_the_earlier_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let failing = ["lab", "alloc", "--pages", "0", "--json", "report"];
    assert_eq!(
        floe_command(folder.path(), &failing).stderr(Stdio::null()).status().expect("floe runs").code(),
        Some(1)
    );
    assert!(!report.exists());
    fs::write(&report, "earlier").expect("written");
    assert_eq!(
        floe_command(folder.path(), &failing).stderr(Stdio::null()).status().expect("floe runs").code(),
        Some(1)
    );
    assert_eq!(fs::read(&report).expect("read"), b"earlier");
}

#[test]
fn a_report_is_written_into_a_file_that_cannot_be_replaced() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("ours");
    copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
    let script = "touch mounted; mount --bind report mounted; \
        exec setpriv --reuid 65534 --regid 65534 --clear-groups ./floe \"$@\"";
    for target in ["report", "mounted"] {
        fs::write(&report, vec![b' '; 1_000_000]).expect("written");
        fs::set_permissions(&report, Permissions::from_mode(0o666)).expect("ours");
        let before = fs::metadata(&report).expect("there").ino();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-e", "-c", script, "sh"]).args(SHORT);
        command.args(["--json", target]).current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let output = command.output().expect("unshare runs");
        assert!(output.status.success(), "{target}: {}", said(&output));
        assert_eq!(fs::metadata(&report).expect("there").ino(), before, "{target}");
        let text = fs::read(&report).expect("read");
        serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{target}: {error}"));
        assert!(text.len() < 1_000_000, "{target}: the end of the earlier report is left");
    }
}

#[test]
fn reports_may_go_to_pipes() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("there is mkfifo").success());
    let reader = thread::spawn(move || fs::read(pipe).expect("read"));
    let output = floe_command(folder.path(), &[&SHORT[..], &["--json", "pipe"]].concat()).output().expect("floe runs");
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice::<serde_json::Value>(&reader.join().expect("it reads")).expect("JSON");
}

#[test]
fn an_unwritable_profile_is_refused_before_the_launch() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    for directory in ["source", "mount"] {
        fs::create_dir(folder.join(directory)).expect("made");
    }
    assert!(floe_command(folder, &["mkfs", "image", "source"]).status().expect("floe runs").success());
    let record = |output: &str, command: &[&str]| {
        let arguments = [&["record", "mount", "--image", "image", "--output", output, "--"], command].concat();
        floe_command(folder, &arguments).output().expect("floe runs")
    };
    let output = record("missing/profile", &["touch", "launched"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "floe: cannot write missing/profile: No such file or directory (os error 2)\n");
    assert!(!folder.join("launched").exists());
    // A launch that is not possible leaves no profile, or the earlier one.
    assert_eq!(record("profile", &["/nothing/there"]).status.code(), Some(1));
    assert!(!folder.join("profile").exists());
    fs::write(folder.join("profile"), "earlier").expect("written");
    assert_eq!(record("profile", &["/nothing/there"]).status.code(), Some(1));
    assert_eq!(fs::read(folder.join("profile")).expect("read"), b"earlier");
    assert_eq!(record("profile", &["true"]).status.code(), Some(0));
    assert!(fs::read_to_string(folder.join("profile")).expect("read").starts_with("# floe profile"));
}
