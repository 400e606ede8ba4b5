//! The memory that this process may use.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use floe_codec::{limit_arenas, release_freed_memory};
use rustix::{
    fs::statfs,
    process::{Resource, getrlimit},
};

/// The maximum memory of a decoding thread: its stack, a decoded block of 12 MiB, and its buffers.
const THREAD_BYTES: u64 = 32 << 20;

/// The number of decoding threads, at most `wanted`, that fit into the limit of the address space; at least 1.
pub(crate) fn threads_within_limit(wanted: usize) -> usize {
    let room = address_space_left().map_or(u64::MAX, |left| left / THREAD_BYTES);
    wanted.min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}

/// The address space that a thread needs to start: its stack, and what the runtime maps for it.
const THREAD_START_BYTES: u64 = 3 << 20;

/// Checks that a thread can start. If the limit of the address space allows the stack of a thread but not that of its
/// signal handlers, the Rust runtime aborts the process.
///
/// # Errors
/// `OutOfMemory`.
pub(crate) fn check_thread_start() -> io::Result<()> {
    match address_space_left() {
        Some(left) if left < THREAD_START_BYTES => Err(io::ErrorKind::OutOfMemory.into()),
        _ => Ok(()),
    }
}

/// Below this limit of memory, all threads share one arena of the C library, and large allocations return to the system as soon
/// as they are freed.
const SMALL_MEMORY_BYTES: u64 = 64 << 20;

/// Keeps the address space of this process for data if it is limited (`RLIMIT_AS`), and its memory if a control group has little:
/// otherwise the C library reserves much of it for the threads. For the start of a program, before it has threads.
pub fn keep_address_space() {
    if let Some(limit_bytes) = getrlimit(Resource::As).current {
        limit_arenas(limit_bytes);
    } else if memory_limit_bytes() < SMALL_MEMORY_BYTES {
        // Freed memory in the arena of one thread is of no use to the others, and freed blocks would stay there.
        limit_arenas(0);
        release_freed_memory();
    }
}

/// The number of bytes by which the address space of this process may grow; `None` if `RLIMIT_AS` does not limit it.
fn address_space_left() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let said = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let taken = said.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(taken.saturating_mul(rustix::param::page_size() as u64)))
}

/// The memory in bytes that this process and those that share its limits may use: the machine's memory, or less if a
/// control group of either version or `RLIMIT_AS` limits it. Without `/proc`, the result is the maximum.
pub fn memory_limit_bytes() -> u64 {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let machine = memory_of_machine(&read("/proc/meminfo"));
    let own = read("/proc/self/cgroup");
    let groups = usual_directories(&USUAL_PLACES, &own)
        .unwrap_or_else(|| group_directories(&read("/proc/self/mountinfo"), &own));
    groups
        .iter()
        .filter_map(|group| limit_of(group))
        .chain(machine)
        .chain(address_space_left())
        .min()
        .unwrap_or(u64::MAX)
}

fn memory_of_machine(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A place where control groups are usually mounted.
struct UsualPlace<'path> {
    mount_point: &'path str,
    magic: u64,
    /// The controllers of its line in `/proc/self/cgroup`.
    names: &'path str,
}

const USUAL_PLACES: [UsualPlace<'_>; 2] = [
    UsualPlace { mount_point: "/sys/fs/cgroup/memory", magic: 0x0027_e0eb, names: "memory" },
    UsualPlace { mount_point: "/sys/fs/cgroup", magic: 0x6367_7270, names: "" },
];

/// The directories of the memory control groups of this process below the usual places; `None` if control groups are mounted
/// elsewhere or not at all. The mount table would tell, but the time to read it grows with the number of mounts.
fn usual_directories(places: &[UsualPlace<'_>], own: &str) -> Option<Vec<PathBuf>> {
    let is_mounted = |place: &&UsualPlace<'_>| {
        statfs(place.mount_point).is_ok_and(|found| u64::try_from(found.f_type) == Ok(place.magic))
    };
    let mounted = places.iter().filter(is_mounted);
    let found = mounted.filter_map(|place| Some((Path::new(place.mount_point), path_of(place.names, own)?)));
    let found: Vec<PathBuf> = found.flat_map(|(mount_point, path)| up_to(mount_point, path)).collect();
    (!found.is_empty()).then_some(found)
}

/// The directories from that of a control group up to a mountpoint. Inside a container, only a part of the hierarchy may be
/// mounted: the group is the longest end of its path that exists there.
fn up_to(mount_point: &Path, path: &str) -> Vec<PathBuf> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    let ends = (0..=names.len()).map(|start| mount_point.join(names[start..].join("/")));
    let group = ends.into_iter().find(|directory| directory.is_dir()).unwrap_or(mount_point.to_path_buf());
    group.ancestors().take_while(|directory| directory.starts_with(mount_point)).map(Path::to_path_buf).collect()
}

/// The path of this process in the hierarchy with a controller, from `/proc/self/cgroup`: for example `4:memory:/path`, or
/// `0::/path` for the second version.
fn path_of<'own>(names: &str, own: &'own str) -> Option<&'own str> {
    own.lines().find_map(|line| {
        let (listed, path) = line.split_once(':')?.1.split_once(':')?;
        listed.split(',').any(|name| name == names).then_some(path)
    })
}

/// The same from the mount table.
fn group_directories(mounts: &str, own: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in mounts.lines() {
        // For example: 36 35 98:0 /root /mount/point rw,noatime master:1 - type source options
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
        let (Some(root), Some(mount_point)) = (before.next(), before.next()) else { continue };
        let options = after.clone().nth(2).unwrap_or_default();
        let names = match after.next() {
            Some("cgroup") if options.split(',').any(|option| option == "memory") => "memory",
            Some("cgroup2") => "",
            _ => continue,
        };
        let Some(path) = path_of(names, own) else { continue };
        // Inside a container, only a part of the hierarchy may be mounted.
        let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
        let mount_point = Path::new(mount_point);
        let own_group = mount_point.join(inside.strip_prefix("/").unwrap_or(inside));
        let is_inside = |directory: &&Path| directory.starts_with(mount_point);
        directories.extend(own_group.ancestors().take_while(is_inside).map(Path::to_path_buf));
    }
    directories
}

/// The limit of one group; `None` if it has none, which the first version expresses by a very large number.
fn limit_of(group: &Path) -> Option<u64> {
    let files = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limits = files.iter().filter_map(|file| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok());
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_limits_counts() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str| home.path().join(name);
        for (group, file, value) in [
            ("one/a", "memory.limit_in_bytes", "50\n"),
            ("one/a/b", "memory.limit_in_bytes", "9223372036854771712\n"),
            ("two", "memory.max", "max\n"),
            ("two/x", "memory.max", "max\n"),
            ("two/x", "memory.high", "70\n"),
        ] {
            fs::create_dir_all(at(group)).expect("a directory");
            fs::write(at(group).join(file), value).expect("a file");
        }
        let mount = |name: &str, root: &str, kind: &str, options: &str| {
            format!("30 1 0:1 {root} {} rw shared:3 - {kind} {kind} {options}\n", at(name).display())
        };
        let (one, two) = (mount("one", "/", "cgroup", "rw,memory"), mount("two", "/", "cgroup2", "rw"));
        let part = mount("one/a", "/a", "cgroup", "rw,memory");
        let other = mount("one/a", "/", "cgroup", "rw,cpu");
        for (mounts, own, expected) in [
            (one.as_str(), "4:memory:/a/b\n0::/\n", Some(50)),
            (&one, "4:memory:/\n", None),
            (&part, "4:memory:/a/b\n", Some(50)),
            (&two, "0::/x/y\n", Some(70)),
            (&two, "0::/\n", None),
            (&format!("{other}{one}{two}"), "1:cpu:/\n4:memory:/a\n0::/x\n", Some(50)),
            (&other, "1:cpu:/a\n4:memory:/a\n", None),
            ("", "", None),
        ] {
            let groups = group_directories(mounts, own);
            let least = groups.iter().filter_map(|group| limit_of(group)).min();
            assert_eq!(least.filter(|&least| least < 1 << 40), expected, "{mounts} {own}");
        }
    }

    #[test]
    fn groups_are_found_where_they_are_usually_mounted() {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(home.path().join("a/b")).expect("a directory");
        let mount_point = home.path().to_str().expect("text");
        let magic = u64::try_from(statfs(home.path()).expect("a file system").f_type).expect("not negative");
        let at = |names: &[&str]| Some(names.iter().map(|name| home.path().join(name)).collect::<Vec<_>>());
        for (magic, own, expected) in [
            (magic, "4:memory:/a/b\n0::/\n", at(&["a/b", "a", ""])),
            (magic, "4:cpu,memory:/\n", at(&[""])),
            // A container, in which a part of the hierarchy is mounted.
            (magic, "4:memory:/outside/a/b\n", at(&["a/b", "a", ""])),
            (magic, "4:memory:/outside/c\n", at(&[""])),
            (magic, "4:cpu:/a\n", None),
            (magic + 1, "4:memory:/a/b\n", None),
        ] {
            let found = usual_directories(&[UsualPlace { mount_point, magic, names: "memory" }], own);
            assert_eq!(
                found.map(|found| found.iter().map(|path| path.components().collect()).collect()),
                expected,
                "{own}"
            );
        }
    }

    #[test]
    fn the_memory_of_the_machine_is_an_upper_bound() {
        assert_eq!(memory_of_machine("MemTotal:        2048 kB\nMemFree: 1 kB\n"), Some(2048 * 1024));
        assert_eq!(memory_of_machine("MemTotal: much"), None);
        assert!((1 << 20..u64::MAX).contains(&memory_limit_bytes()), "there is a machine");
    }
}
