//! Fragments and attributes.

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// An entry of the fragment table (section "Fragments").
    pub struct FragmentEntry: 16 {
        /// The start of the block.
        pub start_block: u64,
        /// Its size word.
        pub size: u32,
        /// Unused.
        pub unused: u32,
    }

    /// The header of the attribute id table, which precedes its list of blocks (section "Attributes").
    pub struct XattrIdTable: 16 {
        /// The start of the attributes' metadata blocks.
        pub xattr_table_start: u64,
        /// The number of sets.
        pub xattr_ids: u32,
        /// Unused.
        pub unused: u32,
    }

    /// An entry of the attribute id table: a set.
    pub struct XattrId: 16 {
        /// The reference of the first attribute; its block is relative to `xattr_table_start`.
        pub xattr: u64,
        /// The number of attributes.
        pub count: u32,
        /// Their length as the kernel adds it to `st_blocks`.
        pub size: u32,
    }

    /// An attribute. The name without its prefix follows, then an [`XattrVal`].
    pub struct XattrEntry: 4 {
        /// The prefix, and [`XATTR_VALUE_OUT_OF_LINE`](super::XATTR_VALUE_OUT_OF_LINE).
        pub kind: u16,
        /// The length of the name.
        pub size: u16,
    }

    /// An attribute's value. Its bytes follow, or a reference to an [`XattrVal`] elsewhere.
    pub struct XattrVal: 4 {
        /// The length of the bytes that follow.
        pub vsize: u32,
    }
}
