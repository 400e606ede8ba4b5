//! Options of reads: memory, threads, prefetch.

use std::{num::NonZero, path::PathBuf, time::Duration};

use floe_image::ShownName;

use crate::{
    launch::{LAUNCH_WAIT, ProfileChoice},
    options::row::{OptionRow, Value, bytes, put, row, text},
    quantity::{self, exact, time},
};

/// The maximum of `launch-wait=`.
const LAUNCH_WAIT_MAX: Duration = Duration::from_secs(60);

/// The maximum time that a thread polls, which occupies a CPU.
const BUSY_POLLING_MAX: Duration = Duration::from_millis(10);

pub(super) const MEMORY: &[OptionRow] = &[
    row(
        "cache",
        text("SIZE[+SIZE]", |to, value| {
            let (cache, growth) = value.split_once('+').unwrap_or((value, "0"));
            to.open.engine.cache_bytes = quantity::bytes(cache)?;
            to.open.engine.cache_growth_bytes = quantity::bytes(growth)?;
            Ok(())
        }),
        "budget of the cache of decoded blocks, and how far the cache may grow beyond it while memory is ample",
    )
    .default_is("64M, and growth to 1/8 of the memory, at most 2G in all")
    .shown(|now| match (now.open.engine.cache_bytes, now.open.engine.cache_growth_bytes) {
        (cache, 0) => exact(cache),
        (cache, growth) => format!("{}+{}", exact(cache), exact(growth)),
    })
    .tunable(),
    row(
        "metadata-cache",
        text("N", |to, value| put(&mut to.open.engine.metadata_cache, value)),
        "size of the metadata cache, in blocks of 8 KiB",
    )
    .default("1024")
    .shown(|now| now.open.engine.metadata_cache.to_string())
    .tunable(),
    row(
        "read-memory",
        bytes(|to, bytes| {
            let engine = &mut to.open.engine;
            engine.decoder_bytes = bytes / 2;
            engine.read_bytes = bytes - engine.decoder_bytes;
        }),
        "budget of reads in progress: one half for the dictionaries and windows of decoders, the other half for reads that \
         wait for the source or for decoders",
    )
    .default_is("64M, and 8M for each CPU")
    .shown(|now| exact(now.open.engine.decoder_bytes.saturating_add(now.open.engine.read_bytes))),
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
        text("SIZE[:DIR]", |to, value| {
            let (size, directory) = value.split_once(':').map_or((value, None), |(size, path)| (size, Some(path)));
            to.open.engine.spill_file_bytes = quantity::bytes(size)?;
            to.open.engine.spill_file_directory = directory.filter(|path| !path.is_empty()).map(PathBuf::from);
            Ok(())
        }),
        "size of an unnamed file for decoded blocks that the cache evicts, if many files share them and they are costly to \
         decode; in DIR, which must not be in memory, or else in the directory of the image",
    )
    .or("off", |to| to.open.engine.spill_file_bytes = 0)
    .default("off")
    .shown(|now| match (now.open.engine.spill_file_bytes, &now.open.engine.spill_file_directory) {
        (0, _) => "off".to_owned(),
        (bytes, None) => exact(bytes),
        (bytes, Some(directory)) => format!("{}:{}", exact(bytes), directory.shown()),
    }),
];

pub(super) const THREADS: &[OptionRow] = &[
    row(
        "priority",
        text("auto|fifo[:N]|nice[:N]|slice|normal", |to, value| put(&mut to.open.engine.priority, value)),
        "scheduling of threads; auto: real-time if permitted, but threads that take requests only while CPUs are short",
    )
    .default("auto")
    .shown(|now| now.open.engine.priority.to_string())
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
    .or("off", |to| to.mount.busy_polling = None)
    .default("50us")
    .shown(|now| now.mount.busy_polling.map_or_else(|| "off".to_owned(), time)),
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
        "prefetch",
        text("all|none|KIND+KIND…", |to, value| put(&mut to.open.volume.prefetch, value)),
        "kinds of prefetch: sequential, directory, rest-of-block, drop-behind",
    )
    .default("all")
    .shown(|now| now.open.volume.prefetch.to_string())
    .tunable(),
    row(
        "fetch-around",
        bytes(|to, bytes| to.open.volume.fetch_around_bytes = bytes),
        "fault-around: size of the aligned window of the image that a miss fetches",
    )
    .or("off", |to| to.open.volume.fetch_around_bytes = 0)
    .default("128k")
    .shown(|now| match now.open.volume.fetch_around_bytes {
        0 => "off".to_owned(),
        bytes => exact(bytes),
    })
    .tunable(),
    row(
        "read-ahead",
        Value::Bytes {
            max: 4 << 30,
            set: |to, bytes| to.mount.kernel.readahead_bytes = Some(u32::try_from(bytes).unwrap_or(u32::MAX)),
        },
        "the kernel's readahead; only root can set it",
    )
    .or("kernel", |to| to.mount.kernel.readahead_bytes = None)
    .default("kernel")
    .shown(|now| now.mount.kernel.readahead_bytes.map_or_else(|| "kernel".to_owned(), |bytes| exact(bytes.into())))
    .changed_elsewhere("a setting of the kernel: root sets it in /sys/class/bdi/…/read_ahead_kb"),
    row(
        "profile",
        text("FILE|image|learn|off", |to, value| {
            to.profile = match value {
                "image" => ProfileChoice::Image,
                "learn" => ProfileChoice::Learn,
                "off" => ProfileChoice::Off,
                "" => return Err("name a file, or image, learn or off".to_owned()),
                file => ProfileChoice::File(file.into()),
            };
            Ok(())
        }),
        "replay the launch that floe record wrote to this file; image: the one that floe mkfs --profile put into the image; \
         learn: record the first launch, and replay it in later mounts; profiles are in the directory launches of the cache \
         directory",
    )
    .default("image")
    .shown(|now| match &now.profile {
        ProfileChoice::Image => "image".to_owned(),
        ProfileChoice::Learn => "learn".to_owned(),
        ProfileChoice::File(path) => path.to_string_lossy().into_owned(),
        ProfileChoice::Off => "off".to_owned(),
    }),
    row(
        "launch-wait",
        Value::Time { max: LAUNCH_WAIT_MAX, set: |to, time| to.launch_wait = Some(time) },
        "how long floe mount waits for the bytes of the launch before it reports that a remote image with a launch bundle is mounted",
    )
    .or("off", |to| to.launch_wait = Some(Duration::ZERO))
    .default("5s")
    .shown(|now| match now.launch_wait {
        Some(Duration::ZERO) => "off".to_owned(),
        wait => time(wait.unwrap_or(LAUNCH_WAIT)),
    }),
];
