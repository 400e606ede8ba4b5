//! Options of the image: where its bytes are, and how remote ones are fetched.

use floe::Offset;

use crate::{
    options::row::{OptionRow, Value, bytes, put, row, text},
    remote::absolute,
};

pub(super) const IMAGE: &[OptionRow] = &[
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
        "file of an extra device of an EROFS image; may be repeated, in the order of the device table",
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

pub(super) const REMOTE: &[OptionRow] = &[
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
        "require-verified",
        Value::Flag(|to| to.open.remote.require_verified = true),
        "refuse images whose bytes cannot be verified",
    ),
];
