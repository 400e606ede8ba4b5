//! Derives findings and remedies from the facts about a machine.

use std::io;

use serde::Serialize;

use super::facts::{ControlGroups, Facts, Fusermount};

/// The finding about one topic.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Advice {
    /// The topic.
    pub(super) topic: &'static str,
    pub(super) state: State,
    /// The finding, in one line.
    pub(super) finding: String,
    /// A command or setting that improves it; empty if nothing needs to change.
    pub(super) remedy: &'static str,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// No change is needed.
    Good,
    /// Works, but something is slower or less convenient than it could be.
    Limited,
    /// Mounting does not work.
    Missing,
}

use State::{Good, Limited, Missing};

/// The oldest kernel that Floe supports.
const KERNEL_MIN: (u32, u32) = (5, 4);
/// The first kernel whose EROFS mounts files without a loop device.
const KERNEL_FILE_BACKED: (u32, u32) = (6, 12);
/// The bytes that a mount locks in memory by default.
const RESERVE_BYTES: u64 = 4 << 20;

/// The advice about a machine, in the order in which mounting needs it. What cannot be found out is left out.
pub(super) fn advise(facts: &Facts) -> Vec<Advice> {
    let from_proc = |advise: fn(&Facts) -> Advice| facts.has_proc.then(|| advise(facts));
    let advice = [
        Some(kernel(facts)),
        Some(proc(facts)),
        Some(fuse_device(facts)),
        Some(mount_permission(facts)),
        Some(other_users(facts)),
        Some(mount_helper(facts)),
        from_proc(kernel_front),
        Some(uring(facts)),
        Some(real_time(facts)),
        Some(locked_memory(facts)),
        from_proc(pressure),
        from_proc(groups),
        Some(sandbox(facts)),
        Some(tracing(facts)),
    ];
    advice.into_iter().flatten().collect()
}

fn advice(topic: &'static str, state: State, finding: impl Into<String>, remedy: &'static str) -> Advice {
    Advice { topic, state, finding: finding.into(), remedy }
}

fn kernel(facts: &Facts) -> Advice {
    let (major, minor) = facts.kernel;
    let finding = format!("Linux {major}.{minor}");
    if facts.kernel < KERNEL_MIN {
        return advice("kernel", Missing, finding, "Floe needs Linux 5.4 or later");
    }
    advice("kernel", Good, finding, "")
}

fn proc(facts: &Facts) -> Advice {
    if facts.has_proc {
        return advice("/proc", Good, "is mounted", "");
    }
    let finding = "is not mounted, so floe status, tune and upgrade find no mounts, and other topics are unknown";
    advice("/proc", Limited, finding, "mount -t proc proc /proc (as root)")
}

fn fuse_device(facts: &Facts) -> Advice {
    let (finding, remedy) = match facts.fuse {
        None => return advice("/dev/fuse", Good, "can be opened", ""),
        Some(io::ErrorKind::NotFound) if facts.has_proc => match (facts.is_in_user_namespace, facts.has_fuse) {
            (true, true) => ("does not exist in this container", "start the container with --device /dev/fuse"),
            (true, false) => (
                "does not exist in this container, and the kernel has no FUSE",
                "modprobe fuse (as root of the machine), then start the container with --device /dev/fuse",
            ),
            (false, true) => (
                "does not exist, but the kernel has FUSE",
                "mknod -m 666 /dev/fuse c 10 229 (as root); for a container, start it with --device /dev/fuse",
            ),
            (false, false) => ("does not exist, and the kernel has no FUSE", "modprobe fuse (as root)"),
        },
        Some(io::ErrorKind::PermissionDenied) => (
            "this process may not open it",
            "chmod 666 /dev/fuse (as root of the machine); for a container, start it with --device /dev/fuse",
        ),
        Some(_) => ("cannot be opened", "modprobe fuse (as root); for a container, start it with --device /dev/fuse"),
    };
    advice("/dev/fuse", Missing, finding, remedy)
}

fn mount_permission(facts: &Facts) -> Advice {
    let topic = "mount permission";
    if facts.may_mount {
        return advice(topic, Good, "this process can mount", "");
    }
    if facts.has_foreign_mounts {
        let finding = "the mount namespace belongs to another user namespace";
        return advice(topic, Missing, finding, "unshare --mount (in this user namespace)");
    }
    if facts.is_root {
        let finding = "root may not mount here, because it lacks CAP_SYS_ADMIN";
        return advice(topic, Missing, finding, "start the container with --cap-add SYS_ADMIN --device /dev/fuse");
    }
    let (finding, remedy) = match facts.fusermount {
        Fusermount::Usable => return advice(topic, Good, "fusermount3 mounts for this user", ""),
        Fusermount::Absent => (
            "this user may not mount, and fusermount3 is not installed",
            "apt install fuse3 (dnf install fuse3, apk add fuse3), or unshare --user --map-root-user --mount",
        ),
        Fusermount::NotSetUserId => (
            "this user may not mount, and fusermount3 is not set-user-ID root",
            "chmod u+s \"$(command -v fusermount3)\" (as root), or unshare --user --map-root-user --mount",
        ),
        Fusermount::Restricted => (
            "this user may not mount, and this process cannot give fusermount3 the right",
            "start the container with --cap-add SYS_ADMIN and without no-new-privileges",
        ),
    };
    advice(topic, Missing, finding, remedy)
}

fn other_users(facts: &Facts) -> Advice {
    if facts.may_mount || facts.allows_other {
        return advice("other users", Good, "can be admitted with -o allow_other", "");
    }
    let permission = mount_permission(facts);
    if facts.is_root && permission.state == Missing {
        // Root with this right does not need the file, which fusermount3 reads.
        return advice("other users", Limited, "cannot be admitted before this process may mount", permission.remedy);
    }
    let remedy = "echo user_allow_other >> /etc/fuse.conf (as root), if other users should see this user's mounts";
    advice("other users", Limited, "can access only root's mounts", remedy)
}

fn mount_helper(facts: &Facts) -> Advice {
    let topic = "mount -t floe";
    let (finding, remedy) = match (facts.has_mount_helper, facts.has_fuse_mount_helper) {
        (true, true) => return advice(topic, Good, "works, as fuse.floe and in /etc/fstab too", ""),
        (true, false) => (
            "works, in /etc/fstab too; for the type fuse.floe, mount(8) finds no helper",
            "ln -s \"$(command -v floe)\" /sbin/mount.fuse.floe (as root)",
        ),
        (false, true) => (
            "mount(8) finds a helper only for the type fuse.floe",
            "ln -s \"$(command -v floe)\" /sbin/mount.floe (as root)",
        ),
        (false, false) => (
            "mount(8) finds no helper",
            "for name in floe fuse.floe; do ln -s \"$(command -v floe)\" /sbin/mount.$name; done (as root)",
        ),
    };
    advice(topic, Limited, finding, remedy)
}

fn kernel_front(facts: &Facts) -> Advice {
    let topic = "kernel front";
    if !facts.is_administrator {
        let remedy =
            if facts.is_in_user_namespace { "sudo floe mount (outside the container)" } else { "sudo floe mount" };
        return advice(topic, Limited, "only the machine's root can put the kernel's EROFS in front", remedy);
    }
    if facts.kernel < KERNEL_FILE_BACKED {
        return advice(topic, Limited, "the kernel's EROFS cannot mount files", "Linux 6.12 or later");
    }
    if !facts.has_erofs {
        return advice(topic, Limited, "EROFS is not loaded", "modprobe erofs (as root)");
    }
    advice(topic, Good, "the kernel's EROFS can mount files", "")
}

fn uring(facts: &Facts) -> Advice {
    let topic = "FUSE over io_uring";
    match facts.fuse_uring {
        Some(true) => advice(topic, Good, "is switched on", ""),
        Some(false) => {
            let remedy = "echo Y > /sys/module/fuse/parameters/enable_uring (as root), then mount again";
            // Such a mount sets the parameter for itself.
            let finding = if kernel_front(facts).state == Good {
                "only mounts with the kernel's EROFS in front or transport=uring use it; others use /dev/fuse, which is slower"
            } else {
                "is switched off, so mounts use /dev/fuse, which is slower"
            };
            advice(topic, Limited, finding, remedy)
        }
        None => advice(topic, Good, "is not part of this kernel", ""),
    }
}

fn real_time(facts: &Facts) -> Advice {
    if facts.may_use_real_time {
        return advice("real-time priority", Good, "decoders run before other threads", "");
    }
    // A rootless container inherits the limits of its user, and cannot raise them.
    let remedy = if facts.is_in_user_namespace {
        "echo '* - rtprio 1' >> /etc/security/limits.d/floe.conf (as root of the machine), then log in again and start \
         the container again"
    } else {
        "echo '* - rtprio 1' >> /etc/security/limits.d/floe.conf (as root), then log in again; for a container, \
         --ulimit rtprio=1"
    };
    advice("real-time priority", Limited, "under load, decoders wait for a CPU like other threads", remedy)
}

fn locked_memory(facts: &Facts) -> Advice {
    match facts.lockable_bytes {
        Some(bytes) if bytes < RESERVE_BYTES => {
            let finding =
                format!("this process may lock {} KiB; the page reserve has {} KiB", bytes >> 10, RESERVE_BYTES >> 10);
            let remedy = if facts.is_in_user_namespace {
                "echo '* - memlock 65536' >> /etc/security/limits.d/floe.conf (as root of the machine), then log in again \
                 and start the container again"
            } else {
                "echo '* - memlock 65536' >> /etc/security/limits.d/floe.conf (as root), then log in again; for a \
                 container, --ulimit memlock=-1"
            };
            advice("locked memory", Limited, finding, remedy)
        }
        _ => advice("locked memory", Good, "the page reserve can be locked", ""),
    }
}

fn pressure(facts: &Facts) -> Advice {
    if facts.has_pressure {
        return advice("memory pressure", Good, "the kernel reports it", "");
    }
    advice("memory pressure", Limited, "prefetch notices it late", "boot with psi=1")
}

fn groups(facts: &Facts) -> Advice {
    let finding = match facts.control_groups {
        ControlGroups::Unified => "their memory limits are respected (version 2)",
        ControlGroups::Legacy => "their memory limits are respected (version 1)",
        ControlGroups::Absent => "are not mounted, so only the machine's memory is the limit",
    };
    advice("control groups", Good, finding, "")
}

fn sandbox(facts: &Facts) -> Advice {
    if facts.has_landlock {
        return advice("sandbox", Good, "Landlock and seccomp confine the process that reads an image", "");
    }
    let remedy = "boot with lsm=landlock,… if the kernel supports it (Linux 5.13 or later)";
    advice("sandbox", Limited, "without Landlock, seccomp alone confines the process that reads an image", remedy)
}

fn tracing(facts: &Facts) -> Advice {
    if facts.may_trace {
        return advice("tracing", Good, "floe lab can trace the scheduler", "");
    }
    let remedy = match (facts.is_administrator, facts.is_in_user_namespace) {
        (true, _) => "a kernel with CONFIG_FTRACE",
        (false, true) => "sudo floe lab (outside the container)",
        (false, false) if facts.is_root => "floe lab as root of the machine, with all capabilities",
        (false, false) => "sudo floe lab",
    };
    advice("tracing", Limited, "floe lab measures without scheduler traces", remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_root() -> Facts {
        Facts {
            kernel: (6, 18),
            has_proc: true,
            is_administrator: true,
            may_mount: true,
            is_root: true,
            has_fuse: true,
            has_erofs: true,
            may_use_real_time: true,
            has_pressure: true,
            may_trace: true,
            has_mount_helper: true,
            has_fuse_mount_helper: true,
            has_landlock: true,
            ..Facts::default()
        }
    }

    fn of_user() -> Facts {
        Facts {
            is_administrator: false,
            may_mount: false,
            is_root: false,
            may_use_real_time: false,
            fusermount: Fusermount::Usable,
            ..of_root()
        }
    }

    #[test]
    fn each_missing_capability_has_a_remedy() {
        let not_found = Some(io::ErrorKind::NotFound);
        let rows: &[(&str, Facts, State, &str)] = &[
            ("/proc", of_root(), Good, ""),
            ("/proc", Facts { has_proc: false, ..of_root() }, Limited, "mount -t proc proc /proc"),
            ("/dev/fuse", of_root(), Good, ""),
            ("/dev/fuse", Facts { fuse: not_found, ..of_root() }, Missing, "mknod -m 666 /dev/fuse c 10 229"),
            ("/dev/fuse", Facts { fuse: not_found, has_fuse: false, ..of_root() }, Missing, "modprobe fuse"),
            (
                "/dev/fuse",
                Facts { fuse: not_found, is_in_user_namespace: true, ..of_user() },
                Missing,
                "--device /dev/fuse",
            ),
            (
                "/dev/fuse",
                Facts { fuse: not_found, is_in_user_namespace: true, has_fuse: false, ..of_user() },
                Missing,
                "modprobe fuse (as root of the machine), then start the container with --device /dev/fuse",
            ),
            ("/dev/fuse", Facts { fuse: Some(io::ErrorKind::PermissionDenied), ..of_user() }, Missing, "chmod 666"),
            ("/dev/fuse", Facts { fuse: Some(io::ErrorKind::Other), ..of_user() }, Missing, "modprobe fuse"),
            (
                "/dev/fuse",
                Facts { fuse: not_found, has_fuse: false, has_proc: false, ..of_root() },
                Missing,
                "for a container",
            ),
            ("mount permission", of_root(), Good, ""),
            ("mount permission", of_user(), Good, ""),
            ("mount permission", Facts { fusermount: Fusermount::Absent, ..of_user() }, Missing, "apt install fuse3"),
            ("mount permission", Facts { fusermount: Fusermount::NotSetUserId, ..of_user() }, Missing, "chmod u+s"),
            ("mount permission", Facts { fusermount: Fusermount::Restricted, ..of_user() }, Missing, "--cap-add"),
            ("mount permission", Facts { may_mount: false, ..of_root() }, Missing, "--cap-add SYS_ADMIN"),
            (
                "mount permission",
                Facts { may_mount: false, has_foreign_mounts: true, ..of_root() },
                Missing,
                "unshare --mount",
            ),
            ("other users", of_root(), Good, ""),
            ("other users", of_user(), Limited, "user_allow_other"),
            ("other users", Facts { may_mount: false, ..of_root() }, Limited, "--cap-add SYS_ADMIN"),
            ("mount -t floe", Facts { has_mount_helper: false, ..of_root() }, Limited, "/sbin/mount.floe (as root)"),
            (
                "mount -t floe",
                Facts { has_fuse_mount_helper: false, ..of_root() },
                Limited,
                "/sbin/mount.fuse.floe (as root)",
            ),
            (
                "mount -t floe",
                Facts { has_mount_helper: false, has_fuse_mount_helper: false, ..of_root() },
                Limited,
                "for name in floe fuse.floe; do ln -s",
            ),
            ("kernel front", of_root(), Good, ""),
            ("kernel front", of_user(), Limited, "sudo floe mount"),
            ("kernel front", Facts { kernel: (6, 1), ..of_root() }, Limited, "6.12"),
            ("kernel front", Facts { has_erofs: false, ..of_root() }, Limited, "modprobe erofs"),
            ("real-time priority", of_user(), Limited, "--ulimit rtprio"),
            (
                "real-time priority",
                Facts { is_in_user_namespace: true, ..of_user() },
                Limited,
                "start the container again",
            ),
            ("locked memory", Facts { lockable_bytes: Some(64 << 10), ..of_user() }, Limited, "memlock"),
            ("locked memory", Facts { lockable_bytes: Some(8 << 20), ..of_user() }, Good, ""),
            ("memory pressure", Facts { has_pressure: false, ..of_root() }, Limited, "psi=1"),
            ("sandbox", Facts { has_landlock: false, ..of_root() }, Limited, "lsm=landlock"),
            ("tracing", Facts { may_trace: false, ..of_user() }, Limited, "sudo floe lab"),
            ("tracing", Facts { may_trace: false, ..of_root() }, Limited, "a kernel with CONFIG_FTRACE"),
            (
                "tracing",
                Facts { may_trace: false, is_administrator: false, ..of_root() },
                Limited,
                "floe lab as root of the machine",
            ),
            (
                "tracing",
                Facts { may_trace: false, is_in_user_namespace: true, is_root: true, ..of_user() },
                Limited,
                "sudo floe lab (outside the container)",
            ),
            ("kernel", Facts { kernel: (4, 19), ..of_root() }, Missing, "5.4"),
        ];
        for (topic, facts, state, remedy) in rows {
            let all = advise(facts);
            let advice = all.iter().find(|advice| advice.topic == *topic).expect("the topic");
            assert_eq!(advice.state, *state, "{advice:?}");
            assert!(advice.remedy.contains(remedy), "{advice:?}");
            assert_eq!(advice.remedy.is_empty(), *state == Good, "{advice:?}");
        }
    }

    #[test]
    fn findings_depend_on_what_mounts_use() {
        let rows: &[(&str, Facts, &str)] = &[
            (
                "FUSE over io_uring",
                Facts { fuse_uring: Some(false), ..of_root() },
                "only mounts with the kernel's EROFS",
            ),
            ("FUSE over io_uring", Facts { fuse_uring: Some(false), ..of_user() }, "is switched off, so mounts use"),
            (
                "FUSE over io_uring",
                Facts { fuse_uring: Some(false), has_erofs: false, ..of_root() },
                "is switched off, so mounts use",
            ),
            ("control groups", of_root(), "are not mounted"),
            ("control groups", Facts { control_groups: ControlGroups::Legacy, ..of_root() }, "version 1"),
            ("control groups", Facts { control_groups: ControlGroups::Unified, ..of_root() }, "version 2"),
        ];
        for (topic, facts, finding) in rows {
            let all = advise(facts);
            let advice = all.iter().find(|advice| advice.topic == *topic).expect("the topic");
            assert!(advice.finding.contains(finding), "{advice:?}");
        }
    }

    #[test]
    fn without_proc_nothing_is_said_about_what_stands_there() {
        let advice = advise(&Facts { has_proc: false, has_erofs: false, has_pressure: false, ..of_root() });
        let limited: Vec<_> = advice.iter().filter(|advice| advice.state != Good).map(|advice| advice.topic).collect();
        assert_eq!(limited, ["/proc"]);
    }

    #[test]
    fn root_on_a_recent_machine_lacks_nothing() {
        assert!(advise(&of_root()).iter().all(|advice| advice.state == Good));
    }
}
