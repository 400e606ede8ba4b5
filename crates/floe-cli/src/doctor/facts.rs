//! Collects facts about this machine without changing it.

use std::{env, fs, io, path::Path};

use floe_sandbox::held_capabilities;
use rustix::{
    fs::{Access, access},
    process::{Resource, getrlimit},
};

/// Facts about this machine that can be found without changing it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The release of the kernel: major and minor number.
    pub(crate) kernel: (u32, u32),
    /// Whether this process has administrator rights: CAP_SYS_ADMIN in the first user namespace.
    pub(crate) is_administrator: bool,
    /// Whether the process may mount in its own user namespace.
    pub(crate) may_mount: bool,
    /// Whether the process is in a user namespace that is not the first.
    pub(crate) is_in_user_namespace: bool,
    /// Why `/dev/fuse` cannot be opened.
    pub(crate) fuse: Option<io::ErrorKind>,
    /// Whether `fusermount3`, or its predecessor, is in `PATH`.
    pub(crate) has_fusermount: bool,
    /// Whether `/etc/fuse.conf` lets users mount for others.
    pub(crate) allows_other: bool,
    /// Whether FUSE over io_uring is enabled; `None` if the kernel does not support it.
    pub(crate) fuse_uring: Option<bool>,
    /// Whether the kernel has EROFS, built in or loaded.
    pub(crate) has_erofs: bool,
    /// Whether this process may use real-time priorities.
    pub(crate) may_use_real_time: bool,
    /// How many bytes this process may lock in memory; `None` means no limit.
    pub(crate) lockable_bytes: Option<u64>,
    /// Whether the kernel reports pressure stall information.
    pub(crate) has_pressure: bool,
    /// Whether `/sys/kernel/tracing` is writable.
    pub(crate) may_trace: bool,
    /// Whether control groups of version 2 are mounted.
    pub(crate) has_unified_groups: bool,
    /// Whether mount(8) finds a helper for the type `floe`.
    pub(crate) has_mount_helper: bool,
    /// Whether the kernel has Landlock.
    pub(crate) has_landlock: bool,
}

impl Facts {
    /// Examines this machine.
    pub(crate) fn gather() -> Self {
        let held = held_capabilities();
        let holds = |capability: &str| held.iter().any(|name| name == capability);
        let is_in_user_namespace = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps_everybody(&map));
        let may_mount = holds("CAP_SYS_ADMIN");
        let locked = getrlimit(Resource::Memlock).current;
        let is_writable = |path: &str| access(path, Access::WRITE_OK).is_ok();
        Self {
            kernel: kernel_version(&rustix::system::uname().release().to_string_lossy()),
            is_administrator: may_mount && !is_in_user_namespace,
            may_mount,
            is_in_user_namespace,
            fuse: fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").err().map(|error| error.kind()),
            has_fusermount: ["fusermount3", "fusermount"].iter().any(|name| is_in_path(name)),
            allows_other: fs::read_to_string("/etc/fuse.conf").is_ok_and(|text| has_line(&text, "user_allow_other")),
            fuse_uring: fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
                .ok()
                .map(|text| text.trim() == "Y"),
            has_erofs: fs::read_to_string("/proc/filesystems").is_ok_and(|text| has_last_word(&text, "erofs")),
            may_use_real_time: holds("CAP_SYS_NICE")
                || getrlimit(Resource::Rtprio).current.is_none_or(|priority| priority > 0),
            lockable_bytes: if holds("CAP_IPC_LOCK") { None } else { locked },
            has_pressure: fs::read_to_string("/proc/pressure/memory").is_ok(),
            may_trace: is_writable("/sys/kernel/tracing/trace_marker"),
            has_unified_groups: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
            has_mount_helper: ["/sbin/mount.floe", "/usr/sbin/mount.floe"].iter().any(|path| Path::new(path).exists()),
            has_landlock: fs::read_to_string("/sys/kernel/security/lsm")
                .is_ok_and(|text| text.trim().split(',').any(|module| module == "landlock")),
        }
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

fn is_in_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| access(directory.join(name), Access::EXEC_OK).is_ok())
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
    fn files_of_the_system_are_understood() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("         0       1000          1\n"));
        assert!(has_line("# comment\n user_allow_other \n", "user_allow_other"));
        assert!(!has_line("#user_allow_other\n", "user_allow_other"));
        assert!(has_last_word("nodev\tproc\n\terofs\n", "erofs"));
        assert!(!has_last_word("nodev\terofs2\n", "erofs"));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let facts = Facts::gather();
        assert!(facts.kernel >= (5, 4), "{facts:?}");
    }
}
