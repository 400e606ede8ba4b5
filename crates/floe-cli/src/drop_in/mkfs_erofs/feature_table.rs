//! The extended options of `-E`, and what becomes of each here.

use super::option_table::Fate::{self, Idle, Refused, Taken};

/// An extended option.
pub(super) struct FeatureRow {
    pub(super) name: &'static str,
    /// How it is written.
    pub(super) form: &'static str,
    /// What it asks for.
    pub(super) about: &'static str,
    pub(super) fate: Fate,
    /// Whether it may have a value.
    pub(super) has_value: bool,
}

const fn row(name: &'static str, form: &'static str, about: &'static str, fate: Fate) -> FeatureRow {
    FeatureRow { name, form, about, fate, has_value: false }
}

const fn valued(name: &'static str, form: &'static str, about: &'static str, fate: Fate) -> FeatureRow {
    FeatureRow { name, form, about, fate, has_value: true }
}

/// The extended options: first those of `--zfeature-bits`, from bit 0 on.
pub(super) const FEATURES: &[FeatureRow] = &[
    row("legacy-compress", "[^]legacy-compress", "use full indexes instead of compact ones", Taken),
    row("ztailpacking", "[^]ztailpacking", "put the small ends of compressed files behind their inodes", Taken),
    valued("fragments", "[^]fragments[=#]", "pack the ends of files together, in pclusters of # bytes", Taken),
    valued("all-fragments", "[^]all-fragments[=#]", "pack whole files together, in pclusters of # bytes", Taken),
    row("dedupe", "[^]dedupe", "store equal data once", Taken),
    valued("fragdedupe", "[^]fragdedupe[=<full|inode>]", "store equal fragments once", Idle("that is always done")),
    row("48bit", "[^]48bit", "the layout for more than 2^32 blocks", Taken),
    row(
        "dot-omitted",
        "[^]dot-omitted",
        "directories without an entry for themselves",
        Refused("each directory names itself", &[]),
    ),
    row("force-inode-compact", "force-inode-compact", "short inodes, which all have the build time", Taken),
    row("force-inode-extended", "force-inode-extended", "long inodes", Taken),
    row("nosbcrc", "nosbcrc", "no checksum of the superblock", Taken),
    row("inline_data", "[^]inline_data", "put the ends of uncompressed files behind their inodes", Taken),
    row("noinline_data", "noinline_data", "put them into blocks", Taken),
    row("force-inode-blockmap", "force-inode-blockmap", "chunk maps of block numbers", Taken),
    row("force-chunk-indexes", "force-chunk-indexes", "chunk maps of full records", Taken),
    row("xattr-name-filter", "[^]xattr-name-filter", "filters that tell which attributes are absent (default)", Taken),
    row(
        "plain-xattr-prefixes",
        "plain-xattr-prefixes",
        "attribute prefixes outside of the packed inode and the metabox",
        Idle("that is where they are"),
    ),
];
