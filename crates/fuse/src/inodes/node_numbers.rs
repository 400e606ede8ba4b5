//! Which inode each of the kernel's node numbers means.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};

use floe_image::{Attr, Error, FileSystem, Nid, Place, Result};

/// The node number of the root, fixed by the protocol.
pub(crate) const ROOT_NODE: u64 = 1;

/// Node numbers of the inodes whose own numbers are 0 and 1, which mean "none" and "the root" to the kernel. No inode of
/// either format has such a number: EROFS finds an inode at 32 times its number, SquashFS numbers have 32 bits.
const ALIASES: std::ops::RangeInclusive<u64> = ALIAS_OF_0..=ALIAS_OF_0 + 1;

const ALIAS_OF_0: u64 = 0x7fff_ffff_ffff_fffe;

const SHARD_COUNT: usize = 16;

/// Which inode each of the kernel's node numbers means.
///
/// An inode's node number is its inode number, because the crate `fuser` gives both the same field in a reply. Where a
/// format cannot tell an inode from its number, the numbers are learnt as the kernel is told of inodes, and forgotten
/// when the kernel says so: the table holds what the kernel holds.
pub(crate) struct NodeNumbers {
    file_system: Arc<dyn FileSystem>,
    root: Nid,
    /// None where the format tells the inode from the number.
    learnt: Option<[Mutex<HashMap<u64, Learnt>>; SHARD_COUNT]>,
}

struct Learnt {
    nid: Nid,
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
}

impl NodeNumbers {
    /// The numbers of a file system whose root has this inode number.
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, root_inode_number: u64) -> Self {
        let root = file_system.root();
        let learnt = file_system.nid_of(root_inode_number).is_none().then(Default::default);
        Self { file_system, root, learnt }
    }

    /// The inode that a node number means, or `None` if the kernel was not told of such.
    pub(crate) fn nid(&self, node: u64) -> Option<Nid> {
        if node == ROOT_NODE {
            return Some(self.root);
        }
        match &self.learnt {
            None => self.file_system.nid_of(inode_number(node)),
            Some(shards) => lock(shards, node).get(&node).map(|learnt| learnt.nid),
        }
    }

    /// The node number of an inode, whether the kernel was told of it or not.
    ///
    /// # Errors
    /// The inode cannot be read.
    pub(crate) fn node_of(&self, nid: Nid) -> Result<u64> {
        if nid == self.root {
            return Ok(ROOT_NODE);
        }
        self.file_system.attr(nid).map(|attr| node_of(attr.inode_number))
    }

    /// The node number of an inode, which the kernel is about to be told of.
    ///
    /// # Errors
    /// Another inode has the same number.
    pub(crate) fn learn(&self, attr: &Attr) -> Result<u64> {
        let Attr { nid, inode_number, .. } = *attr;
        if nid == self.root {
            return Ok(ROOT_NODE);
        }
        let node = node_of(inode_number);
        let is_its_own = match &self.learnt {
            None => self.file_system.nid_of(inode_number) == Some(nid) && !ALIASES.contains(&inode_number),
            Some(shards) => {
                let mut shard = lock(shards, node);
                let learnt = shard.entry(node).or_insert(Learnt { nid, lookups: 0 });
                learnt.lookups += u64::from(learnt.nid == nid);
                learnt.nid == nid
            }
        };
        if is_its_own { Ok(node) } else { Err(Error::corrupt("inode number of another inode", Place::inode(nid))) }
    }

    /// Takes note that the kernel is about to be told of a node which it will refuse, and then say that it has forgotten
    /// it.
    pub(crate) fn owe_forget(&self, node: u64, nid: Nid) {
        if let Some(shards) = &self.learnt {
            lock(shards, node).entry(node).or_insert(Learnt { nid, lookups: 0 }).lookups += 1;
        }
    }

    /// Takes note that the kernel has forgotten a node as many times as it was told of it.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let Some(shards) = &self.learnt else { return };
        if let Entry::Occupied(mut learnt) = lock(shards, node).entry(node) {
            learnt.get_mut().lookups = learnt.get().lookups.saturating_sub(lookups);
            if learnt.get().lookups == 0 {
                learnt.remove();
            }
        }
    }

    /// Whether a node number is not the inode number of its inode, so that a reply to a lookup shows the wrong one.
    pub(crate) fn is_alias(node: u64) -> bool {
        node == ROOT_NODE || ALIASES.contains(&node)
    }
}

/// The node of an inode number that is not the root's.
fn node_of(inode_number: u64) -> u64 {
    match inode_number {
        0 | ROOT_NODE => ALIAS_OF_0 + inode_number,
        number => number,
    }
}

/// The inode number of a node that is not the root.
fn inode_number(node: u64) -> u64 {
    if ALIASES.contains(&node) { node - ALIAS_OF_0 } else { node }
}

fn lock<T>(shards: &[Mutex<T>; SHARD_COUNT], node: u64) -> std::sync::MutexGuard<'_, T> {
    shards[(node % SHARD_COUNT as u64) as usize].lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{ops::ControlFlow, sync::Arc};

    use floe_image::{
        BlockReader, ByteRange, DeviceNumber, DirectoryCursor, Dirent, Extent, FileSystemInfo, FileType, Timestamp,
    };

    use super::*;

    /// A format without inodes, which tells nids from numbers or not.
    struct Numbering {
        tells: bool,
    }

    impl FileSystem for Numbering {
        fn with_reader(self: Arc<Self>, _: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
            self
        }

        fn root(&self) -> Nid {
            Nid(36)
        }

        fn info(&self) -> FileSystemInfo {
            unreachable!("numbers do not depend on it")
        }

        fn attr(&self, nid: Nid) -> Result<Attr> {
            Err(Error::corrupt("no inodes", Place::inode(nid)))
        }

        fn nid_of(&self, inode_number: u64) -> Option<Nid> {
            self.tells.then_some(Nid(inode_number))
        }

        fn lookup(&self, _: Nid, _: &[u8]) -> Result<Option<Nid>> {
            Ok(None)
        }

        fn read_dir(&self, _: Nid, _: DirectoryCursor, _: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>) -> Result<()> {
            Ok(())
        }

        fn read_link(&self, _: Nid) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn xattr(&self, _: Nid, _: &[u8]) -> Result<Option<Vec<u8>>> {
            Ok(None)
        }

        fn xattr_names(&self, _: Nid) -> Result<Vec<Vec<u8>>> {
            Ok(Vec::new())
        }

        fn map(&self, _: Nid, _: ByteRange, _: &mut Vec<Extent>) -> Result<()> {
            Ok(())
        }
    }

    fn attr(nid: u64, inode_number: u64) -> Attr {
        Attr {
            nid: Nid(nid),
            inode_number,
            file_type: FileType::Regular,
            permissions: 0,
            uid: 0,
            gid: 0,
            size: 0,
            link_count: 1,
            modified: Timestamp::default(),
            device: DeviceNumber::default(),
            blocks_512: 0,
        }
    }

    #[test]
    fn numbers_that_tell_their_inode_need_no_table() {
        let numbers = NodeNumbers::new(Arc::new(Numbering { tells: true }), 36);
        assert!(numbers.learnt.is_none());
        for (nid, node) in [(36, 1), (0, ALIAS_OF_0), (1, ALIAS_OF_0 + 1), (2, 2), (1 << 40, 1 << 40)] {
            assert_eq!(numbers.learn(&attr(nid, nid)).expect("a number"), node);
            assert_eq!(numbers.nid(node), Some(Nid(nid)));
        }
    }

    #[test]
    fn learnt_numbers_live_as_long_as_the_kernel_knows_them() {
        let numbers = NodeNumbers::new(Arc::new(Numbering { tells: false }), 7);
        assert_eq!(numbers.learn(&attr(36, 7)).expect("the root"), ROOT_NODE);
        for (nid, number) in [(500, 1), (501, 0), (502, 7), (503, u64::from(u32::MAX))] {
            assert_eq!(numbers.nid(number).filter(|_| number != ROOT_NODE), None);
            let node = numbers.learn(&attr(nid, number)).expect("a free number");
            assert_eq!(numbers.learn(&attr(nid, number)).expect("the same inode"), node);
            assert!(numbers.learn(&attr(nid + 100, number)).is_err(), "another inode");
            numbers.forget(node, 1);
            assert_eq!(numbers.nid(node), Some(Nid(nid)));
            numbers.forget(node, 1);
            assert_eq!(numbers.nid(node), None);
        }
        let node = numbers.learn(&attr(600, 600)).expect("a free number");
        numbers.owe_forget(node, Nid(601));
        numbers.forget(node, 1);
        assert_eq!(numbers.nid(node), Some(Nid(600)), "one lookup is left");
        numbers.forget(ROOT_NODE, 1);
        assert_eq!(numbers.nid(ROOT_NODE), Some(Nid(36)));
    }
}
