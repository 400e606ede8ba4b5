//! Control groups that limit memory, v1 and v2.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::undo::{Change, PendingChange, Undo};
use crate::error::ErrorContext;
use crate::{Error, Result};
use floe_image::ShownName;

/// A control group with a memory limit; processes still inside are killed when it is dropped.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
    version: Version,
    _change: PendingChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The events in a group so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GroupCounts {
    /// How often an allocation hit the limit.
    pub limit_hits: u64,
    /// How many processes inside were killed by the OOM killer.
    pub out_of_memory_kills: u64,
    /// The peak memory use in bytes.
    pub peak_bytes: u64,
}

impl ControlGroup {
    /// Creates a group with a limit of `limit_bytes`, in the hierarchy that limits memory on this machine.
    pub(crate) fn with_memory_limit(undo: &Undo, limit_bytes: u64) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context(|| "cannot read the mounts".to_owned())?;
        let own = fs::read_to_string("/proc/self/cgroup").context(|| "cannot read our control group".to_owned())?;
        let (parent, version) = memory_hierarchy(&mounts, &own)
            .ok_or_else(|| Error::new("no control group hierarchy of this machine limits memory"))?;
        if version == Version::Two {
            // The root group may have both processes and children; if the controller is already enabled, this changes
            // nothing.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let path = parent.join(format!("floe-lab-{}-{:08x}", std::process::id(), fastrand::u32(..)));
        let change = undo.record(Change::ControlGroup { path: path.clone() })?;
        fs::create_dir(&path).context(|| format!("cannot make the control group {}", path.shown()))?;
        let group = Self { path, version, _change: change };
        match version {
            Version::One => group.write("memory.limit_in_bytes", limit_bytes)?,
            Version::Two => {
                group.write("memory.max", limit_bytes)?;
                let _ = group.write("memory.swap.max", 0);
            }
        }
        Ok(group)
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its `cgroup.procs`, open for writing.
    pub(crate) fn entrance(&self) -> Result<fs::File> {
        let path = self.path.join("cgroup.procs");
        fs::OpenOptions::new().write(true).open(&path).context(|| format!("cannot open {}", path.shown()))
    }

    /// The events so far.
    pub fn counts(&self) -> GroupCounts {
        let number = |file: &str| self.read(file).trim().parse().unwrap_or(0);
        let keyed = |file: &str, key: &str| {
            let text = self.read(file);
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(name, _)| *name == key).and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
        };
        match self.version {
            Version::One => GroupCounts {
                limit_hits: number("memory.failcnt"),
                out_of_memory_kills: keyed("memory.oom_control", "oom_kill"),
                peak_bytes: number("memory.max_usage_in_bytes"),
            },
            Version::Two => GroupCounts {
                limit_hits: keyed("memory.events", "max"),
                out_of_memory_kills: keyed("memory.events", "oom_kill"),
                peak_bytes: number("memory.peak"),
            },
        }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap_or_default()
    }

    fn write(&self, file: &str, value: u64) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value.to_string()).context(|| format!("cannot set {} to {value}", path.shown()))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            let members = self.read("cgroup.procs");
            for pid in members.lines().filter_map(|line| line.parse().ok()).filter_map(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The directory in which memory-limited groups can be created.
fn memory_hierarchy(mounts: &str, own: &str) -> Option<(PathBuf, Version)> {
    let mut unified = None;
    for line in mounts.lines() {
        // 36 35 98:0 /root /mount/point rw,noatime master:1 - type source options
        let (before, after) = line.split_once(" - ")?;
        let mount_point = PathBuf::from(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
        if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
            let line = own
                .lines()
                .find(|line| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == "memory")));
            let inside = line.and_then(|line| line.split(':').nth(2)).unwrap_or("/").trim_start_matches('/');
            // Inside a container, our group may not exist at its recorded path.
            let parent = Some(mount_point.join(inside)).filter(|path| path.is_dir()).unwrap_or(mount_point);
            return Some((parent, Version::One));
        }
        if kind == "cgroup2" {
            let controllers = fs::read_to_string(mount_point.join("cgroup.controllers")).unwrap_or_default();
            if controllers.split_whitespace().any(|name| name == "memory") {
                unified = Some((mount_point, Version::Two));
            }
        }
    }
    unified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_limits_memory_is_found() {
        let home = tempfile::tempdir().unwrap();
        let one = home.path().join("one");
        let two = home.path().join("two");
        fs::create_dir_all(one.join("here")).unwrap();
        fs::create_dir_all(&two).unwrap();
        fs::write(two.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let v1 = format!("30 1 0:1 / {} rw - cgroup cgroup rw,memory\n", one.display());
        let v2 = format!("31 1 0:2 / {} rw - cgroup2 cgroup2 rw\n", two.display());
        let other = "32 1 0:3 / / rw - ext4 /dev/sda rw\n33 1 0:4 / /cpu rw - cgroup cgroup rw,cpu\n";
        let own = "4:memory:/here\n0::/\n";
        let rows = [
            (format!("{other}{v1}{v2}"), own, Some((one.join("here"), Version::One))),
            (format!("{other}{v1}"), "4:memory:/elsewhere\n", Some((one.clone(), Version::One))),
            (format!("{other}{v2}"), "0::/\n", Some((two.clone(), Version::Two))),
            (other.to_owned(), own, None),
        ];
        for (mounts, own, expected) in rows {
            assert_eq!(memory_hierarchy(&mounts, own), expected, "{mounts}");
        }
    }
}
