//! Which users and groups of the machine the users and groups of a container are.

use std::{
    fmt::Write as _,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use crate::{owners_sys::map_owners, user_namespace_sys::NamespaceHolder};

/// The maximum number of ranges of a mapping, as in the kernel.
const RANGES_MAX: usize = 340;

/// Which users and groups of the machine the users and groups of a container are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdMapping {
    users: Vec<IdRange>,
    groups: Vec<IdRange>,
}

/// Ids that follow each other, in the container and on the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct IdRange {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdMapping {
    /// Parses ranges in the form `CONTAINER:MACHINE:COUNT`, of which several are separated by commas.
    ///
    /// # Errors
    /// One is none; the text is the reason.
    pub fn parse(users: &str, groups: &str) -> Result<Self, String> {
        Ok(Self { users: ranges(users)?, groups: ranges(groups)? })
    }

    /// The user and the group of the machine that a user and a group of the container are. The kernel shows files of others as those
    /// of `nobody`.
    pub fn outside(&self, user: u32, group: u32) -> Option<(u32, u32)> {
        let find = |ranges: &[IdRange], id: u32| ranges.iter().find_map(|range| range.outside(id));
        Some((find(&self.users, user)?, find(&self.groups, group)?))
    }

    /// A user namespace with this mapping, which lives as long as the descriptor.
    ///
    /// # Errors
    /// No process can be started, or the kernel refuses the mapping.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        let holder = NamespaceHolder::start()?;
        fs::write(holder.file("uid_map"), text(&self.users))?;
        fs::write(holder.file("gid_map"), text(&self.groups))?;
        Ok(fs::File::open(holder.file("ns/user"))?.into())
    }

    /// Shows the directory `source`, without mounts below it, on the directory `target`: there, the owners of its files are the users
    /// of the machine that the mapping names for them. `namespace` is that of the mapping.
    ///
    /// # Errors
    /// The file system of `source` does not support it, or the kernel refuses the mount.
    pub fn mount(namespace: &OwnedFd, source: &Path, target: &Path) -> io::Result<()> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, source, flags)?;
        map_owners(tree.as_fd(), namespace.as_fd())?;
        Ok(move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }
}

impl IdRange {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(':').map(|number| number.parse::<u32>().ok());
        let range = Self { inside: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? };
        let is_whole = range.count > 0
            && range.inside.checked_add(range.count).is_some()
            && range.outside.checked_add(range.count).is_some();
        (numbers.next().is_none() && is_whole).then_some(range)
    }

    fn outside(&self, id: u32) -> Option<u32> {
        let place = id.checked_sub(self.inside).filter(|place| *place < self.count)?;
        self.outside.checked_add(place)
    }
}

fn ranges(text: &str) -> Result<Vec<IdRange>, String> {
    let wrong = || format!("'{:.64}' is no mapping of ids, such as 0:100000:65536", text.escape_debug());
    let ranges: Option<Vec<IdRange>> = text.split(',').take(RANGES_MAX + 1).map(IdRange::parse).collect();
    ranges.filter(|ranges| ranges.len() <= RANGES_MAX).ok_or_else(wrong)
}

/// The ranges as the kernel reads them (user_namespaces(7)).
fn text(ranges: &[IdRange]) -> String {
    ranges.iter().fold(String::new(), |mut text, IdRange { inside, outside, count }| {
        let _ = writeln!(text, "{inside} {outside} {count}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn mappings_are_parsed() {
        for (given, user, expected) in [
            ("0:100000:65536", 0, Some(100_000)),
            ("0:100000:65536", 65_535, Some(165_535)),
            ("0:100000:65536", 65_536, None),
            ("0:1000:1,1:100000:9", 1, Some(100_000)),
            ("5:7:1", 4, None),
        ] {
            let mapping = IdMapping::parse(given, "0:0:4294967295").expect(given);
            assert_eq!(mapping.outside(user, 3), expected.map(|user| (user, 3)), "{given} {user}");
        }
        let many = vec!["0:0:1"; RANGES_MAX + 1].join(",");
        for wrong in ["", "0", "0:1", "0:1:2:3", "0:1:0", "-1:0:1", "0:4294967295:2", "4294967295:0:1", "0:1:2,", &many]
        {
            assert!(IdMapping::parse(wrong, "0:0:1").is_err(), "{wrong}");
            assert!(IdMapping::parse("0:0:1", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_mapping_has_a_namespace() {
        if !geteuid().is_root() {
            return;
        }
        let mapping = IdMapping::parse("0:100000:65536", "0:200000:65536").expect("valid");
        let namespace = mapping.namespace().expect("root may create one");
        let own = fs::read_link("/proc/self/ns/user").expect("there is /proc");
        let made = fs::read_link(format!("/proc/self/fd/{}", namespace.as_raw_fd())).expect("open");
        assert_ne!(own, made);
    }
}
