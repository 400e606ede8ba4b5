//! `floe mkfs`: builds an image.

mod bar;
pub(crate) mod rules;
pub(crate) mod sources;
mod squashfs;
mod summary;
mod verification;

use std::{
    ffi::OsString,
    fs,
    num::{NonZeroU32, NonZeroUsize},
    os::unix::ffi::OsStrExt,
    path::{Component, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};
use floe_image::ShownName;
use floe_keeper::run_when_idle;
use floe_mkfs::{
    COMPRESSORS, Companion, Compression, Compressor, CompressorSettings, Error, Format, Fragments, Hint, InodeForm,
    Options, Source, Times, Verifier, Whiteouts, build_unnamed,
};
use floe_mount::quantity;

use self::{
    bar::Bar,
    summary::{SummaryRecord, described, type_table},
    verification::VerifyArgument,
};
use crate::{
    cancellation, compress_hints,
    confinement::{self, SandboxArguments},
    fail::{Exit, Fail},
    fake,
    output::Output,
    root_hash_file::{self, StaleRootHashes, root_hash_paths},
    source_date_epoch,
};

/// How long a build may continue after a signal before it checks for cancellation.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(400);

/// The default block size in bytes.
const BLOCK_BYTES: u64 = 4 << 10;

/// The default window of LZ4 in bytes.
const LZ4_WINDOW_BYTES: u64 = 64 << 10;

/// Build an EROFS or SquashFS image from directories, tar archives and other images
///
/// If sources have the same path, the last one wins; directories are merged. The image gets its name when it is
/// complete. The same sources and options give the same bytes, with any number of jobs.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe mkfs system.erofs root --compress lz4hc\n  \
    floe mkfs app.erofs tree --compress zstd,9 --pcluster 64k --fragments tails --dedupe\n  \
    floe mkfs app.erofs tree --compress lz4 --lz4-window 16k\n  \
    floe mkfs layer.erofs tree --compress zstd --verity\n  \
    floe mkfs app.sqfs tree --format squashfs --compress zstd,19\n  \
    floe mkfs new.erofs old.sqfs --compress zstd\n  \
    floe mkfs v2.erofs tree --base v1.erofs --compress zstd\n  \
    floe mkfs container.erofs base.tar.gz layer.tar.gz --whiteouts --compress zstd")]
pub(crate) struct Arguments {
    /// The image to create
    image: PathBuf,

    /// The content: directories; tar archives, plain or compressed with gzip, zstd, xz or lzma; images of either format.
    /// - is a tar archive from standard input
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,

    /// The file of an extra device of the image among the sources; may be repeated, in the order of its device table
    #[arg(long = "device", value_name = "FILE")]
    devices: Vec<PathBuf>,

    /// An earlier version of the image, which the new one needs as its extra device: files that it has, too, refer to their
    /// data there. It is an EROFS image with the same block size
    #[arg(long, value_name = "OLD")]
    base: Option<PathBuf>,

    /// The format of the image
    #[arg(long, value_enum, default_value_t)]
    format: FormatArgument,

    /// Compress with lz4, lz4hc, lzma, deflate or zstd, with an optional level: zstd,9. Further algorithms after a
    /// colon are for --compress-hints: lz4hc:zstd,9. SquashFS has gzip, xz, lzma, lzo, lz4, lz4hc, zstd and none, and
    /// without this option zstd,15
    #[arg(short = 'z', long, value_name = "ALGORITHM[,LEVEL]")]
    compress: Option<String>,

    /// A file with rules for files that are compressed differently. Each line has a pcluster size in bytes (0:
    /// uncompressed), an optional index of an algorithm of --compress (the first is 0), and a regular expression, which
    /// is matched against paths without a leading slash
    #[arg(long, value_name = "FILE", requires = "compress")]
    compress_hints: Option<PathBuf>,

    /// The size of a compressed block: larger blocks save space and slow random reads down [default: the block size]
    #[arg(short = 'C', long = "pcluster", value_name = "SIZE", value_parser = quantity::bytes, requires = "compress")]
    pcluster_bytes: Option<u64>,

    /// The size of the lzma dictionary or the zstd window [default: by the pcluster size]; with SquashFS, of the xz
    /// dictionary [default: the block size]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, requires = "compress")]
    dictionary: Option<u64>,

    /// The LZ4 window: a small window needs fewer temporary pages for decoding [default: 64k]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes, requires = "compress")]
    lz4_window: Option<u64>,

    /// The block size: 512, 1k, 2k, … 64k [default: 4k]; Linux mounts only EROFS images whose blocks are no larger than the
    /// machine's pages. With SquashFS, 4k to 1M [default: 128k]
    #[arg(short, long, value_name = "SIZE", value_parser = quantity::bytes)]
    block_size: Option<u64>,

    /// Store small ends of compressed files next to their inodes
    #[arg(long)]
    inline_tails: bool,

    /// Pack the ends of files, or whole files, together [default: none; with SquashFS, files that are shorter than a block]
    #[arg(long, value_enum)]
    fragments: Option<FragmentsArgument>,

    /// Deduplicate: store equal files once, and equal parts of some KiB at any offset
    #[arg(long)]
    dedupe: bool,

    /// Set the time of all inodes, in seconds since 1970 [default: keep the times, but none later than
    /// SOURCE_DATE_EPOCH in the environment]
    #[arg(short = 'T', long, value_name = "SECONDS", allow_negative_numbers = true)]
    time: Option<i64>,

    /// Make root the owner of all files
    #[arg(long)]
    all_root: bool,

    /// Do not store extended attributes
    #[arg(long)]
    no_xattrs: bool,

    /// Set SELinux labels by the rules in this file: lines with an expression for whole paths, an optional type such as -- or
    /// -d, and a label or `<<none>>`; the last rule that matches counts
    #[arg(long, value_name = "FILE")]
    file_contexts: Option<PathBuf>,

    /// Set owners, modes and capabilities as Android does, by the lines of this file: path, owner, group, octal mode, and
    /// perhaps capabilities=NUMBER
    #[arg(long, value_name = "FILE")]
    fs_config_file: Option<PathBuf>,

    /// The future mountpoint of the image, with which the paths in these files begin
    #[arg(long, value_name = "DIR")]
    mount_point: Option<PathBuf>,

    /// Exclude this path, with everything below it; may be repeated. The path must exist
    #[arg(long, value_name = "PATH")]
    exclude: Vec<PathBuf>,

    /// Exclude paths that match this regular expression, with everything below them; paths have no leading slash
    #[arg(long, value_name = "EXPRESSION")]
    exclude_regex: Vec<String>,

    /// Apply whiteouts of container layers: .wh.NAME and .wh..wh..opq in a source remove files of earlier sources. So do, in
    /// images, devices with number 0 and opaque directories, as in overlayfs
    #[arg(long)]
    whiteouts: bool,

    /// Always use extended inodes, which have room for large owners and for times
    #[arg(long)]
    extended_inodes: bool,

    /// Store files in chunks of this size, and equal chunks once
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    chunk: Option<u64>,

    /// The volume label, at most 15 bytes
    #[arg(short = 'L', long, value_name = "NAME")]
    label: Option<OsString>,

    /// Place the files that a launch reads first, according to a profile from floe record
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Fail if a file changes or vanishes while it is read, instead of storing the part that was read
    #[arg(long)]
    strict: bool,

    /// The part of the image that is read back and compared with the sources before the image gets its name
    #[arg(long, value_enum, default_value_t)]
    verify: VerifyArgument,

    /// Append a dm-verity hash tree, and write its root hash to IMAGE.dmverity, as containerd does. Without this option, the
    /// root hash of an image that is replaced is removed
    #[arg(long)]
    verity: bool,

    /// The number of compressing threads [default: the number of CPUs]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// The limit of file data in memory
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    memory: Option<u64>,

    /// Run only when CPUs and disks have nothing else to do
    #[arg(long)]
    idle: bool,

    #[command(flatten)]
    sandbox: SandboxArguments,

    /// Print no progress bar and no summary
    #[arg(short, long)]
    quiet: bool,

    /// Write the summary as JSON
    #[arg(long)]
    json: bool,

    /// Add a table to the summary: what files of each type take in the image
    #[arg(long)]
    types: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
enum FormatArgument {
    /// EROFS
    #[default]
    Erofs,
    /// SquashFS 4.0
    Squashfs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FragmentsArgument {
    /// Nothing
    None,
    /// The end of each file that does not fill a pcluster
    Tails,
    /// All files
    All,
}

/// Runs the command.
///
/// # Errors
/// The arguments contradict each other, a source cannot be read, or the image cannot be written.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    if arguments.idle {
        run_when_idle().map_err(|error| Fail::failed(format!("--idle: {error}")))?;
    }
    let mut options = arguments.options()?;
    if arguments.sources.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
        return Err(Fail::usage("standard input can be a source only once"));
    }
    if arguments.image.as_os_str() == "-" {
        return Err(Fail::usage("an image cannot be written to standard output: name a file, or ./- for one named -"));
    }
    if floe_mkfs::is_archive(&arguments.image) {
        let image = arguments.image.shown();
        let why = "is an archive or a compressed file: name the image first, then its sources";
        return Err(Fail::usage(format!("{image} {why}")));
    }
    let known = arguments.sources.iter().chain(&arguments.base).chain(&arguments.devices);
    if known.clone().any(|path| sources::is_image(path)) {
        confinement::building(&[&arguments.image], known.map(PathBuf::as_path), arguments.sandbox.mode())?;
    }
    let sources = sources::sources(&arguments.sources, &arguments.devices)?;
    options.base = arguments.base.as_deref().map(sources::base).transpose()?;
    if sources.iter().any(|source| matches!(source, Source::Directory(_)))
        && let Some(reason) = fake::refusal()
    {
        return Err(Fail::failed(reason));
    }
    if arguments.verity {
        root_hash_file::check_verity_target(&arguments.image)?;
    }
    let stop = cancellation::on_signals()?;
    let temporaries = options.temporaries.clone();
    cancellation::end_after_signal(SIGNAL_PATIENCE, move || {
        temporaries.remove().then(|| Error::Cancelled.to_string())
    })?;
    let mut progress = Bar::new(arguments.quiet || arguments.json, &stop);
    let mut verifier = arguments.verify.verifier(options.jobs);
    let verifier = verifier.as_mut().map(|verifier| verifier as &mut dyn Verifier);
    let built = build_unnamed(&options, &sources, verifier, &mut progress);
    progress.clear();
    let complete = built.map_err(failed)?;
    let tree = arguments
        .verity
        .then(|| root_hash_file::append_verity_tree(&complete, &arguments.image, arguments.block_bytes()))
        .transpose()?;
    let verity_bytes = tree.as_ref().map_or(0, |tree| tree.len);
    let root_hash = tree.map(|tree| tree.root_hash);
    let stale = StaleRootHashes::of(&arguments.image, root_hash.as_ref().map(|companion| companion.path.as_path()));
    let companions: Vec<Companion> = root_hash.into_iter().chain(stale.companions).collect();
    let summary = complete.finish(&companions).map_err(failed)?;
    for note in summary.notes().iter().chain(&stale.notes) {
        say!("floe: {note}");
    }
    Output::run(|output| {
        if arguments.json {
            serde_json::to_writer_pretty(&mut *output, &SummaryRecord::new(&summary, verity_bytes))?;
            writeln!(output)?;
        } else if !arguments.quiet {
            writeln!(output, "{}", described(&summary, verity_bytes))?;
            if arguments.types {
                write!(output, "{}", type_table(&summary.types))?;
            }
        }
        Ok(Exit::Done.code())
    })
}

fn failed(error: Error) -> Fail {
    match error {
        Error::Option(_) => Fail::usage(error.to_string()),
        Error::Cancelled => Fail::failed(error.to_string()).with_exit(Exit::Interrupted),
        error => Fail::failed(error.to_string()),
    }
}

impl Arguments {
    fn options(&self) -> Result<Options, Fail> {
        let mut options = Options::new(&self.image);
        options.companions = root_hash_paths(&self.image);
        match self.format {
            FormatArgument::Erofs => self.set_erofs(&mut options)?,
            FormatArgument::Squashfs => options.format = Format::Squashfs(self.squashfs()?),
        }
        options.times = match (self.time, source_date_epoch::from_environment().map_err(Fail::usage)?) {
            (Some(seconds), _) => Times::All(seconds),
            (None, Some(seconds)) => Times::AtMost(seconds),
            (None, None) => Times::Own,
        };
        if self.all_root {
            (options.ownership.force_uid, options.ownership.force_gid) = (Some(0), Some(0));
        }
        options.xattrs.keep = !self.no_xattrs;
        let within = |component: &Component<'_>| !matches!(component, Component::RootDir | Component::CurDir);
        options.excludes = self.exclude.iter().map(|path| path.components().filter(within).collect()).collect();
        if options.excludes.iter().any(|path| path.as_os_str().is_empty()) {
            return Err(Fail::usage("--exclude: the root cannot be excluded"));
        }
        options.excludes_must_match = true;
        options.exclude_expressions.clone_from(&self.exclude_regex);
        if self.whiteouts {
            options.whiteouts = Whiteouts::Apply;
        }
        let changes = &mut options.tree_changes;
        let file_contexts = self.file_contexts.as_deref().map(rules::file_contexts).transpose();
        changes.file_contexts = file_contexts.map_err(Fail::usage)?;
        changes.fs_config = self.fs_config_file.as_deref().map(rules::fs_config).transpose().map_err(Fail::usage)?;
        changes.mount_point = self.mount_point.iter().flat_map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        options.strict = self.strict;
        options.lists_types = self.types || self.json;
        options.profile = self.profile.as_deref().map(rules::profile).transpose().map_err(Fail::failed)?;
        options.jobs = self.jobs.unwrap_or(options.jobs);
        if let Some(memory) = self.memory {
            options.memory_bytes = Some(usize::try_from(memory).unwrap_or(usize::MAX));
        }
        Ok(options)
    }

    /// Sets the options that only EROFS has.
    fn set_erofs(&self, options: &mut Options) -> Result<(), Fail> {
        let block_bytes = self.block_bytes();
        if !block_bytes.is_power_of_two() || !(512..=65_536).contains(&block_bytes) {
            return Err(Fail::usage("the block size is a power of two from 512 to 65536 bytes"));
        }
        options.block_size_log2 = u8::try_from(block_bytes.ilog2()).unwrap_or(u8::MAX);
        let pcluster_bytes = self.pcluster_bytes.unwrap_or(block_bytes);
        options.pcluster_bytes = u32::try_from(pcluster_bytes).unwrap_or(u32::MAX);
        for index in 0..self.algorithms().count() {
            let compression = self.compression(index, options.pcluster_bytes)?;
            // Also reports settings of algorithms that only hints use.
            compression.map(|compression| compression.encoder()).transpose().map_err(|error| failed(error.into()))?;
        }
        self.check_effects()?;
        options.compression = self.compression(0, options.pcluster_bytes)?;
        options.hints = self.hints()?;
        options.inline_pclusters = self.inline_tails;
        options.fragments = match self.fragments {
            None | Some(FragmentsArgument::None) => Fragments::None,
            Some(FragmentsArgument::Tails) => Fragments::Tails,
            Some(FragmentsArgument::All) => Fragments::All,
        };
        options.dedupe = self.dedupe;
        if self.extended_inodes {
            options.inode_form = InodeForm::Extended;
        }
        options.chunk_bytes = self.chunk;
        options.volume_name = self.label.as_ref().map(|name| name.as_encoded_bytes().to_vec()).unwrap_or_default();
        Ok(())
    }

    /// The block size in bytes.
    fn block_bytes(&self) -> u64 {
        self.block_size.unwrap_or(match self.format {
            FormatArgument::Erofs => BLOCK_BYTES,
            FormatArgument::Squashfs => squashfs::BLOCK_BYTES,
        })
    }

    fn hints(&self) -> Result<Vec<Hint>, Fail> {
        let Some(path) = &self.compress_hints else { return Ok(Vec::new()) };
        let algorithm = |index, pcluster_bytes| self.compression(index, pcluster_bytes).ok().flatten();
        let text = fs::read(path).map_err(|error| Fail::failed(format!("{}: {error}", path.shown())))?;
        let block_bytes = u32::try_from(self.block_bytes()).unwrap_or(u32::MAX);
        compress_hints::parse(&text, block_bytes, algorithm, Err)
            .map_err(|error| Fail::usage(format!("{}: {error}", path.shown())))
    }

    /// Refuses settings that none of the algorithms has.
    fn check_effects(&self) -> Result<(), Fail> {
        let check = |option: &str, has_setting: fn(&Compressor) -> bool| {
            let names: Vec<&str> = COMPRESSORS.iter().filter(|row| has_setting(row)).map(|row| row.name).collect();
            match self.algorithms().any(|text| names.contains(&text.split(',').next().unwrap_or(text))) {
                true => Ok(()),
                false => Err(Fail::usage(format!("{option} has no effect: only {} have one", listed(&names, "and")))),
            }
        };
        if self.dictionary.is_some() {
            check("--dictionary", |compressor| compressor.dictionary.is_some())?;
        }
        if self.lz4_window.is_some() {
            check("--lz4-window", |compressor| compressor.has_lz4_window)?;
        }
        Ok(())
    }

    fn algorithms(&self) -> impl Iterator<Item = &str> {
        self.compress.iter().flat_map(|text| text.split(':'))
    }

    /// The algorithm with this index, for pclusters of this size.
    fn compression(&self, index: usize, pcluster_bytes: u32) -> Result<Option<Compression>, Fail> {
        let Some(text) = self.algorithms().nth(index) else { return Ok(None) };
        let (name, level) = text.split_once(',').unwrap_or((text, ""));
        let compressor = Compressor::named(name);
        let level = match level.strip_prefix("level=").unwrap_or(level) {
            "" => None,
            _ if compressor.is_some_and(|compressor| compressor.levels.is_empty()) => {
                return Err(Fail::usage(format!("{name} has no levels: omit the level, or use lz4hc, 1 to 12")));
            }
            level => {
                let level: i64 = level
                    .parse()
                    .map_err(|_| Fail::usage(format!("'{level}' is not a level: give a number, as in zstd,9")))?;
                // The algorithm itself reports a level that is out of range.
                Some(u8::try_from(level).unwrap_or(u8::MAX))
            }
        };
        let window = u32::try_from(self.lz4_window.unwrap_or(LZ4_WINDOW_BYTES))
            .ok()
            .filter(|window| (4096..=65536).contains(window));
        let window = window.and_then(NonZeroU32::new).ok_or_else(|| Fail::usage("the window of LZ4 is 4k to 64k"))?;
        let compressor = compressor.ok_or_else(|| Fail::usage(self.unknown_algorithm(index, name)))?;
        Ok(Some(compressor.compression(&CompressorSettings {
            level,
            dictionary_bytes: self.dictionary.map(|dictionary| u32::try_from(dictionary).unwrap_or(u32::MAX)),
            lz4_window_bytes: window,
            pcluster_bytes,
        })))
    }

    /// A line about an algorithm that does not exist. Often it is a level behind a wrong sign: `zstd:9`, `zstd=9`.
    fn unknown_algorithm(&self, index: usize, name: &str) -> String {
        let is_level = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let before = index.checked_sub(1).and_then(|before| self.algorithms().nth(before));
        if let Some(before) = before.filter(|_| is_level(name)) {
            let before = before.split(',').next().unwrap_or(before);
            return format!("'{before}:{name}': a level follows a comma: use {before},{name}");
        }
        if let Some((before, level)) = name.split_once(['=', '-', ' ', '/']).filter(|(_, level)| is_level(level)) {
            return format!("'{name}': a level follows a comma: use {before},{level}");
        }
        format!("'{name}' is unknown: use {}", listed(&COMPRESSORS.map(|compressor| compressor.name), "or"))
    }
}

/// The words as a list, whose last two are joined by `conjunction`.
fn listed(words: &[&str], conjunction: &str) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} {conjunction} {last}", first.join(", ")),
        _ => words.concat(),
    }
}
