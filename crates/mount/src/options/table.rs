//! The table of all options of `-o`.
//!
//! Parsing, `floe mount --help`, `floe tune`, the list in `floe status` and docs/options.md are all derived from these
//! rows. A new option is a row here, and what uses it.

mod mounting;
mod reading;

use floe::Offset;

use super::row::OptionRow;
use crate::{
    options::row::{Value, bytes, put, row, text},
    remote::absolute,
};

/// A group of related options.
pub(super) struct Group {
    pub(super) title: &'static str,
    /// A sentence below the title.
    pub(super) note: Option<&'static str>,
    pub(super) rows: &'static [OptionRow],
}

/// The options, in the order of the help.
pub(super) const GROUPS: &[Group] = &[
    group("Image", IMAGE),
    group("Remote images", REMOTE),
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
        ..group("Baselines for measurements", BASELINES)
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

const BASELINES: &[OptionRow] = &[
    row(
        "workers",
        text("per-cpu|shared|inline", |to, value| put(&mut to.open.engine.workers, value)),
        "the decompressing threads: one pinned to each CPU, a shared pool, or the reading thread",
    )
    .default("per-cpu")
    .shown(|now| now.open.engine.workers.to_string())
    .tunable(),
    row(
        "sync-decompress",
        text("auto|always|never", |to, value| put(&mut to.open.volume.sync_decompress, value)),
        "decode a block on the thread that fetched it; auto: if decoding is cheap",
    )
    .default("auto")
    .shown(|now| now.open.volume.sync_decompress.to_string())
    .tunable(),
    row(
        "readahead-alloc",
        text("best-effort|wait", |to, value| put(&mut to.open.volume.readahead_alloc, value)),
        "whether prefetch gives up or waits while memory is short",
    )
    .default("best-effort")
    .shown(|now| now.open.volume.readahead_alloc.to_string())
    .tunable(),
    row(
        "clone-fd",
        Value::OnOff(|to, is_on| to.mount.clone_fd = is_on),
        "give each thread that takes requests its own descriptor of /dev/fuse",
    )
    .default("off")
    .shown(|now| if now.mount.clone_fd { "on" } else { "off" }.to_owned()),
    row(
        "decode-marks",
        Value::Path { form: "FILE", set: |to, path| to.decode_marks = Some(path) },
        "write a line to this file after each decode, for the trace_marker of tracefs",
    ),
];

const IMAGE: &[OptionRow] = &[
    row(
        "offset",
        bytes(|to, bytes| to.open.offset = Offset::At(bytes)),
        "offset of the image in the file; auto: search for it",
    )
    .or("auto", |to| to.open.offset = Offset::Auto)
    .default("0"),
    row(
        "device",
        Value::Path { form: "FILE", set: |to, path| to.open.devices.push(path) },
        "file or URL of an extra device of an EROFS image; may be repeated, in the order of the device table",
    ),
    row(
        "device-directory",
        Value::Path { form: "DIR", set: |to, path| to.open.device_directory = Some(path) },
        "directory with the other extra devices, under their names in the device table",
    ),
    row(
        "subdir",
        Value::Path { form: "PATH", set: |to, path| to.subdirectory = Some(path) },
        "mount only this directory of the image; no launch is replayed or recorded",
    ),
];

const REMOTE: &[OptionRow] = &[
    row(
        "outage",
        text("wait:DURATION|eio", |to, value| put(&mut to.open.remote.remote.outage, value)),
        "behaviour of reads while the server cannot be reached: retry for DURATION (seconds, or a number with s, m, h or d), or fail with EIO after a few attempts",
    )
    .default("wait:60s")
    .shown(|now| now.open.remote.remote.outage.to_string()),
    row(
        "cache-size",
        bytes(|to, bytes| to.open.remote.cache_bytes_max = Some(bytes)),
        "maximum size on disk of the cache of remote images; 0 disables it",
    )
    .default_is("a tenth of the file system, at most 16 GiB"),
    row(
        "cache-directory",
        Value::Path { form: "DIR", set: |to, path| to.open.remote.cache_directory = Some(absolute(&path)) },
        "directory of the cache of remote images",
    )
    .default_is("/var/cache/floe for root, ~/.cache/floe for users"),
    row(
        "plain-http",
        Value::Flag(|to| to.open.remote.remote.plain_http = true),
        "use plain HTTP for all registries; it is always used for registries on this machine",
    ),
    row(
        "mirror",
        text("URL", |to, url| {
            to.open.remote.remote.mirrors.push(url.to_owned());
            Ok(())
        }),
        "mirror of all registries that is asked first, such as one of Dragonfly or Spegel on this machine; may be repeated",
    ),
    row(
        "auth-file",
        Value::Path { form: "FILE", set: |to, path| to.open.remote.remote.auth_file = Some(absolute(&path)) },
        "file with credentials in the form of docker's config.json, which is searched before those of docker and Podman",
    ),
    row(
        "require-verified",
        Value::Flag(|to| to.open.remote.require_verified = true),
        "refuse images whose bytes cannot be verified",
    ),
];
