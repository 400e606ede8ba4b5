//! The extended options of `-E`, and how this program treats them.

use super::support::Support::{self, Ignored, Refused, Supported};

/// An extended option.
pub(super) struct FeatureRow {
    pub(super) name: &'static str,
    /// The notation of the option with its value.
    pub(super) form: &'static str,
    /// The meaning of the option.
    pub(super) about: &'static str,
    pub(super) support: Support,
    /// Whether it may have a value.
    pub(super) has_value: bool,
}

const fn row(name: &'static str, form: &'static str, about: &'static str, support: Support) -> FeatureRow {
    FeatureRow { name, form, about, support, has_value: false }
}

const fn valued(name: &'static str, form: &'static str, about: &'static str, support: Support) -> FeatureRow {
    FeatureRow { name, form, about, support, has_value: true }
}

/// The extended options: first those of `--zfeature-bits`, from bit 0 on.
pub(super) const FEATURES: &[FeatureRow] = &[
    row("legacy-compress", "[^]legacy-compress", "use full indexes instead of compact ones", Supported),
    row("ztailpacking", "[^]ztailpacking", "store small ends of compressed files behind their inodes", Supported),
    valued("fragments", "[^]fragments[=#]", "pack the ends of files together, in pclusters of # bytes", Supported),
    valued("all-fragments", "[^]all-fragments[=#]", "pack whole files together, in pclusters of # bytes", Supported),
    row("dedupe", "[^]dedupe", "store equal data once", Supported),
    valued("fragdedupe", "[^]fragdedupe[=<full|inode>]", "store equal fragments once", Ignored("always on")),
    row("48bit", "[^]48bit", "use the layout for more than 2^32 blocks", Supported),
    row(
        "dot-omitted",
        "[^]dot-omitted",
        "directories without an entry for themselves",
        Refused("each directory has an entry for itself", &["^dot-omitted"]),
    ),
    row("force-inode-compact", "force-inode-compact", "use compact inodes, which all have the build time", Supported),
    row("force-inode-extended", "force-inode-extended", "long inodes", Supported),
    row("nosbcrc", "nosbcrc", "store no checksum of the superblock", Supported),
    row("inline_data", "[^]inline_data", "store the ends of uncompressed files behind their inodes", Supported),
    row("noinline_data", "noinline_data", "store them in blocks", Supported),
    row("force-inode-blockmap", "force-inode-blockmap", "use chunk maps of block numbers", Supported),
    row("force-chunk-indexes", "force-chunk-indexes", "use chunk maps of full records", Supported),
    row("xattr-name-filter", "[^]xattr-name-filter", "store filters of absent attributes (default)", Supported),
    row(
        "plain-xattr-prefixes",
        "plain-xattr-prefixes",
        "store attribute prefixes outside the packed inode and the metabox",
        Ignored("they are always there"),
    ),
];
