//! `floe doctor` on differently equipped systems: its findings, and that the command in each remedy works.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    check_rows, copy_program,
    skip::{self, Need},
};
use serde_json::Value;

use crate::support::program::run;

/// Creates a system that only this process sees, with changeable copies of `/etc` and `/usr`, and a `/dev` with few devices.
/// `$1` is a directory that all users can read. Exit code 77 means that the machine does not let root do this.
const SURROUNDINGS: &str = r#"
set -e
export PATH="$1:$PATH"
mount -t tmpfs scratch "$1/scratch" || exit 77
for directory in /etc /usr /sbin; do
    test -L $directory && continue
    upper=$1/scratch$directory/upper work=$1/scratch$directory/work
    mkdir -p "$upper" "$work"
    mount -t overlay overlay -o "lowerdir=$directory,upperdir=$upper,workdir=$work" $directory || exit 77
done
mkdir -p /etc/security/limits.d
rm -f /etc/fuse.conf /sbin/mount.floe /usr/sbin/mount.floe /sbin/mount.fuse.floe /usr/sbin/mount.fuse.floe
mount -t tmpfs dev /dev || exit 77
mknod -m 666 /dev/null c 1 3
"#;

/// Becomes a user without rights.
const AS_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

/// The commands that change the system before the doctor runs.
const DEVICE: &str = "mknod -m 666 /dev/fuse c 10 229";
const WITHOUT_TRACEFS: &str = "grep -qw tracefs /proc/filesystems || exit 77; mount -t tmpfs none /sys/kernel; \
                               mknod -m 666 /dev/fuse c 10 229";

/// How the command in a remedy is used.
#[derive(Clone, Copy)]
enum Mending {
    /// Not tested here.
    Untried,
    /// Run as root of the machine.
    Run,
    /// Starts the doctor.
    Prefix,
}

/// A situation, and the expected findings.
struct Row {
    name: &'static str,
    /// Commands that prepare the system, as root.
    setup: &'static str,
    /// The program that starts the doctor, with other rights.
    rights: &'static str,
    /// The value of `PATH`: a folder of [`folders`].
    programs: &'static str,
    /// Whether mounting works.
    works: bool,
    topic: &'static str,
    state: &'static str,
    finding: &'static str,
    remedy: &'static str,
    mending: Mending,
}

const ROOT: Row = Row {
    name: "root",
    setup: DEVICE,
    rights: "",
    programs: "without",
    works: true,
    topic: "mount permission",
    state: "good",
    finding: "this process can mount",
    remedy: "",
    mending: Mending::Untried,
};

const USER: Row =
    Row { name: "a user", rights: AS_USER, programs: "with", finding: "fusermount3 mounts for this user", ..ROOT };

/// User and mount namespaces as in a rootless container.
const ROOTLESS: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-root-user --mount";

fn rows() -> Vec<Row> {
    vec![
        ROOT,
        Row { name: "root, the device", topic: "/dev/fuse", finding: "can be opened", ..ROOT },
        Row {
            name: "root, no /proc",
            setup: "mknod -m 666 /dev/fuse c 10 229; umount -l /proc",
            topic: "/proc",
            state: "limited",
            finding: "is not mounted",
            remedy: "mount -t proc proc /proc (as root)",
            mending: Mending::Run,
            ..ROOT
        },
        Row {
            name: "root, no device",
            setup: "",
            works: false,
            topic: "/dev/fuse",
            state: "missing",
            finding: "does not exist",
            remedy: "mknod -m 666 /dev/fuse c 10 229 (as root)",
            mending: Mending::Run,
            ..ROOT
        },
        Row {
            name: "root, no helper",
            topic: "mount -t floe",
            state: "limited",
            finding: "mount(8) finds no helper",
            remedy: "for name in floe fuse.floe; do ln -s \"$(command -v floe)\" /sbin/mount.$name; done (as root)",
            mending: Mending::Run,
            ..ROOT
        },
        Row {
            name: "root, no helper for fuse.floe",
            setup: "mknod -m 666 /dev/fuse c 10 229; ln -s \"$(command -v floe)\" /sbin/mount.floe",
            topic: "mount -t floe",
            state: "limited",
            finding: "for the type fuse.floe, mount(8) finds no helper",
            remedy: "ln -s \"$(command -v floe)\" /sbin/mount.fuse.floe (as root)",
            mending: Mending::Run,
            ..ROOT
        },
        Row {
            name: "root without the right to mount",
            rights: "setpriv --bounding-set -sys_admin --inh-caps -sys_admin",
            works: false,
            state: "missing",
            finding: "root may not mount here",
            remedy: "--cap-add SYS_ADMIN",
            ..ROOT
        },
        Row {
            name: "root, tracing without a mounted tracefs",
            setup: WITHOUT_TRACEFS,
            topic: "tracing",
            finding: "floe lab can trace the scheduler",
            ..ROOT
        },
        Row {
            name: "root without the right to mount, tracing",
            setup: WITHOUT_TRACEFS,
            rights: "setpriv --bounding-set -sys_admin --inh-caps -sys_admin",
            works: false,
            topic: "tracing",
            state: "limited",
            finding: "without scheduler traces",
            remedy: "floe lab as root of the machine, with all capabilities",
            ..ROOT
        },
        USER,
        Row {
            name: "a user, other users",
            topic: "other users",
            state: "limited",
            finding: "can access only root's mounts",
            remedy: "echo user_allow_other >> /etc/fuse.conf (as root)",
            mending: Mending::Run,
            ..USER
        },
        Row {
            name: "a user, the front",
            topic: "kernel front",
            state: "limited",
            finding: "only the machine's root",
            remedy: "sudo floe mount",
            ..USER
        },
        Row {
            name: "a user, real-time priority",
            rights: "prlimit --rtprio=0 setpriv --reuid 65534 --regid 65534 --clear-groups",
            topic: "real-time priority",
            state: "limited",
            finding: "decoders wait for a CPU",
            remedy: "echo '* - rtprio 1' >> /etc/security/limits.d/floe.conf (as root)",
            ..USER
        },
        Row {
            name: "a user, locked memory",
            rights: "prlimit --memlock=65536 setpriv --reuid 65534 --regid 65534 --clear-groups",
            topic: "locked memory",
            state: "limited",
            finding: "this process may lock 64 KiB; the page reserve has 4096 KiB",
            remedy: "echo '* - memlock 65536' >> /etc/security/limits.d/floe.conf (as root)",
            ..USER
        },
        Row {
            name: "a user, a closed device",
            setup: "mknod -m 600 /dev/fuse c 10 229",
            works: false,
            topic: "/dev/fuse",
            state: "missing",
            finding: "this process may not open it",
            remedy: "chmod 666 /dev/fuse (as root of the machine)",
            mending: Mending::Run,
            ..USER
        },
        Row {
            name: "a user without fusermount3",
            programs: "without",
            works: false,
            state: "missing",
            finding: "fusermount3 is not installed",
            remedy: "apt install fuse3",
            ..USER
        },
        Row {
            name: "a user, fusermount3 without rights",
            programs: "plain",
            works: false,
            state: "missing",
            finding: "fusermount3 is not set-user-ID root",
            remedy: "chmod u+s \"$(command -v fusermount3)\" (as root)",
            mending: Mending::Run,
            ..USER
        },
        Row {
            name: "a user who cannot gain rights",
            rights: "setpriv --no-new-privs --reuid 65534 --regid 65534 --clear-groups",
            works: false,
            state: "missing",
            finding: "cannot give fusermount3 the right",
            remedy: "without no-new-privileges",
            ..USER
        },
        Row {
            name: "a user in a container without the right to mount",
            rights: "setpriv --bounding-set -sys_admin --reuid 65534 --regid 65534 --clear-groups",
            works: false,
            state: "missing",
            finding: "cannot give fusermount3 the right",
            remedy: "--cap-add SYS_ADMIN",
            ..USER
        },
        Row { name: "a rootless container", rights: ROOTLESS, finding: "this process can mount", ..USER },
        Row {
            name: "a rootless container, the front",
            rights: ROOTLESS,
            topic: "kernel front",
            state: "limited",
            finding: "only the machine's root",
            remedy: "sudo floe mount (outside the container)",
            ..USER
        },
        Row {
            name: "a rootless container, real-time priority",
            rights: "prlimit --rtprio=0 setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-root-user \
                     --mount",
            topic: "real-time priority",
            state: "limited",
            finding: "decoders wait for a CPU",
            remedy: "rtprio 1' >> /etc/security/limits.d/floe.conf (as root of the machine)",
            ..USER
        },
        Row {
            name: "a rootless container, locked memory",
            rights: "prlimit --memlock=65536 setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user \
                     --map-root-user --mount",
            topic: "locked memory",
            state: "limited",
            finding: "this process may lock 64 KiB; the page reserve has 4096 KiB",
            remedy: "memlock 65536' >> /etc/security/limits.d/floe.conf (as root of the machine)",
            ..USER
        },
        Row {
            name: "a rootless container, no device",
            setup: "",
            rights: ROOTLESS,
            works: false,
            topic: "/dev/fuse",
            state: "missing",
            finding: "does not exist in this container",
            remedy: "start the container with --device /dev/fuse",
            ..USER
        },
        Row {
            name: "a user namespace with another one's mounts",
            rights: "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-root-user",
            works: false,
            state: "missing",
            finding: "the mount namespace belongs to another user namespace",
            remedy: "unshare --mount (in this user namespace)",
            mending: Mending::Prefix,
            ..USER
        },
    ]
}

/// A directory with a copy of the program and three folders of programs: one without fusermount3, one where it has no
/// privileges, and one where it has.
fn folders() -> tempfile::TempDir {
    let place = tempfile::tempdir().expect("a directory");
    let mode = |path: PathBuf, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("ours");
    mode(place.path().to_owned(), 0o755);
    copy_program(env!("CARGO_BIN_EXE_floe"), place.path().join("floe"));
    for (folder, bits) in [("without", None), ("plain", Some(0o755)), ("with", Some(0o4755))] {
        let folder = place.path().join(folder);
        fs::create_dir(&folder).expect("ours");
        if let Some(bits) = bits {
            fs::write(folder.join("fusermount3"), "").expect("ours");
            mode(folder.join("fusermount3"), bits);
        }
    }
    fs::create_dir(place.path().join("scratch")).expect("ours");
    place
}

/// The findings of the doctor, and whether mounting works; `None` if the machine does not let root prepare a system.
fn doctor(place: &Path, row: &Row, mended: &str, prefix: &str) -> Option<(bool, Vec<Value>)> {
    let Row { setup, rights, programs, .. } = row;
    let script = format!(
        "{SURROUNDINGS}{setup}\nexport PATH=\"$1/{programs}:$PATH\"\n{mended}\n\
         exec {rights} {prefix} env PATH=\"$1/{programs}\" \"$1/floe\" doctor --json"
    );
    let mut command = Command::new("unshare");
    let output = run(command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(place));
    if output.status.code() == Some(77) {
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)) && errors.is_empty(), "{}: {errors}", output.status);
    let text = String::from_utf8(output.stdout).expect("text");
    let advice = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")));
    Some((output.status.success(), advice.collect()))
}

/// The faults of the findings in one situation.
fn complaints(place: &Path, row: &Row) -> Vec<String> {
    let Some((works, advice)) = doctor(place, row, "", "") else {
        skip::skipped("root may not mount overlays here");
        return Vec::new();
    };
    let about = |advice: &[Value]| advice.iter().find(|advice| advice["topic"] == row.topic).cloned();
    let mut complaints = Vec::new();
    let found = about(&advice).unwrap_or_default();
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    let is_right = text("state") == row.state
        && text("finding").contains(row.finding)
        && text("remedy").contains(row.remedy)
        && (text("state") == "good") == text("remedy").is_empty();
    if !is_right || works != row.works {
        complaints.push(format!("works: {works}; {found}"));
    }
    let remedy = text("remedy");
    let mended = match row.mending {
        Mending::Untried => return complaints,
        Mending::Run => doctor(place, row, command_in(&remedy, " (as root"), ""),
        Mending::Prefix => doctor(place, row, "", command_in(&remedy, " (in this")),
    };
    let Some((works, advice)) = mended else { return complaints };
    let found = about(&advice).unwrap_or_default();
    if !works || found["state"] != "good" {
        complaints.push(format!("after '{remedy}': works: {works}; {found}"));
    }
    complaints
}

/// The command in a remedy, without the words about where to run it.
fn command_in<'a>(remedy: &'a str, end: &str) -> &'a str {
    remedy.split(end).next().unwrap_or_default()
}

#[test]
fn each_fault_has_advice_that_fixes_it() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let place = folders();
    check_rows(&rows(), |row| row.name.to_owned(), |row| complaints(place.path(), row));
}

#[test]
fn json_has_one_object_a_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_floe")).args(["doctor", "--json"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.lines().count() >= 10, "{text}");
    assert!(text.lines().all(|line| line.starts_with("{\"topic\":") && line.ends_with('}')), "{text}");
}
