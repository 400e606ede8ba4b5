//! Extended attributes (docs/format/erofs.md, Extended attributes).

use super::raw_structs;

/// `e_name_index`: no prefix; the entry holds the whole name.
pub const XATTR_INDEX_NONE: u8 = 0;
/// `e_name_index`: `user.`
pub const XATTR_INDEX_USER: u8 = 1;
/// `e_name_index`: `system.posix_acl_access`
pub const XATTR_INDEX_POSIX_ACL_ACCESS: u8 = 2;
/// `e_name_index`: `system.posix_acl_default`
pub const XATTR_INDEX_POSIX_ACL_DEFAULT: u8 = 3;
/// `e_name_index`: `trusted.`
pub const XATTR_INDEX_TRUSTED: u8 = 4;
/// `e_name_index`: `lustre.`; never used.
pub const XATTR_INDEX_LUSTRE: u8 = 5;
/// `e_name_index`: `security.`
pub const XATTR_INDEX_SECURITY: u8 = 6;
/// `e_name_index`: the lower bits are the number of a long prefix.
pub const XATTR_LONG_PREFIX: u8 = 0x80;
/// The lower bits of `e_name_index`.
pub const XATTR_LONG_PREFIX_MASK: u8 = 0x7f;
/// The seed of the filter's xxh32; the name index is added to it.
pub const XATTR_FILTER_SEED: u32 = 0x25BB_E08F;
/// The size of the filter in bits.
pub const XATTR_FILTER_BITS: u32 = 32;
/// The initial value of the filter: every name is absent.
pub const XATTR_FILTER_DEFAULT: u32 = u32::MAX;
/// The alignment of entries in bytes.
pub const XATTR_ALIGN: u64 = 4;

raw_structs! {
    /// The header of the xattr body, which follows the inode. The 4-byte numbers of shared xattrs come next, then the
    /// inline entries.
    pub struct XattrIbodyHeader: 12 {
        /// The bloom filter: a set bit means that no name with that hash exists.
        pub h_name_filter: u32,
        /// The number of shared xattrs of the inode.
        pub h_shared_count: u8,
        /// Zero.
        pub h_reserved2: [u8; 7],
    }

    /// The header of an xattr entry. The name and the value follow.
    pub struct XattrEntry: 4 {
        /// The length of the name without its prefix, in bytes.
        pub e_name_len: u8,
        /// The prefix, an `XATTR_INDEX_` number.
        pub e_name_index: u8,
        /// The length of the value in bytes.
        pub e_value_size: u16,
    }
}
