//! The matrix of options; each image is compared with its source in three ways.

use std::{num::NonZeroU32, path::Path, process::Command};

use floe_mkfs::{
    Coding, Compression, Fragments, Hint, InodeForm, LZ4_WINDOW_MAX, NoProgress, Options, Source, Times, build,
};
use floe_testkit::sample;

use crate::{
    differences::{Leave, check_equal, walk},
    sample_tree::{self, KernelMount, can_mount, fsck},
};

const LZ4: Option<Compression> = Some(Compression::Lz4 { window_bytes: LZ4_WINDOW_MAX });
const LZ4HC: Option<Compression> = Some(Compression::Lz4High { level: 9, window_bytes: LZ4_WINDOW_MAX });
const LZMA: Option<Compression> = Some(Compression::MicroLzma { level: 6, dictionary_bytes: 1 << 18 });
const DEFLATE: Option<Compression> = Some(Compression::Deflate { level: 6 });
const ZSTD: Option<Compression> = Some(Compression::Zstd { level: 3, window_log2: 19 });

/// A row of the matrix: a name and the options that it changes.
type Row = (&'static str, fn(&mut Options));

const ROWS: &[Row] = &[
    ("plain", |_| {}),
    ("plain-extended", |options| options.inode_form = InodeForm::Extended),
    ("plain-not-inline", |options| options.inline_data = false),
    ("plain-512", |options| options.block_size_log2 = 9),
    ("plain-2048", |options| options.block_size_log2 = 11),
    ("plain-wide", |options| options.wide = true),
    ("plain-all-times", |options| options.times = Times::All(1_600_000_000)),
    ("plain-xattrs-not-shared", |options| {
        options.xattrs.share_above = None;
        options.xattrs.filter = false;
    }),
    ("plain-xattr-prefixes", |options| {
        options.xattrs.long_prefixes = vec![b"user.org.example.".to_vec(), b"security.mark".to_vec()];
    }),
    ("chunks", |options| options.chunk_bytes = Some(4096)),
    ("chunks-large-indexes", |options| {
        options.chunk_bytes = Some(1 << 20);
        options.chunk_indexes = true;
    }),
    ("chunks-512", |options| {
        options.block_size_log2 = 9;
        options.chunk_bytes = Some(2048);
    }),
    ("lz4", |options| options.compression = LZ4),
    ("lz4-full-index", |options| {
        options.compression = LZ4;
        options.compact_index = false;
    }),
    ("lz4-window-16k", |options| {
        options.compression = Some(Compression::Lz4 { window_bytes: NonZeroU32::new(16384).unwrap() });
    }),
    ("lz4hc", |options| options.compression = LZ4HC),
    ("lz4hc-window-16k-big", |options| {
        options.compression = Some(Compression::Lz4High { level: 9, window_bytes: NonZeroU32::new(16384).unwrap() });
        big(options, 65536);
    }),
    ("lz4hc-big", |options| {
        options.compression = LZ4HC;
        big(options, 65536);
    }),
    ("lz4hc-big-full-index", |options| {
        options.compression = LZ4HC;
        options.compact_index = false;
        big(options, 16384);
    }),
    ("lz4-tail", |options| {
        options.compression = LZ4;
        options.inline_pclusters = true;
    }),
    ("lz4-tail-full-index-big", |options| {
        options.compression = LZ4;
        options.inline_pclusters = true;
        options.compact_index = false;
        big(options, 16384);
    }),
    ("lz4-tail-512", |options| {
        options.compression = LZ4;
        options.block_size_log2 = 9;
        options.inline_pclusters = true;
        big(options, 4096);
    }),
    ("lz4hc-1024", |options| {
        options.compression = LZ4HC;
        options.block_size_log2 = 10;
        big(options, 1024);
    }),
    ("lz4-fragments", |options| {
        options.compression = LZ4;
        options.fragments = Fragments::Tails;
    }),
    ("lz4hc-fragments-prefixes", |options| {
        options.compression = LZ4HC;
        options.fragments = Fragments::Tails;
        options.xattrs.long_prefixes = vec![b"user.org.example.".to_vec()];
        big(options, 65536);
    }),
    ("lz4hc-everything", |options| {
        options.compression = LZ4HC;
        options.fragments = Fragments::Tails;
        options.inline_pclusters = true;
        options.dedupe = true;
        big(options, 65536);
    }),
    ("lz4-dedupe", |options| {
        options.compression = LZ4;
        options.dedupe = true;
    }),
    ("plain-dedupe", |options| options.dedupe = true),
    ("lzma", |options| {
        options.compression = LZMA;
        big(options, 16384);
    }),
    ("lzma-all-fragments", |options| {
        options.compression = LZMA;
        options.fragments = Fragments::All;
        options.dedupe = true;
        big(options, 1 << 20);
    }),
    ("deflate", |options| options.compression = DEFLATE),
    ("deflate-big-tail", |options| {
        options.compression = DEFLATE;
        options.inline_pclusters = true;
        big(options, 65536);
    }),
    ("zstd", |options| options.compression = ZSTD),
    ("zstd-big-tail", |options| {
        options.compression = ZSTD;
        options.inline_pclusters = true;
        big(options, 65536);
    }),
    ("zstd-big-fragments", |options| {
        options.compression = ZSTD;
        options.fragments = Fragments::Tails;
        options.inline_pclusters = true;
        big(options, 65536);
    }),
    ("hints", |options| {
        options.compression = LZ4;
        options.fragments = Fragments::Tails;
        options.dedupe = true;
        let coding = |compression: Option<Compression>, pcluster_bytes| {
            compression.map(|compression| Coding { compression, pcluster_bytes })
        };
        options.hints = [
            ("^large/text$", coding(ZSTD, 65536)),
            ("noise", None),
            ("^equal/.*-[12]$", coding(DEFLATE, 16384)),
            ("^equal/", coding(LZMA, 16384)),
            ("mixed", coding(LZ4HC, 32768)),
        ]
        .map(|(expression, coding)| Hint { expression: expression.into(), coding })
        .to_vec();
    }),
    ("hints-alone", |options| {
        options.hints = vec![Hint {
            expression: "text".into(),
            coding: DEFLATE.map(|compression| Coding { compression, pcluster_bytes: 4096 }),
        }];
    }),
    ("lz4-wide", |options| {
        options.compression = LZ4;
        options.wide = true;
    }),
];

/// One row of so many is built for each commit, all of them by `cargo xtask nightly`.
const ROWS_STEP: usize = 5;

/// Rows that the reference tool extracts wrongly: it drops trailing holes of files with chunk indexes.
const KERNEL_ONLY: &[&str] = &["chunks-large-indexes"];

fn big(options: &mut Options, pcluster_bytes: u32) {
    options.pcluster_bytes = pcluster_bytes;
}

fn image(row: &Row, source: &Path, directory: &Path, jobs: usize) -> Options {
    let mut options = Options::new(directory.join(format!("{}-{jobs}.erofs", row.0)));
    options.jobs = std::num::NonZeroUsize::new(jobs).unwrap();
    row.1(&mut options);
    let sources = [Source::Directory(source.to_path_buf())];
    build(&options, &sources, &mut NoProgress).unwrap_or_else(|error| panic!("{}: {error}", row.0));
    options
}

/// Builds each image with 1 and 8 jobs; the kernel and the reference tool read it.
#[test]
fn each_image_is_read_as_its_source_and_does_not_depend_on_the_number_of_jobs() {
    let (can_mount, fsck) = (can_mount(), fsck());
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    std::fs::create_dir(&source).unwrap();
    sample_tree::make(&source);
    let leave = |options: &Options| Leave { times: matches!(options.times, Times::All(_)), ..Leave::default() };
    // The tool stops reading xattrs of an inode at an empty value, and does not set times of links.
    let leave_of_tool = Leave { xattrs: true, times: true, ..Leave::default() };
    let expected = walk(&source, Leave::default());
    let expected_of_tool = walk(&source, leave_of_tool);
    for row in sample(ROWS, ROWS_STEP) {
        let [options, by_many] = [1, 8].map(|jobs| image(row, &source, directory.path(), jobs));
        let bytes = [&options, &by_many].map(|options| std::fs::read(&options.output).unwrap());
        assert!(bytes[0] == bytes[1], "{}: the images of 1 and 8 jobs differ", row.0);
        if can_mount {
            let leave = leave(&options);
            let mount = KernelMount::new(&options.output, None).unwrap_or_else(|error| panic!("{}: {error}", row.0));
            let found = walk(mount.path(), leave);
            if leave.times {
                check_equal(&walk(&source, leave), &found, row.0);
            } else {
                check_equal(&expected, &found, row.0);
            }
        }
        if let Some(fsck) = fsck.as_ref().filter(|_| !KERNEL_ONLY.contains(&row.0)) {
            let target = directory.path().join("extracted");
            let output = Command::new(fsck)
                .arg(format!("--extract={}", target.display()))
                .args(["--preserve", "--force", "-d1"])
                .arg(&options.output)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {said}", row.0);
            check_equal(&expected_of_tool, &walk(&target, leave_of_tool), row.0);
            std::fs::remove_dir_all(&target).unwrap();
        }
        for options in [options, by_many] {
            std::fs::remove_file(&options.output).unwrap();
        }
    }
}
