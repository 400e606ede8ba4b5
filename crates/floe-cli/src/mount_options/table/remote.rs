//! Options of images that are somewhere else.

use crate::{
    mount_options::row::{OptionRow, Value, bytes, put, row, text},
    remote::absolute,
};

pub(super) const REMOTE: &[OptionRow] = &[
    row(
        "outage",
        text("wait:TIME|eio", |to, value| put(&mut to.open.remote.remote.outage, value)),
        "what reads do while the server cannot be reached",
    )
    .default("wait:60s")
    .shown(|now| now.open.remote.remote.outage.to_string()),
    row(
        "cache-size",
        bytes(|to, bytes| to.open.remote.cache_bytes_max = Some(bytes)),
        "the most bytes that the cache of remote images takes on the disk; 0: nothing is cached",
    )
    .default_is("a tenth of the file system, at most 16 GiB"),
    row(
        "cache-directory",
        Value::Path { form: "DIR", set: |to, path| to.open.remote.cache_directory = Some(absolute(&path)) },
        "the directory of the cache of remote images",
    )
    .default_is("/var/cache/floe for root, ~/.cache/floe for users"),
    row(
        "plain-http",
        Value::Flag(|to| to.open.remote.remote.plain_http = true),
        "speak to all registries without TLS; those on this machine are spoken to so anyway",
    ),
    row(
        "require-verified",
        Value::Flag(|to| to.open.remote.require_verified = true),
        "refuse images whose bytes cannot be verified",
    ),
];
