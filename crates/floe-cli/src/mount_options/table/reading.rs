//! Options of the read engine: memory, threads, prefetch.

use std::{num::NonZero, time::Duration};

use crate::{
    mount_options::{
        Settings,
        row::{OptionRow, Value, bytes, put, row, text},
    },
    quantity::{exact, time},
};
use floe_image::ShownName;

pub(super) const MEMORY: &[OptionRow] = &[
    row(
        "cache",
        bytes(Settings::set_cache),
        "budget of the cache of decoded blocks; if it is given without cache-growth, the cache does not grow",
    )
        .default("64M")
        .shown(|now| exact(now.open.engine.cache_bytes))
        .tunable(),
    row(
        "cache-growth",
        bytes(Settings::set_cache_growth),
        "how far the cache of decoded blocks may grow beyond its budget while memory is ample",
    )
    .default_is("up to 1/8 of the memory and 2G in all")
    .shown(|now| exact(now.open.engine.cache_growth_bytes))
    .tunable(),
    row(
        "metadata-cache",
        text("N|single-lock:N", |to, value| put(&mut to.open.engine.metadata_cache, value)),
        "size of the metadata cache, in blocks of 8 KiB; single-lock:N has N entries behind one lock",
    )
    .default("1024")
    .shown(|now| now.open.engine.metadata_cache.to_string())
    .tunable(),
    row(
        "decoder-memory",
        bytes(|to, bytes| to.open.engine.decoder_bytes = bytes),
        "budget of the dictionaries and windows of decoders",
    )
    .default_is("8M for each CPU")
    .shown(|now| exact(now.open.engine.decoder_bytes)),
    row(
        "read-memory",
        bytes(|to, bytes| to.open.engine.read_bytes = bytes),
        "budget of reads that wait for the source or for decoders",
    )
    .default("64M")
    .shown(|now| exact(now.open.engine.read_bytes)),
    row(
        "reserved-pages",
        Value::Count {
            min: 0,
            max: u64::MAX,
            set: |to, count| to.open.engine.reserved_pages = usize::try_from(count).unwrap_or(usize::MAX),
        },
        "number of pages of 4 KiB held in reserve",
    )
    .default("1024")
    .shown(|now| now.open.engine.reserved_pages.to_string())
    .tunable(),
    row(
        "spill-file",
        bytes(|to, bytes| to.open.engine.spill_file_bytes = bytes),
        "size of an unnamed file for decoded blocks that the cache evicts, if many files share them and they are costly to \
         decode",
    )
    .also(&["overflow"])
    .or("off", |to| to.open.engine.spill_file_bytes = 0)
    .default("off")
    .shown(|now| match now.open.engine.spill_file_bytes {
        0 => "off".to_owned(),
        bytes => exact(bytes),
    }),
    row(
        "spill-file-directory",
        Value::Path {
            form: "DIR",
            set: |to, path| {
                to.open.engine.spill_file_directory = Some(path).filter(|path| !path.as_os_str().is_empty());
            },
        },
        "directory of the spill file; a file system in memory is refused",
    )
    .also(&["overflow-directory"])
    .default_is("the directory of the image")
    .shown(|now| {
        let directory = now.open.engine.spill_file_directory.as_ref();
        directory.map_or_else(String::new, |directory| directory.shown().to_string())
    }),
];

/// The maximum time that a thread polls, which occupies a CPU.
const BUSY_POLLING_MAX: Duration = Duration::from_millis(10);

pub(super) const THREADS: &[OptionRow] = &[
    row(
        "workers",
        text("per-cpu|shared|inline", |to, value| put(&mut to.open.engine.workers, value)),
        "the decompressing threads: one pinned to each CPU, a shared pool, or the reading thread",
    )
    .default("per-cpu")
    .shown(|now| now.open.engine.workers.to_string())
    .tunable(),
    row(
        "priority",
        text("auto|fifo[:N]|nice[:N]|slice|normal", |to, value| put(&mut to.open.engine.priority, value)),
        "scheduling of threads; auto: real-time if permitted, but threads that take requests only while CPUs are short",
    )
    .default("auto")
    .shown(|now| now.open.engine.priority.to_string())
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
        "threads",
        Value::Count {
            min: 1,
            max: u64::MAX,
            set: |to, count| {
                to.mount.threads = usize::try_from(count).ok().and_then(NonZero::new).unwrap_or(NonZero::<usize>::MAX);
            },
        },
        "number of threads that take requests",
    )
    .default_is("the number of CPUs, at least 2")
    .shown(|now| now.mount.threads.to_string()),
    row(
        "busy-polling",
        Value::Time { max: BUSY_POLLING_MAX, set: |to, time| to.mount.busy_polling = Some(time) },
        "how long a thread polls for the next request before it sleeps; four times as long while a program lists a long directory",
    )
    .also(&["linger"])
    .or("off", |to| to.mount.busy_polling = None)
    .default("50us")
    .shown(|now| now.mount.busy_polling.map_or_else(|| "off".to_owned(), time)),
    row(
        "clone-fd",
        Value::OnOff(|to, is_on| to.mount.clone_fd = is_on),
        "give each thread that takes requests its own descriptor of /dev/fuse",
    )
    .default("off")
    .shown(|now| on_off(now.mount.clone_fd)),
    row(
        "max-background",
        Value::Count {
            min: 1,
            max: u16::MAX as u64,
            set: |to, count| {
                to.mount.background_max =
                    u16::try_from(count).ok().and_then(NonZero::new).unwrap_or(NonZero::<u16>::MAX);
            },
        },
        "maximum number of background requests that the kernel sends at a time",
    )
    .default("4096")
    .shown(|now| now.mount.background_max.to_string()),
    row(
        "deadline",
        Value::Time { max: Duration::MAX, set: |to, time| to.set_deadline(Some(time)) },
        "after this time, a request that waits for the source fails with EIO",
    )
    .or("off", |to| to.set_deadline(None))
    .default("60s")
    .shown(|now| now.mount.deadline.map_or_else(|| "off".to_owned(), time)),
];

pub(super) const PREFETCH: &[OptionRow] = &[
    row(
        "read-around",
        Value::OnOff(|to, is_on| to.open.engine.read_around = is_on),
        "read more than was requested; off leaves only the prefetch kinds rest-of-block and drop-behind",
    )
    .default("on")
    .shown(|now| on_off(now.open.engine.read_around))
    .tunable(),
    row(
        "prefetch",
        text("all|none|KIND+KIND…", |to, value| put(&mut to.open.engine.prefetch, value)),
        "kinds of prefetch: sequential, directory, rest-of-block, drop-behind",
    )
    .default("all")
    .shown(|now| now.open.engine.prefetch.to_string())
    .tunable(),
    row(
        "fetch-around",
        bytes(|to, bytes| to.open.engine.fetch_around_bytes = bytes),
        "fault-around: size of the aligned window of the image that a miss fetches",
    )
    .or("off", |to| to.open.engine.fetch_around_bytes = 0)
    .default("128k")
    .shown(|now| match now.open.engine.fetch_around_bytes {
        0 => "off".to_owned(),
        bytes => exact(bytes),
    })
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
        "read-ahead",
        Value::Bytes {
            max: 4 << 30,
            set: |to, bytes| to.mount.read_ahead_bytes = Some(u32::try_from(bytes).unwrap_or(u32::MAX)),
        },
        "the kernel's readahead; only root can set it",
    )
    .or("kernel", |to| to.mount.read_ahead_bytes = None)
    .default("kernel")
    .shown(|now| now.mount.read_ahead_bytes.map_or_else(|| "kernel".to_owned(), |bytes| exact(bytes.into())))
    .changed_elsewhere("a setting of the kernel: root sets it in /sys/class/bdi/…/read_ahead_kb"),
];

fn on_off(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.to_owned()
}
