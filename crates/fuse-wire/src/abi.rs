//! The structures of the protocol, with the names and fields of the kernel's header `linux/fuse.h`.
//!
//! Numbers are in native byte order. The sizes of the structures are checked at compile time.
#![allow(missing_docs, reason = "names and fields are those of linux/fuse.h")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;

/// The oldest supported minor version: Linux 5.4.
pub const MINOR_MIN: u32 = 31;

/// The newest supported minor version: Linux 6.18.
pub const MINOR: u32 = 45;

/// The least size of a buffer for requests that the kernel accepts, in bytes.
pub const READ_BUFFER_BYTES_MIN: usize = 8192;

/// The bit of [`InHeader::unique`] that marks a resent request.
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// The flag of [`GetattrIn::getattr_flags`] that makes `fh` valid.
pub const GETATTR_FH: u32 = 1 << 0;

/// The flag of [`NotifyInvalEntryOut::flags`] that requests revalidation of the name instead of its removal.
pub const EXPIRE_ONLY: u32 = 1 << 0;

macro_rules! structures {
    ($($(#[$attribute:meta])* $name:ident = $size:literal { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            pub struct $name { $(pub $field: $kind),* }
            const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() <= 8);
        )*
        /// The name, size and field offsets of each structure.
        #[doc(hidden)]
        pub const LAYOUT: &[(&str, usize, &[(&str, usize)])] = &[
            $((stringify!($name), $size, &[$((stringify!($field), std::mem::offset_of!($name, $field))),*])),*
        ];
    };
}

structures! {
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    Kstatfs = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    InitIn = 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    ForgetIn = 8 { nlookup: u64 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    StatfsOut = 80 { st: Kstatfs }
    GetxattrIn = 8 { size: u32, padding: u32 }
    GetxattrOut = 8 { size: u32, padding: u32 }
    AccessIn = 8 { mask: u32, padding: u32 }
    InterruptIn = 8 { unique: u64 }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut = 8 { offset: u64 }
    Dirent = 24 { ino: u64, off: u64, namelen: u32, r#type: u32 }
    Direntplus = 152 { entry_out: EntryOut, dirent: Dirent }
    NotifyInvalInodeOut = 24 { ino: u64, off: i64, len: i64 }
    NotifyInvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32 }
    NotifyDeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveOut = 32 { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieveIn = 40 { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64 }
}
