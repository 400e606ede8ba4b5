//! The extended options of `-E`, and how this program treats them.

use super::option_table::Fate::{self, Idle, Refused, Taken};

/// An extended option.
pub(super) struct FeatureRow {
    pub(super) name: &'static str,
    /// The notation of the option with its value.
    pub(super) form: &'static str,
    /// The meaning of the option.
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
    row("ztailpacking", "[^]ztailpacking", "store small ends of compressed files behind their inodes", Taken),
    valued("fragments", "[^]fragments[=#]", "pack the ends of files together, in pclusters of # bytes", Taken),
    valued("all-fragments", "[^]all-fragments[=#]", "pack whole files together, in pclusters of # bytes", Taken),
    row("dedupe", "[^]dedupe", "store equal data once", Taken),
    valued("fragdedupe", "[^]fragdedupe[=<full|inode>]", "store equal fragments once", Idle("always on")),
    row("48bit", "[^]48bit", "use the layout for more than 2^32 blocks", Taken),
    row(
        "dot-omitted",
        "[^]dot-omitted",
        "directories without an entry for themselves",
        Refused("each directory has an entry for itself", &["^dot-omitted"]),
    ),
    row("force-inode-compact", "force-inode-compact", "use compact inodes, which all have the build time", Taken),
    row("force-inode-extended", "force-inode-extended", "long inodes", Taken),
    row("nosbcrc", "nosbcrc", "store no checksum of the superblock", Taken),
    row("inline_data", "[^]inline_data", "store the ends of uncompressed files behind their inodes", Taken),
    row("noinline_data", "noinline_data", "store them in blocks", Taken),
    row("force-inode-blockmap", "force-inode-blockmap", "use chunk maps of block numbers", Taken),
    row("force-chunk-indexes", "force-chunk-indexes", "use chunk maps of full records", Taken),
    row("xattr-name-filter", "[^]xattr-name-filter", "store filters of absent attributes (default)", Taken),
    row(
        "plain-xattr-prefixes",
        "plain-xattr-prefixes",
        "store attribute prefixes outside the packed inode and the metabox",
        Idle("they are always there"),
    ),
];
