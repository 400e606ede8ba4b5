//! Control groups of the processes that read images of users.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Where control groups of version 2 are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// The last name of the broker's own group, if the service manager has delegated the group above it (`DelegateSubgroup=`).
const OWN_NAME: &str = "broker";

/// The period of CPU limits, in microseconds.
const PERIOD_US: u64 = 100_000;

/// The maximum number of threads of a process.
const THREADS_MAX: u32 = 512;

/// The control group that a service manager has delegated to the service: groups can be made there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DelegatedGroup {
    directory: PathBuf,
}

/// The control group of a process. Dropping it removes it, after the end of the process.
#[derive(Debug)]
pub(super) struct ControlGroup {
    directory: PathBuf,
}

impl DelegatedGroup {
    /// The group that was delegated to this process; `None` if none was, as without systemd 254.
    pub(super) fn find() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        Self::of(&groups, Path::new(MOUNT))
    }

    /// As [`DelegatedGroup::find`], with the text of `/proc/self/cgroup` and the place of the mount.
    fn of(groups: &str, mount: &Path) -> Option<Self> {
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let above = Path::new(own.strip_suffix(OWN_NAME)?.strip_suffix('/')?);
        let directory = mount.join(above);
        // Not each of them may be available.
        for controller in ["+memory", "+cpu", "+pids"] {
            let _ = fs::write(directory.join("cgroup.subtree_control"), controller);
        }
        directory.join("cgroup.controllers").exists().then_some(Self { directory })
    }

    /// The group to which an earlier broker has moved a process.
    pub(super) fn of_process(&self, process: u32) -> Option<ControlGroup> {
        Some(ControlGroup::of(self.directory_of(process))).filter(|group| group.directory().exists())
    }

    fn directory_of(&self, process: u32) -> PathBuf {
        self.directory.join(format!("images-{process}"))
    }

    /// Moves a process to a group of its own, with limits: of memory, and of CPU time in percent of one CPU.
    ///
    /// # Errors
    /// The group cannot be created. Limits of controllers that are not available do not apply.
    pub(super) fn confine(
        &self,
        process: u32,
        memory_bytes: u64,
        cpu_percent: Option<u32>,
    ) -> io::Result<ControlGroup> {
        let group = ControlGroup { directory: self.directory_of(process) };
        fs::create_dir(&group.directory)?;
        let set = |file: &str, value: &str| drop(fs::write(group.directory.join(file), value));
        set("memory.max", &memory_bytes.to_string());
        set("pids.max", &THREADS_MAX.to_string());
        if let Some(percent) = cpu_percent {
            set("cpu.max", &format!("{} {PERIOD_US}", u64::from(percent) * PERIOD_US / 100));
        }
        fs::write(group.directory.join("cgroup.procs"), process.to_string())?;
        Ok(group)
    }
}

impl ControlGroup {
    /// The control group of a process that an earlier broker or program has started.
    pub(super) fn of(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that has not ended yet keeps it.
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_delegated_group_is_used() {
        let mount = tempfile::tempdir().expect("a directory");
        let above = mount.path().join("system.slice/floe.service");
        fs::create_dir_all(above.join("broker")).expect("ours");
        let found = |groups: &str| DelegatedGroup::of(groups, mount.path());
        let groups = "3:cpu:/\n0::/system.slice/floe.service/broker\n";
        assert_eq!(found(groups), None, "no control groups of version 2 are there");
        fs::write(above.join("cgroup.controllers"), "memory cpu").expect("ours");
        for other in [
            "",
            "0::/",
            "0::/broker",
            "0::/a-broker",
            "0::/broker/x",
            "0::/system.slice/floe.service",
            "1:name=systemd:/broker",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
        let delegated = found(groups).expect("it is delegated");
        let group = delegated.confine(7, 1 << 20, Some(50)).expect("ours");
        assert!(delegated.of_process(7).is_some() && delegated.of_process(8).is_none());
        let read = |file: &str| fs::read_to_string(above.join("images-7").join(file)).expect("it was written");
        assert_eq!(["memory.max", "cpu.max", "cgroup.procs"].map(read), ["1048576", "50000 100000", "7"]);
        drop(group);
    }
}
