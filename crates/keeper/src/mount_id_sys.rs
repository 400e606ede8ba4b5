//! The numbers of mounts, and whether a mount exists, without reading the mount table.

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx},
    io::Errno,
};

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
        let request = Request { len: size_of::<Request>() as u32, spare: 0, mount: self.0, mask: 0 };
        let mut reply = [0_u64; 64];
        // SAFETY: the kernel reads the request, which has the layout and the length that it states, and writes at most the
        // stated number of bytes to the reply.
        let result = unsafe {
            libc::syscall(SYS_STATMOUNT, &raw const request, reply.as_mut_ptr(), size_of_val(&reply), 0 as libc::c_uint)
        };
        match result {
            0 => Some(true),
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT) => Some(false),
            _ => None,
        }
    }
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

fn stat(parent: BorrowedFd<'_>, name: &Path, wanted: StatxFlags) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    statx(parent, name, flags, wanted)
}

/// The ID of the mount of a file, if the kernel has unique ones.
fn id(stat: &Statx) -> Option<UniqueMountId> {
    (stat.stx_mask & UNIQUE_MOUNT_ID.bits() != 0).then_some(UniqueMountId(stat.stx_mnt_id))
}
