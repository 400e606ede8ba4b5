//! The table of all options of `-o`.
//!
//! Parsing, `floe mount --help`, `floe tune`, the list in `floe status` and docs/options.md are all derived from these
//! rows. A new option is a row here, and a field of `Settings` if it sets something new.

mod mounting;
mod reading;
mod remote;

use super::row::OptionRow;

/// A group of related options.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) rows: &'static [OptionRow],
}

/// The options, in the order of the help.
pub(super) const GROUPS: &[Group] = &[
    Group { title: "Image", rows: mounting::IMAGE },
    Group { title: "Remote images", rows: remote::REMOTE },
    Group { title: "Memory and caches", rows: reading::MEMORY },
    Group { title: "Threads", rows: reading::THREADS },
    Group { title: "Prefetch", rows: reading::PREFETCH },
    Group { title: "Mount", rows: mounting::MOUNT },
    Group { title: "Users and permissions", rows: mounting::PERMISSIONS },
    Group { title: "Confinement and reports", rows: mounting::REPORTS },
];

/// Options of mount(8) and of FUSE without effect here: they control how and when mount(8) mounts, or describe
/// properties that a read-only image has anyway.
pub(super) const WITHOUT_EFFECT: &[&str] = &[
    "ro",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "loop",
    "kernel_cache",
    "auto_cache",
    "noforget",
    "async_read",
    "use_ino",
    "readdir_ino",
    "intr",
    "big_writes",
    "nonempty",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "sync",
    "async",
    "dirsync",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "comment",
    "entry_timeout",
    "attr_timeout",
    "negative_timeout",
    "max_read",
];

/// Options of security modules, which are passed to the kernel unchanged.
pub(super) const FOR_THE_KERNEL: &[&str] = &["context", "fscontext", "defcontext", "rootcontext"];

/// All options.
pub(super) fn rows() -> impl Iterator<Item = &'static OptionRow> {
    GROUPS.iter().flat_map(|group| group.rows)
}

/// The option with this name; dashes and underscores are equivalent.
pub(super) fn find(name: &str) -> Option<&'static OptionRow> {
    rows().find(|row| row.is(name))
}
