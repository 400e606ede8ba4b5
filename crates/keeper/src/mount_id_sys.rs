//! The numbers of mounts, and whether a mount exists, without reading the mount table.

use std::{
    ffi::{CStr, OsStr},
    fs, io,
    mem::offset_of,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxAttributes, StatxFlags, openat, statx},
    io::Errno,
};

use crate::table::{is_front, is_fuse};

/// `STATX_MNT_ID_UNIQUE` of Linux 6.8: requests the unique ID of the mount.
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// `AT_STATX_DONT_SYNC`: statx reports what is known. rustix has no name for it with musl.
pub(crate) const DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);

/// `STATX_MNT_ID` of Linux 5.8: requests the number that the mount has in the mount table.
pub(crate) const MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);

/// statmount(2) of Linux 6.8 has the same number on all architectures; the C libraries do not define it yet.
const SYS_STATMOUNT: libc::c_long = 457;

/// The unique ID of a mount. The kernel gives it to no other mount until the machine is restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UniqueMountId(u64);

/// The fields that statmount(2) is asked for: `STATMOUNT_SB_BASIC`, `_MNT_BASIC`, `_FS_TYPE`, and `_SB_SOURCE` of Linux 6.13.
const SB_BASIC: u64 = 0x1;
const MNT_BASIC: u64 = 0x2;
const FS_TYPE: u64 = 0x20;
const SB_SOURCE: u64 = 0x200;

/// The maximum number of bytes of the strings in a reply.
const STRING_BYTES_MAX: usize = 8 << 10;

/// What the kernel says about one mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MountFacts {
    /// The number of the mount in the table.
    pub(crate) id: u32,
    /// The device number of its files.
    pub(crate) device: (u32, u32),
    /// Whether a program serves it: a FUSE mount or a front.
    pub(crate) is_served: bool,
}

/// The beginning of a `struct statmount`; strings are at their offsets from its end.
#[repr(C)]
struct Reply {
    size: u32,
    options: u32,
    /// The fields that the kernel has filled in.
    mask: u64,
    device_major: u32,
    device_minor: u32,
    magic: u64,
    flags: u32,
    file_system: u32,
    unique_id: u64,
    parent_unique_id: u64,
    id: u32,
    parent_id: u32,
    /// Fields that are not asked for.
    others: [u64; 7],
    subtype: u32,
    source: u32,
    /// Fields that are not asked for, and room for those of later kernels.
    rest: [u64; 48],
    strings: [u8; STRING_BYTES_MAX],
}

const _: () = {
    assert!(offset_of!(Reply, file_system) == 36 && offset_of!(Reply, id) == 56);
    assert!(offset_of!(Reply, source) == 124 && offset_of!(Reply, strings) == 512);
};

/// A `struct mnt_id_req`.
#[repr(C)]
struct Request {
    len: u32,
    spare: u32,
    mount: u64,
    /// The requested fields.
    mask: u64,
}

impl UniqueMountId {
    /// The ID of the topmost mount on a name in a directory; `None` if the kernel has no unique IDs. Does not wait for the
    /// program that serves the mount.
    pub(crate) fn of(parent: BorrowedFd<'_>, name: &Path) -> Option<Self> {
        id(&stat(parent, name, UNIQUE_MOUNT_ID).ok()?)
    }

    /// The ID as a number.
    pub(crate) fn to_number(self) -> u64 {
        self.0
    }

    /// The ID with this number.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Whether the directory leads to the mount; `None` if this cannot be determined. Does not wait for the program that serves
    /// the mount.
    pub(crate) fn is_on(self, directory: &Path) -> Option<bool> {
        match stat(CWD, directory, UNIQUE_MOUNT_ID) {
            Ok(stat) => Some(id(&stat)? == self),
            // Something else is mounted on a directory above.
            Err(Errno::NOENT | Errno::NOTDIR) => Some(false),
            Err(_) => None,
        }
    }

    /// Whether the mount exists in the mount namespace of this thread; `None` if the kernel has no statmount(2), or
    /// this process may not call it. The time does not depend on the number of mounts.
    pub(crate) fn is_mounted(self) -> Option<bool> {
        match self.ask(0) {
            Ok(_) => Some(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Some(false),
            Err(_) => None,
        }
    }

    /// What the kernel says about the mount; `None` if it says less, or nothing. The time does not depend on the number of mounts.
    pub(crate) fn facts(self) -> Option<MountFacts> {
        let reply = self.ask(SB_BASIC | MNT_BASIC | FS_TYPE | SB_SOURCE).ok()?;
        let has = |field: u64| reply.mask & field == field;
        let text = |start: u32| Some(CStr::from_bytes_until_nul(reply.strings.get(start as usize..)?).ok()?.to_bytes());
        if !has(SB_BASIC | MNT_BASIC | FS_TYPE) {
            return None;
        }
        // The subtype of FUSE is a string of its own.
        let is_served = match std::str::from_utf8(text(reply.file_system)?).ok()? {
            file_system if is_fuse(file_system) => true,
            file_system @ "erofs" if has(SB_SOURCE) => is_front(file_system, OsStr::from_bytes(text(reply.source)?)),
            "erofs" => return None,
            _ => false,
        };
        Some(MountFacts { id: reply.id, device: (reply.device_major, reply.device_minor), is_served })
    }

    /// Asks for fields of the mount.
    fn ask(self, mask: u64) -> io::Result<Box<Reply>> {
        let request = Request { len: size_of::<Request>() as u32, spare: 0, mount: self.0, mask };
        let mut reply = Box::new(Reply {
            size: 0,
            options: 0,
            mask: 0,
            device_major: 0,
            device_minor: 0,
            magic: 0,
            flags: 0,
            file_system: 0,
            unique_id: 0,
            parent_unique_id: 0,
            id: 0,
            parent_id: 0,
            others: [0; 7],
            subtype: 0,
            source: 0,
            rest: [0; 48],
            strings: [0; STRING_BYTES_MAX],
        });
        // SAFETY: the kernel reads the request, which has the layout and the length that it states, and writes at most the
        // stated number of bytes to the reply, which consists of plain numbers.
        let result = unsafe {
            libc::syscall(SYS_STATMOUNT, &raw const request, &raw mut *reply, size_of::<Reply>(), 0 as libc::c_uint)
        };
        if result == 0 { Ok(reply) } else { Err(io::Error::last_os_error()) }
    }
}

/// Whether the topmost mount on a name, or the file under it, is the root of a mount; `None` if this cannot be determined. Does not
/// wait for the program that serves the mount.
pub(crate) fn is_mount_root(parent: BorrowedFd<'_>, name: &Path) -> Option<bool> {
    let stat = stat(parent, name, StatxFlags::empty()).ok()?;
    let is_known = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    is_known.then(|| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The mount ID in mountinfo of the topmost mount on a name; `None` if this cannot be determined. Does not wait for
/// the program that serves the mount.
pub(crate) fn mount_id(parent: BorrowedFd<'_>, name: &Path) -> Option<u32> {
    let by_stat = stat(parent, name, MOUNT_ID).ok().filter(|stat| stat.stx_mask & MOUNT_ID.bits() != 0);
    by_stat.and_then(|stat| u32::try_from(stat.stx_mnt_id).ok()).or_else(|| {
        // The mount may be one of another user, which reports nothing, or the kernel may be older.
        let file = openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
        facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
    })
}

/// The device number of an open file, as far as the kernel knows it without asking the program that serves the mount.
pub(crate) fn device_of(file: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let stat = statx(file, c"", AtFlags::EMPTY_PATH | DONT_SYNC, StatxFlags::empty()).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

fn stat(parent: BorrowedFd<'_>, name: &Path, wanted: StatxFlags) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    statx(parent, name, flags, wanted)
}

/// The ID of the mount of a file, if the kernel has unique ones.
fn id(stat: &Statx) -> Option<UniqueMountId> {
    (stat.stx_mask & UNIQUE_MOUNT_ID.bits() != 0).then_some(UniqueMountId(stat.stx_mnt_id))
}
