//! Whether the kernel may mount a kept image that came from a process which decodes images.
//!
//! The check decodes nothing, and contains no unsafe code. Whatever the file contains, it accepts only an image without features that
//! Floe does not render, whose structures are all in the file and follow the format, and whose data is within the devices.

use std::{fs::File, ops::ControlFlow, os::unix::fs::FileExt, sync::Arc};

use floe_erofs::{
    Erofs,
    check::{Check, DataRun},
    format::{
        FEATURE_COMPAT_MTIME, FEATURE_COMPAT_SB_CHKSUM, FEATURE_INCOMPAT_CHUNKED_FILE, FEATURE_INCOMPAT_COMPR_CFGS,
        FEATURE_INCOMPAT_DEVICE_TABLE, FEATURE_INCOMPAT_ZERO_PADDING, SUPER_OFFSET, SuperBlock,
    },
};
use floe_image::{
    BlockReader, Bytes, DecodedBlock, DeviceId, DeviceNumber, Error, FileSystem, Nid, Place, Result, StoredBlock,
};

use super::{
    KeptImage,
    algorithms::{Algorithms, algorithm_of},
};
use crate::geometry::{BLOCK_BYTES, BLOCK_LOG2, LARGE_BLOCK_COUNT};

/// The original, if it is a device of a kept image.
pub(super) const ORIGINAL: DeviceId = DeviceId(3);

/// The rules of the format that kept images break, by their first words: images and files state the numbers of blocks of the
/// original, for statfs(2) and stat(2). The kernel uses these numbers for nothing else.
const BLOCK_COUNT_RULES: [&str; 3] =
    ["data past the block count", "block count past the end of the image", "wrong number of compressed blocks"];

/// The rule of the format that files with common data in the original break.
const OVERLAP_RULE: &str = "data overlaps other data or metadata";

/// What the kernel may read and decode by itself in the original of a kept image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelRights {
    /// The length of the original in bytes; `None` if it is no device.
    pub original_len: Option<u64>,
    /// The algorithms that the kernel may decode.
    pub algorithms: Algorithms,
}

/// What else must hold if a user has the mount who is not root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserRules {
    /// The only user who may enter: the root directory admits nobody else, not even root.
    pub only_user: Option<u32>,
    /// Whether there may be device files: the mount must be `nodev` for good.
    pub permits_devices: bool,
}

/// The group of a root directory that admits one user alone. The kernel has no group with this number, and therefore lets no
/// capability override the permissions.
pub const NO_GROUP: u32 = u32::MAX;

/// The permissions of such a root directory.
pub const OWNER_ALONE: u16 = 0o700;

/// The prefix of extended attributes that security modules interpret, and the one of them that a mount without set-user-id programs
/// takes no notice of.
const LABEL_PREFIX: &[u8] = b"security.";
const CAPABILITY: &[u8] = b"security.capability";

/// Checks that the kernel may mount a kept image, with these rights, and with these rules if it is for a user. No other process may be
/// able to change the file. Time and memory are proportional to its length.
///
/// # Errors
/// It may not; the error is the first reason.
pub fn check_soundness(kept: &KeptImage, rights: KernelRights, rules: Option<UserRules>) -> Result<()> {
    let sources = Sources::new(kept, rights)?;
    check_superblock(&sources.superblock()?, rights)?;
    let sources: Arc<dyn BlockReader> = Arc::new(sources);
    let check = Check::open(Arc::clone(&sources))?;
    let mut fault = None;
    let mut report = |finding: floe_image::Finding| {
        // Files may share data in the original, which has no structures of the kept image.
        let is_shared_data = finding.place.device == ORIGINAL && finding.rule == OVERLAP_RULE;
        if !is_shared_data && !BLOCK_COUNT_RULES.iter().any(|rule| finding.rule.starts_with(rule)) {
            fault.get_or_insert(finding);
        }
    };
    let walked = check.walk(&mut report, &|| false);
    let mut run_fault = None;
    for part in walked.parts() {
        let mut note = |run: DataRun| {
            if let Err(error) = check_run(&run, rights) {
                run_fault.get_or_insert(error);
            }
            Ok(())
        };
        check.data(&walked, part, &mut note, &mut report);
    }
    match (fault, run_fault) {
        (None, None) => rules.map_or(Ok(()), |rules| rules.check(&Erofs::open(sources)?, walked.inodes())),
        (_, Some(error)) => Err(error),
        (Some(finding), None) => Err(Error::unsupported(format!("{}: {}", finding.place, finding.rule))),
    }
}

impl UserRules {
    fn check(self, file_system: &dyn FileSystem, inodes: impl Iterator<Item = Nid>) -> Result<()> {
        if let Some(user) = self.only_user {
            let root = file_system.attr(file_system.root())?;
            if (root.uid, root.gid, root.permissions) != (user, NO_GROUP, OWNER_ALONE) {
                return Err(Error::corrupt("a root directory that admits others", Place::inode(root.nid)));
            }
        }
        for nid in inodes {
            let attr = file_system.attr(nid)?;
            // 0:0 is no device: overlayfs marks removed files so.
            if attr.device != DeviceNumber::default() && !self.permits_devices {
                return Err(Error::unsupported("device files, which the owner of a user namespace could open"));
            }
            let mut has_label = false;
            file_system.xattrs(nid, &mut |xattr| {
                has_label = xattr.name.starts_with(LABEL_PREFIX) && xattr.name != CAPABILITY;
                if has_label { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            if has_label {
                return Err(Error::unsupported("labels of security modules, which are root's to give"));
            }
        }
        Ok(())
    }
}

/// Checks that a superblock announces nothing but what Floe renders.
fn check_superblock(superblock: &SuperBlock, rights: KernelRights) -> Result<()> {
    let compression = FEATURE_INCOMPAT_ZERO_PADDING | FEATURE_INCOMPAT_COMPR_CFGS;
    let incompat = superblock.feature_incompat & !(FEATURE_INCOMPAT_CHUNKED_FILE | FEATURE_INCOMPAT_DEVICE_TABLE);
    let algorithms = Algorithms::from_number(superblock.u1);
    let compresses = incompat == compression && !algorithms.is_empty() && rights.algorithms.contain(algorithms);
    let device_count = if rights.original_len.is_some() { 3 } else { 2 };
    let may_have = |is_right: bool, what: &'static str| {
        if is_right { Ok(()) } else { Err(Error::corrupt(what, Place::at(SUPER_OFFSET))) }
    };
    may_have(superblock.feature_compat & !(FEATURE_COMPAT_SB_CHKSUM | FEATURE_COMPAT_MTIME) == 0, "other features")?;
    may_have(compresses || (incompat == 0 && algorithms.is_empty()), "features or algorithms that are not permitted")?;
    may_have(superblock.extra_devices == device_count, "another number of devices")?;
    may_have(u32::from(superblock.blkszbits) == BLOCK_LOG2.into(), "another block size")?;
    may_have(superblock.dirblkbits == 0, "another size of directory blocks")?;
    may_have(superblock.packed_nid == 0, "a packed inode")?;
    may_have(superblock.xattr_prefix_count == 0, "prefixes of names of extended attributes")
}

/// Checks that file data is where it may be.
fn check_run(run: &DataRun, rights: KernelRights) -> Result<()> {
    let DataRun::Encoded(block) = run else { return Ok(()) };
    let is_permitted = algorithm_of(block).is_some_and(|number| rights.algorithms.has(number));
    if is_permitted && block.device == ORIGINAL && rights.original_len.is_some() {
        return Ok(());
    }
    let place = Place { nid: None, device: block.device, offset: Some(block.offset) };
    Err(Error::corrupt("a compressed block that the kernel may not decode", place))
}

/// The kept image, and the lengths of its devices: no structure may be there.
struct Sources {
    file: File,
    /// That of the kept image is the first.
    lens: Vec<u64>,
}

impl Sources {
    fn new(kept: &KeptImage, rights: KernelRights) -> Result<Self> {
        let io_error = |error| Error::io(DeviceId(0), 0, error);
        let file = kept.file.try_clone().map_err(io_error)?;
        let len = file.metadata().map_err(io_error)?.len();
        let small_len = u64::from(kept.header.index.image_free.max(1)) * BLOCK_BYTES;
        let devices = [u64::from(LARGE_BLOCK_COUNT) * BLOCK_BYTES, small_len];
        Ok(Self { file, lens: [len].into_iter().chain(devices).chain(rights.original_len).collect() })
    }

    fn superblock(&self) -> Result<SuperBlock> {
        let bytes = self.stored(DeviceId(0), SUPER_OFFSET, SuperBlock::SIZE)?;
        SuperBlock::from_prefix(&bytes).ok_or_else(|| Error::corrupt("no superblock", Place::at(SUPER_OFFSET)))
    }
}

impl BlockReader for Sources {
    fn device_count(&self) -> u16 {
        self.lens.len() as u16
    }

    fn device_len(&self, device: DeviceId) -> Result<u64> {
        let len = self.lens.get(usize::from(device.0)).copied();
        len.ok_or_else(|| Error::corrupt("no such device", Place { nid: None, device, offset: None }))
    }

    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes> {
        let end = u64::try_from(len).ok().and_then(|len| offset.checked_add(len));
        let is_there = device == DeviceId(0) && end.zip(self.lens.first()).is_some_and(|(end, len)| end <= *len);
        if len > <dyn BlockReader>::STORED_LEN_MAX || !is_there {
            let place = Place { nid: None, device, offset: Some(offset) };
            return Err(Error::corrupt("metadata outside of the kept image", place));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| Error::io(device, offset, error))?;
        Ok(bytes.into())
    }

    fn decoded(&self, _: &StoredBlock) -> Result<DecodedBlock> {
        Err(Error::unsupported("compressed metadata"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::empty_image;

    /// The superblock of an image that Floe would render without an original as a device.
    fn superblock() -> SuperBlock {
        let bytes = empty_image(Algorithms::default());
        let mut superblock = SuperBlock::from_prefix(&bytes[SUPER_OFFSET as usize..]).expect("it has one");
        superblock.feature_incompat = FEATURE_INCOMPAT_CHUNKED_FILE | FEATURE_INCOMPAT_DEVICE_TABLE;
        (superblock.extra_devices, superblock.u1) = (2, 0);
        superblock
    }

    #[test]
    fn the_superblock_announces_what_is_permitted() {
        type Change = fn(&mut SuperBlock);
        let compression = FEATURE_INCOMPAT_ZERO_PADDING | FEATURE_INCOMPAT_COMPR_CFGS;
        assert_eq!(compression, 3);
        let none = KernelRights::default();
        let plain = KernelRights { original_len: Some(1 << 20), ..none };
        let lz4 = KernelRights { algorithms: Algorithms::LZ4, ..plain };
        let rows: [(Change, KernelRights, bool); 15] = [
            (|_| {}, none, true),
            (|_| {}, plain, false),
            (|it| it.extra_devices = 3, plain, true),
            (|it| it.extra_devices = 3, none, false),
            (|it| (it.extra_devices, it.feature_incompat, it.u1) = (3, it.feature_incompat | 3, 1), lz4, true),
            (|it| (it.extra_devices, it.feature_incompat, it.u1) = (3, it.feature_incompat | 3, 1), plain, false),
            (|it| (it.extra_devices, it.feature_incompat, it.u1) = (3, it.feature_incompat | 3, 9), lz4, false),
            (|it| it.feature_incompat |= 1, none, false),
            (|it| it.feature_incompat |= 0x20, none, false),
            (|it| it.feature_incompat |= 0x80, none, false),
            (|it| it.feature_compat |= 0x4, none, false),
            (|it| it.blkszbits = 9, none, false),
            (|it| it.packed_nid = 1, none, false),
            (|it| it.xattr_prefix_count = 1, none, false),
            (|it| it.dirblkbits = 1, none, false),
        ];
        for (index, (change, rights, is_permitted)) in rows.into_iter().enumerate() {
            let mut changed = superblock();
            change(&mut changed);
            assert_eq!(check_superblock(&changed, rights).is_ok(), is_permitted, "row {index}");
        }
    }
}
