//! The layers of a container.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use floe_keeper::{MountEntry, MountTable};
use rustix::fs::{major, minor};

/// Where control groups are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// The maximum number of control groups that are searched.
const GROUPS_MAX: usize = 65_536;

/// What container engines put before the number of a container in the name of its control group.
const PREFIXES: [&str; 6] = ["", "cri-containerd-", "crio-", "libpod-", "docker-", "nerdctl-"];

/// The minimum length of a number that may be cut off.
const SHORT_ID_LEN: usize = 12;

/// The file systems that a container sees as its root.
pub(super) struct ContainerLayers {
    /// The device numbers of their files, the uppermost first.
    pub(super) devices: Vec<(u32, u32)>,
    container: Container,
}

enum Container {
    /// The root of the container is mounted here.
    Mounted(PathBuf),
    Group(PathBuf),
}

impl ContainerLayers {
    /// The layers of the container with this number, if it exists. containerd mounts its root on a directory that has the number in its
    /// path; others name its control group for it.
    pub(super) fn of_container(id: &str) -> Option<Self> {
        let table = MountTable::read().ok()?;
        let is_root = |entry: &&MountEntry| {
            let names: Vec<_> = entry.mountpoint.iter().rev().take(2).filter_map(|name| name.to_str()).collect();
            matches!(names[..], ["rootfs", name] if is_named(name, id))
        };
        if let Some(entry) = table.entries().iter().find(is_root) {
            let container = Container::Mounted(entry.mountpoint.clone());
            return Some(Self { devices: devices_of(entry, &table), container });
        }
        let group = group_of(id)?;
        Self::of_group(&group)
    }

    /// The layers of the processes in a control group, if there are any in a container.
    pub(super) fn of_group(group: &Path) -> Option<Self> {
        let name = group.strip_prefix(GROUPS).or_else(|_| group.strip_prefix("/")).unwrap_or(group);
        // In version 1, each controller has a hierarchy.
        let hierarchies = fs::read_dir(GROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut groups = [PathBuf::from(GROUPS)].into_iter().chain(hierarchies).map(|hierarchy| hierarchy.join(name));
        let group = groups.find(|group| group.join("cgroup.procs").exists())?;
        let own = MountTable::read().ok()?;
        let root = Path::new("/");
        let layers = processes_in(&group).into_iter().find_map(|process| {
            let table = MountTable::of_process(process).ok()?;
            let entry = table.on(root)?;
            // A process that has just been started may not have entered the container yet.
            let is_inside = own.on(root).is_none_or(|own| own.device != entry.device);
            is_inside.then(|| devices_of(entry, &own))
        });
        layers.map(|devices| Self { devices, container: Container::Group(group) })
    }

    /// Whether the container still exists.
    pub(super) fn is_there(&self) -> bool {
        match &self.container {
            Container::Mounted(root) => MountTable::read().is_ok_and(|table| table.on(root).is_some()),
            Container::Group(group) => !processes_in(group).is_empty(),
        }
    }
}

/// The devices of the layers of an overlay, or of the file system itself.
fn devices_of(entry: &MountEntry, table: &MountTable) -> Vec<(u32, u32)> {
    if entry.lower.is_empty() {
        return vec![entry.device];
    }
    let device = |path: &PathBuf| match path.is_absolute() {
        true => fs::metadata(path).ok().map(|metadata| (major(metadata.dev()), minor(metadata.dev()))),
        // If there are many layers, containerd names them from the directory that they have in common.
        false => {
            let is_meant = |entry: &&MountEntry| entry.is_served() && entry.mountpoint.ends_with(path);
            table.entries().iter().find(is_meant).map(|entry| entry.device)
        }
    };
    entry.lower.iter().filter_map(device).collect()
}

/// The control group of a container.
fn group_of(id: &str) -> Option<PathBuf> {
    let mut pending = vec![PathBuf::from(GROUPS)];
    for _ in 0..GROUPS_MAX {
        let group = pending.pop()?;
        let below = fs::read_dir(&group).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            let stem = name.to_str().map(|name| name.strip_suffix(".scope").unwrap_or(name));
            if stem.is_some_and(|stem| {
                PREFIXES.iter().any(|prefix| stem.strip_prefix(prefix).is_some_and(|name| is_named(name, id)))
            }) {
                return entry.path().strip_prefix(GROUPS).ok().map(Path::to_owned);
            }
            pending.push(entry.path());
        }
    }
    None
}

/// Whether a container is meant: by its name, or by the beginning of a hexadecimal number.
fn is_named(name: &str, id: &str) -> bool {
    let is_number = |text: &str| text.len() >= SHORT_ID_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name == id || (is_number(id) && is_number(name) && name.starts_with(id))
}

/// The processes in a control group and the groups below it.
fn processes_in(group: &Path) -> Vec<u32> {
    let (mut processes, mut pending) = (Vec::new(), vec![group.to_owned()]);
    for _ in 0..GROUPS_MAX {
        let Some(group) = pending.pop() else { break };
        let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        processes.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = fs::read_dir(&group).into_iter().flatten().flatten();
        pending
            .extend(below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_have_names_and_numbers() {
        let number = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for (name, id, expected) in [
            ("web", "web", true),
            ("web-1", "web", false),
            ("web", "we", false),
            (number, number, true),
            (number, &number[..12], true),
            (number, &number[..11], false),
            (number, "123456789abc", false),
        ] {
            assert_eq!(is_named(name, id), expected, "{name} {id}");
        }
    }
}
