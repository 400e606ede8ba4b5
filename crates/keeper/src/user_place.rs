//! The directories on which users may mount, by the rules of fusermount3.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{Access, AtFlags, FileType, Mode, StatxFlags, accessat, fstatfs, statx},
    io::Errno,
};

use crate::{
    directory::Directory,
    mount_id_sys::{DONT_SYNC, MOUNT_ID},
};

/// The types of file systems with directories on which fusermount3 lets users mount: not those of the kernel's own files, where a
/// mount could mislead programs. The numbers are those of statfs(2).
const FILE_SYSTEMS: [u32; 34] = [
    0x6175_6673, // aufs
    0x0000_0187, // autofs
    0xca45_1a4e, // bcachefs
    0x9123_683e, // Btrfs
    0x00c3_6400, // Ceph
    0xff53_4d42, // CIFS
    0x0000_f15f, // eCryptfs
    0x2011_bab0, // exFAT
    0x0000_ef53, // ext2, ext3, ext4
    0xf2f5_2010, // F2FS
    0x6573_5546, // FUSE
    0x0116_1970, // GFS2
    0x4750_4653, // GPFS
    0x0000_482b, // HFS+
    0x0000_72b6, // JFFS2
    0x3153_464a, // JFS
    0x0bd0_0bd0, // Lustre
    0x0000_4d44, // FAT
    0x0000_564c, // NCP
    0x0000_6969, // NFS
    0x0000_3434, // NILFS
    0x5346_544e, // NTFS
    0x7366_746e, // NTFS3
    0x5346_414f, // AFS
    0x794c_7630, // OverlayFS
    0xaad7_aaea, // PanFS
    0x5265_4973, // ReiserFS
    0xfe53_4d42, // SMB2
    0x7371_7368, // SquashFS
    0x0102_1994, // tmpfs
    0x2405_1905, // UBIFS
    0x5846_5342, // XFS
    0x2fc1_2fc1, // ZFS
    0x8584_58f6, // ramfs
];

/// Checks that the user whose rights over files this thread has may mount on a directory, which that user has opened: it belongs to
/// the user, or the user may write there and it is not sticky; nothing is mounted on it; and its file system is one of users' files.
///
/// # Errors
/// The user may not. The text is the reason, in one line.
pub(crate) fn check(directory: &Directory, user: u32) -> io::Result<()> {
    let refused = |reason: &str| Err(io::Error::other(reason.to_owned()));
    let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::INO;
    // The program that serves the directory may be the user's, and hang.
    let stat = statx(directory, c"", AtFlags::EMPTY_PATH | DONT_SYNC, wanted)?;
    let mode = Mode::from_raw_mode(stat.stx_mode.into());
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
        return refused("it is not a directory");
    }
    if stat.stx_uid != user && mode.contains(Mode::SVTX) {
        return refused("the directory is sticky, and does not belong to this user");
    }
    match accessat(directory, c"", Access::WRITE_OK, AtFlags::EMPTY_PATH | AtFlags::EACCESS) {
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => return refused("this user may not write to the directory"),
        checked => checked?,
    }
    let kind = fstatfs(directory)?.f_type as u64;
    if !FILE_SYSTEMS.iter().any(|permitted| u64::from(*permitted) == kind & u64::from(u32::MAX)) {
        return refused("users may not mount on directories of this type of file system");
    }
    if !leads_to(directory) {
        return refused("something is mounted on the directory, or it has another name by now");
    }
    Ok(())
}

/// Whether the name of an open directory leads to it, and not to a mount on it.
fn leads_to(directory: &Directory) -> bool {
    let Ok(name) = directory.first_name_in_parent() else { return false };
    let open = identity(directory.as_fd(), Path::new(""));
    open.is_some() && open == identity(name.parent(), name.name())
}

/// The identity of a file and of its mount.
fn identity(parent: BorrowedFd<'_>, path: &Path) -> Option<(u32, u32, u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    let stat = statx(parent, path, flags, StatxFlags::INO | MOUNT_ID).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino, stat.stx_mnt_id))
}
