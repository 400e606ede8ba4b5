//! Collects facts about this machine without changing it.

use std::{
    env, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use floe_sandbox::{has_landlock, held_capabilities};
use rustix::{
    fs::{Access, access},
    io::Errno,
    mount::{FsOpenFlags, fsopen},
    process::{Resource, geteuid, getrlimit},
    thread::{CapabilitySet, capability_is_in_bounding_set, no_new_privs},
};

/// The set-user-ID bit of a mode.
const SET_USER_ID: u32 = 0o4000;

/// The usual mount points of tracefs.
const TRACING_DIRECTORIES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Facts about this machine that can be found without changing it.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The release of the kernel: major and minor number.
    pub(super) kernel: (u32, u32),
    /// Whether `/proc` is mounted.
    pub(super) has_proc: bool,
    /// Whether this process has administrator rights: CAP_SYS_ADMIN in the first user namespace.
    pub(super) is_administrator: bool,
    /// Whether the process may mount in its mount namespace.
    pub(super) may_mount: bool,
    /// Whether the process has CAP_SYS_ADMIN in its user namespace, and its mount namespace belongs to another one.
    pub(super) has_foreign_mounts: bool,
    /// Whether the process is root, in its user namespace.
    pub(super) is_root: bool,
    /// Whether the process is in a user namespace that is not the first.
    pub(super) is_in_user_namespace: bool,
    /// Why `/dev/fuse` cannot be opened.
    pub(super) fuse: Option<io::ErrorKind>,
    /// Whether the kernel has FUSE, built in or loaded.
    pub(super) has_fuse: bool,
    /// Whether `fusermount3` can mount for this user.
    pub(super) fusermount: Fusermount,
    /// Whether `/etc/fuse.conf` lets users mount for others.
    pub(super) allows_other: bool,
    /// Whether FUSE over io_uring is enabled; `None` if the kernel does not support it.
    pub(super) fuse_uring: Option<bool>,
    /// Whether the kernel has EROFS, built in or loaded.
    pub(super) has_erofs: bool,
    /// Whether this process may use real-time priorities.
    pub(super) may_use_real_time: bool,
    /// How many bytes this process may lock in memory; `None` means no limit.
    pub(super) lockable_bytes: Option<u64>,
    /// Whether the kernel reports pressure stall information.
    pub(super) has_pressure: bool,
    /// Whether `floe lab` can trace the scheduler.
    pub(super) may_trace: bool,
    /// The control groups whose memory limits this process sees.
    pub(super) control_groups: ControlGroups,
    /// Whether mount(8) finds a helper for the type `floe`.
    pub(super) has_mount_helper: bool,
    /// Whether mount(8) finds a helper for the type `fuse.floe`.
    pub(super) has_fuse_mount_helper: bool,
    /// Whether the kernel has Landlock.
    pub(super) has_landlock: bool,
}

/// The program that mounts for users who may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Fusermount {
    /// Neither it nor its predecessor is in `PATH`.
    #[default]
    Absent,
    /// The set-user-ID bit is missing, or its owner is not root in this user namespace.
    NotSetUserId,
    /// This process starts no programs with more rights than its own: `no_new_privs` is set, or the bounding set lacks
    /// CAP_SYS_ADMIN.
    Restricted,
    /// It can mount.
    Usable,
}

/// The control groups that are mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum ControlGroups {
    /// Neither version.
    #[default]
    Absent,
    /// The memory controller of version 1.
    Legacy,
    /// Version 2.
    Unified,
}

impl Facts {
    /// Examines this machine.
    pub(super) fn gather() -> Self {
        let held = held_capabilities();
        let holds = |capability: &str| held.iter().any(|name| name == capability);
        let is_in_user_namespace = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps_everybody(&map));
        // The kernel grants real-time priorities and locked memory only by capabilities in the first user namespace.
        let holds_in_first = |capability: &str| !is_in_user_namespace && holds(capability);
        // The fallback is for a sandbox that hides the system call.
        let may_mount = may_mount().unwrap_or_else(|| holds("CAP_SYS_ADMIN"));
        let has_file_system =
            |name| fs::read_to_string("/proc/filesystems").is_ok_and(|text| has_last_word(&text, name));
        let locked = getrlimit(Resource::Memlock).current;
        let is_administrator = may_mount && !is_in_user_namespace;
        let has_helper = |name: &str| ["/sbin", "/usr/sbin"].iter().any(|place| Path::new(place).join(name).exists());
        Self {
            kernel: kernel_version(&rustix::system::uname().release().to_string_lossy()),
            has_proc: Path::new("/proc/self").exists(),
            is_administrator,
            may_mount,
            has_foreign_mounts: holds("CAP_SYS_ADMIN") && !may_mount,
            is_root: geteuid().is_root(),
            is_in_user_namespace,
            fuse: fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").err().map(|error| error.kind()),
            has_fuse: has_file_system("fuse"),
            fusermount: Fusermount::find(),
            allows_other: fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| has_line(&text, "user_allow_other")),
            fuse_uring: fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
                .ok()
                .map(|text| text.trim() == "Y"),
            has_erofs: has_file_system("erofs"),
            may_use_real_time: holds_in_first("CAP_SYS_NICE")
                || getrlimit(Resource::Rtprio).current.is_none_or(|priority| priority > 0),
            lockable_bytes: if holds_in_first("CAP_IPC_LOCK") { None } else { locked },
            has_pressure: fs::read_to_string("/proc/pressure/memory").is_ok(),
            may_trace: may_trace(is_administrator),
            control_groups: fs::read_to_string("/proc/self/mountinfo")
                .map_or(ControlGroups::Absent, |table| ControlGroups::find(&table)),
            has_mount_helper: has_helper("mount.floe"),
            has_fuse_mount_helper: has_helper("mount.fuse.floe"),
            has_landlock: has_landlock(),
        }
    }
}

impl Fusermount {
    fn find() -> Self {
        let Some(path) = ["fusermount3", "fusermount"].iter().find_map(|name| in_path(name)) else {
            return Self::Absent;
        };
        if !fs::metadata(path).is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & SET_USER_ID != 0) {
            return Self::NotSetUserId;
        }
        let is_bounded = !capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN).unwrap_or(true);
        if no_new_privs().unwrap_or(false) || is_bounded { Self::Restricted } else { Self::Usable }
    }
}

impl ControlGroups {
    /// The control groups in a mount table (proc_pid_mountinfo(5)). On hybrid systems, version 1 has the memory limits.
    fn find(table: &str) -> Self {
        let mounts = || table.lines().filter_map(|line| line.split_once(" - ").map(|(_, kind)| kind));
        let has_memory = |kind: &str| kind.split([' ', ',']).any(|word| word == "memory");
        if mounts().any(|kind| kind.starts_with("cgroup ") && has_memory(kind)) {
            Self::Legacy
        } else if mounts().any(|kind| kind.starts_with("cgroup2 ")) {
            Self::Unified
        } else {
            Self::Absent
        }
    }
}

/// Whether the process may mount; `None` if the kernel does not say. The kernel checks the right to mount before it looks
/// at the flags, which are wrong, so that nothing is opened.
fn may_mount() -> Option<bool> {
    match fsopen("fuse", FsOpenFlags::from_bits_retain(u32::MAX)) {
        Err(Errno::INVAL) => Some(true),
        Err(Errno::PERM) => Some(false),
        _ => None,
    }
}

/// Whether this process may create tracing instances: in the mounted tracefs, or else in one that it mounts.
fn may_trace(is_administrator: bool) -> bool {
    let mounted = TRACING_DIRECTORIES.iter().map(|path| Path::new(path).join("instances")).find(|path| path.is_dir());
    match mounted {
        Some(instances) => access(instances, Access::WRITE_OK).is_ok(),
        None => is_administrator && fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).is_ok(),
    }
}

/// Whether a map of user ids (user_namespaces(7)) is that of the first user namespace.
fn maps_everybody(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// The first two numbers of a kernel's release.
fn kernel_version(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|character: char| !character.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn has_line(text: &str, line: &str) -> bool {
    text.lines().any(|other| other.trim() == line)
}

fn has_last_word(text: &str, word: &str) -> bool {
    text.lines().any(|line| line.split_whitespace().last() == Some(word))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|directory| directory.join(name)).find(|path| access(path, Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels_have_two_numbers() {
        for (release, version) in
            [("6.18.5", (6, 18)), ("5.4.0-150-generic", (5, 4)), ("6.1-rc3", (6, 1)), ("", (0, 0))]
        {
            assert_eq!(kernel_version(release), version, "{release}");
        }
    }

    #[test]
    fn system_files_are_parsed() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("         0       1000          1\n"));
        assert!(has_line("# comment\n user_allow_other \n", "user_allow_other"));
        assert!(!has_line("#user_allow_other\n", "user_allow_other"));
        assert!(has_last_word("nodev\tproc\n\terofs\n", "erofs"));
        assert!(!has_last_word("nodev\terofs2\n", "erofs"));
    }

    #[test]
    fn control_groups_are_those_with_memory_limits() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let memory = "35 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let cpu = "36 30 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        for (table, expected) in [
            (unified.to_owned(), ControlGroups::Unified),
            (format!("{cpu}{memory}{unified}"), ControlGroups::Legacy),
            (format!("{cpu}{unified}"), ControlGroups::Unified),
            (cpu.to_owned(), ControlGroups::Absent),
            (String::new(), ControlGroups::Absent),
        ] {
            assert_eq!(ControlGroups::find(&table), expected, "{table}");
        }
    }

    #[test]
    fn this_machine_can_be_examined() {
        let facts = Facts::gather();
        assert!(facts.kernel >= (5, 4), "{facts:?}");
    }
}
