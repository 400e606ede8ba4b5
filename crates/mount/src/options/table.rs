//! The table of all options of `-o`.
//!
//! Parsing, `floe mount --help`, `floe tune`, the list in `floe status` and docs/options.md are all derived from these
//! rows. A new option is a row here, and what uses it.

mod baselines;
mod image;
mod mounting;
mod reading;

use super::row::OptionRow;

/// A group of related options.
pub(super) struct Group {
    pub(super) title: &'static str,
    /// A sentence below the title.
    pub(super) note: Option<&'static str>,
    pub(super) rows: &'static [OptionRow],
}

/// The options, in the order of the help.
pub(super) const GROUPS: &[Group] = &[
    group("Image", image::IMAGE),
    group("Remote images", image::REMOTE),
    group("Memory and caches", reading::MEMORY),
    group("Threads", reading::THREADS),
    group("Prefetch and launches", reading::PREFETCH),
    group("Mount", mounting::MOUNT),
    group("Options of mount(8) and FUSE", mounting::STANDARD),
    Group {
        note: Some(
            "Only measurements need these: the lab compares the designs with the defaults. metadata-cache=single-lock:N is \
             another one: N entries behind one lock.",
        ),
        ..group("Baselines for measurements", baselines::BASELINES)
    },
];

const fn group(title: &'static str, rows: &'static [OptionRow]) -> Group {
    Group { title, note: None, rows }
}

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
