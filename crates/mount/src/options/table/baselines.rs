//! Options that only measurements need: what the lab compares with the defaults, and the marks of its traces.

use crate::options::row::{OptionRow, Value, put, row, text};

pub(super) const BASELINES: &[OptionRow] = &[
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
        text("auto|always|never", |to, value| put(&mut to.open.engine.sync_decompress, value)),
        "decode a block on the thread that fetched it; auto: if decoding is cheap",
    )
    .default("auto")
    .shown(|now| now.open.engine.sync_decompress.to_string())
    .tunable(),
    row(
        "readahead-alloc",
        text("best-effort|wait", |to, value| put(&mut to.open.engine.readahead_alloc, value)),
        "whether prefetch gives up or waits while memory is short",
    )
    .default("best-effort")
    .shown(|now| now.open.engine.readahead_alloc.to_string())
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
