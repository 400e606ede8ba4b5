//! `mkfs.erofs`: its options and its output format.

mod algorithms;
mod extended;
mod option_table;
mod sources;
mod uuid;

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write},
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use floe::{ImageVerifier, Thoroughness};
use floe_image::ShownName;
use floe_mkfs::{
    Coding, Fragments, Hint, InodeForm, Metabox, Options as BuildOptions, OverlayMarks, Phase, Progress, Source,
    Summary, Times, Whiteouts, build_unnamed,
};

use floe_sandbox::Mode;
pub(in crate::drop_in) use option_table::help;

use self::{algorithms::Algorithm, extended::Extended, option_table::Value, uuid::uuid};
use super::erofs_tool::{ErofsTool, GivenOption, Options, number};
use crate::{
    cancellation,
    command::mkfs::rules::{file_contexts, fs_config},
    compress_hints,
    erofs_report::uuid_text,
    expression_text::expression_text,
    fail::Fail,
    fake,
    root_hash_file::StaleRootHashes,
    source_date_epoch,
};
use option_table::Support;

/// How long a build may continue after a signal before it checks for cancellation.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(400);
/// The default verbosity: faults are printed.
const VERBOSITY: u64 = 2;
/// The maximum length of a volume label, in bytes.
const VOLUME_NAME_LEN_MAX: usize = 15;

/// The default name of the attribute with the digest of a file.
const FINGERPRINT_NAME: &[u8] = b"erofs.fingerprint.v1";

/// The first parts of the names of attributes that can have a prefix of --xattr-prefix.
const XATTR_PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Why a command line is refused.
#[derive(Debug)]
enum Wrong {
    /// The usage is wrong.
    Call(String),
    /// The original supports this, but Floe does not.
    Refused(String),
}

impl From<String> for Wrong {
    fn from(message: String) -> Self {
        Self::Call(message)
    }
}

struct Order {
    build: BuildOptions,
    algorithms: Vec<Algorithm>,
    extended: Extended,
    pcluster_bytes: Option<u32>,
    /// The pcluster size of the metabox, and the index of its algorithm.
    metabox: Option<(u32, usize)>,
    hints: Option<PathBuf>,
    time: Option<i64>,
    /// Whether the time applies only to the image.
    is_build_time: bool,
    ignores_times: bool,
    is_tar: bool,
    /// Whether the image refers to the data in its archive.
    refers_to_archive: bool,
    /// Whether the data of layers is stored; otherwise the image refers to it.
    stores_data: bool,
    /// Whether the new image has the files of the one that it replaces, too.
    adds: bool,
    splits_links: bool,
    is_quiet: bool,
    verbosity: u64,
    sandbox: Mode,
    /// Settings without effect, one line each.
    notes: Vec<String>,
}

/// Runs the program.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(super) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    let help = option_table::help();
    let tool = ErofsTool { name: "mkfs.erofs", help: &help, usage_exit: 1 };
    let mut order = Order {
        build: BuildOptions::new(""),
        algorithms: Vec::new(),
        extended: Extended::default(),
        pcluster_bytes: None,
        metabox: None,
        hints: None,
        time: None,
        is_build_time: false,
        ignores_times: false,
        is_tar: false,
        refers_to_archive: false,
        stores_data: false,
        adds: false,
        splits_links: false,
        is_quiet: false,
        verbosity: VERBOSITY,
        sandbox,
        notes: Vec::new(),
    };
    order.build.overlay_marks = OverlayMarks::MarkOrigins;
    let mut options = Options::new(arguments, "Vh");
    while let Some(mut option) = options.next() {
        match order.take(&mut option, &mut options) {
            Ok(true) => {}
            Ok(false) => return tool.standard(&option),
            Err(Wrong::Call(message)) => return tool.wrong(&message),
            Err(Wrong::Refused(message)) => return tool.failed(&message, 1),
        }
    }
    let operands = options.into_operands();
    let sources = match order.sources(&operands) {
        Ok(sources) => sources,
        Err(message) => return tool.wrong(&message),
    };
    if let Err(message) = order.complete() {
        return tool.wrong(&message);
    }
    if matches!(sources.as_slice(), [Source::Directory(_)])
        && let Some(reason) = fake::refusal()
    {
        return tool.failed(&reason, 1);
    }
    let stop = cancellation::on_signals()?;
    let mut verifier = ImageVerifier { thoroughness: Thoroughness::Sample, jobs: order.build.jobs };
    let temporaries = order.build.temporaries.clone();
    let cancelled = || floe_mkfs::Error::Cancelled.to_string();
    cancellation::end_after_signal(SIGNAL_PATIENCE, move || temporaries.remove().then(cancelled))?;
    let built = build_unnamed(&order.build, &sources, Some(&mut verifier), &mut Silence(&stop));
    let finished = built.and_then(|complete| {
        let stale = StaleRootHashes::of(&order.build.output, None);
        Ok((complete.finish(&stale.companions)?, stale.notes))
    });
    match finished {
        Ok((summary, notes)) => {
            if order.verbosity > 0 {
                order.notes.iter().chain(&summary.notes()).chain(&notes).for_each(|note| say!("<W> erofs: {note}"));
            }
            if order.verbosity > 0 && !order.is_quiet {
                let _ = tell(&summary, &order.build);
            }
            Ok(0)
        }
        Err(error) => tool.failed(&error.to_string(), 1),
    }
}

impl Order {
    /// Parses an option. Returns whether it was handled; unknown and purely informative options are not.
    fn take(&mut self, option: &mut GivenOption, options: &mut Options) -> Result<bool, Wrong> {
        let Some(row) = option_table::find(&option.name)? else { return Ok(false) };
        row.name.clone_into(&mut option.name);
        let value = match row.value {
            Value::None if option.attached().is_some() => {
                return Err(Wrong::Call(format!("option '--{}' doesn't allow an argument", row.name)));
            }
            Value::None | Value::Optional => option.attached().map(OsStr::to_owned),
            Value::Required => {
                Some(options.value(option).ok_or_else(|| format!("option {} requires an argument", row.name))?)
            }
        };
        match row.support {
            Support::Refused(why, harmless) => {
                if harmless.iter().any(|known| *known == lossy(value.as_deref())) {
                    return Ok(true);
                }
                let dashes = if row.name.len() == 1 { "-" } else { "--" };
                return Err(Wrong::Refused(format!("{dashes}{} is not offered by floe: {why}", row.name)));
            }
            Support::Supported | Support::Ignored(_) => {}
        }
        match value {
            Some(value) => self.take_value(row.name, &value)?,
            None => return Ok(self.take_flag(row.name)),
        }
        Ok(true)
    }

    /// Parses an option without a value. Returns whether it was handled.
    fn take_flag(&mut self, name: &str) -> bool {
        let build = &mut self.build;
        match name {
            "all-root" => (build.ownership.force_uid, build.ownership.force_gid) = (Some(0), Some(0)),
            "all-time" => self.is_build_time = false,
            "mkfs-time" => self.is_build_time = true,
            "ignore-mtime" => self.ignores_times = true,
            "preserve-mtime" => self.ignores_times = false,
            "aufs" => build.whiteouts = Whiteouts::Overlay,
            "hard-dereference" => self.splits_links = true,
            "ovlfs-strip" => build.overlay_marks = OverlayMarks::Strip,
            "quiet" => self.is_quiet = true,
            "tar" => (self.is_tar, self.refers_to_archive) = (true, false),
            "clean" => (self.stores_data, self.adds) = (true, false),
            "incremental" => (self.stores_data, self.adds) = (true, true),
            "xattr-inode-digest" => build.xattrs.fingerprint = Some(FINGERPRINT_NAME.to_vec()),
            "zD" => build.layout.packs_directories = true,
            "V" | "version" | "h" | "help" => return false,
            // Options without effect.
            _ => {}
        }
        true
    }

    fn take_value(&mut self, name: &str, value: &OsStr) -> Result<(), Wrong> {
        let shown = value.to_string_lossy();
        let build = &mut self.build;
        let numbered = |what: &str| number(value).ok_or_else(|| format!("invalid {what} {shown}"));
        let id =
            |what: &str| numbered(what).and_then(|id| u32::try_from(id).map_err(|_| format!("invalid {what} {shown}")));
        // The last number stands for no owner.
        let owner = |what: &str| {
            id(what)
                .and_then(|id| Some(id).filter(|id| *id != u32::MAX).ok_or_else(|| format!("invalid {what} {shown}")))
        };
        let sized = |what: &str| sized(&shown).ok_or_else(|| format!("invalid {what} {shown}"));
        match name {
            "b" => {
                let size = sized("block size")?;
                if !(512..=65536).contains(&size) {
                    return Err(Wrong::Call(format!("invalid block size {shown}")));
                }
                build.block_size_log2 = u8::try_from(size.ilog2()).unwrap_or(u8::MAX);
            }
            "C" => self.pcluster_bytes = Some(sized("physical clustersize")?),
            "d" => {
                self.verbosity = numbered("debug level")?;
                if self.verbosity > 9 {
                    return Err(Wrong::Call(format!("invalid debug level {shown}")));
                }
            }
            "E" => self.extended.take(&shown, build)?,
            "zfeature-bits" => self.extended.take_bits(numbered("zfeature bits")?, build)?,
            "L" if value.len() > VOLUME_NAME_LEN_MAX => return Err(Wrong::Call("invalid volume label".into())),
            "L" => build.volume_name = value.as_bytes().to_vec(),
            "m" => self.metabox = Some(self.metabox_of(&shown)?),
            "T" => {
                let time = i64::try_from(numbered("UNIX timestamp")?);
                self.time = Some(time.map_err(|_| format!("invalid UNIX timestamp {shown}"))?);
            }
            "U" => build.uuid = uuid(&shown)?,
            "x" => {
                let limit: i64 = shown.parse().map_err(|_| format!("invalid xattr tolerance {shown}"))?;
                build.xattrs.keep = limit >= 0;
                build.xattrs.share_above = usize::try_from(limit).ok();
            }
            "z" => self.algorithms.extend(Algorithm::list(value)?),
            "zD" if matches!(&*shown, "0" | "1") => build.layout.packs_directories = &*shown == "1",
            "zD" => return Err(Wrong::Call(format!("invalid --zD={shown}: use 0 or 1"))),
            "MZ" if !matches!(&*shown, "0" | "i" | "id" | "di") => {
                return Err(Wrong::Call(format!(
                    "invalid metazone flags {shown}: directory data in the metazone requires the inodes there too"
                )));
            }
            "blobdev" => build.blob_device = Some(PathBuf::from(value)),
            "compress-hints" => self.hints = Some(PathBuf::from(value)),
            "chunksize" => build.chunk_bytes = Some(numbered("chunksize")?),
            "dsunit" => build.layout.data_unit_blocks = id("dsunit")?.max(1),
            "file-contexts" => build.tree_changes.file_contexts = Some(file_contexts(Path::new(value))?),
            "fs-config-file" => build.tree_changes.fs_config = Some(fs_config(Path::new(value))?),
            "mount-point" => build.tree_changes.mount_point = value.as_bytes().to_vec(),
            "exclude-path" => build.excludes.push(Path::new(value).components().collect()),
            "exclude-regex" => build.exclude_expressions.push(expression_text(value.as_bytes())),
            "force-uid" => build.ownership.force_uid = Some(owner("uid")?),
            "force-gid" => build.ownership.force_gid = Some(owner("gid")?),
            "fsalignblks" => {
                let blocks = id("fsalignblks")?.checked_next_power_of_two();
                build.layout.blocks_multiple = blocks.ok_or_else(|| format!("invalid fsalignblks {shown}"))?;
            }
            "uid-offset" => build.ownership.uid_offset = id("uid offset")?,
            "gid-offset" => build.ownership.gid_offset = id("gid offset")?,
            "max-extent-bytes" if shown.starts_with('-') => {
                return Err(Wrong::Refused(format!(
                    "--max-extent-bytes={shown} is not offered by floe: pclusters always begin with a block; use a size \
                     above 0"
                )));
            }
            "max-extent-bytes" => {
                build.layout.extent_bytes_max =
                    Some(sized("maximum compressed extent size")?).filter(|bytes| *bytes > 0);
            }
            "offset" => build.layout.offset = numbered("disk offset")?,
            "ovlfs-strip" if &*shown == "1" => build.overlay_marks = OverlayMarks::Strip,
            "ovlfs-strip" => build.overlay_marks = OverlayMarks::MarkOrigins,
            "root-xattr-isize" => build.layout.root_xattr_bytes = id("the minimum inline xattr size")?,
            "tar" if matches!(&*shown, "f" | "i") => (self.is_tar, self.refers_to_archive) = (true, &*shown == "i"),
            "clean" | "incremental" if &*shown == "data" => {
                (self.stores_data, self.adds) = (true, name == "incremental")
            }
            "clean" | "incremental" => {
                return Err(Wrong::Refused(format!(
                    "--{name}={shown} is not offered by floe: images without data are not supported; use --{name}=data"
                )));
            }
            "tar" => {
                return Err(Wrong::Refused(format!(
                    "--tar={shown} is not offered by floe: images without data are not supported; use --tar=f or --tar=i"
                )));
            }
            "workers" => {
                let count = usize::try_from(numbered("worker number")?).unwrap_or(usize::MAX);
                // In the original, 0 means that the calling thread compresses. Here, one thread compresses.
                build.jobs = count.clamp(1, BuildOptions::JOBS_MAX).try_into().unwrap_or(build.jobs);
            }
            "xattr-prefix" if !XATTR_PREFIXES.iter().any(|prefix| value.as_bytes().starts_with(prefix)) => {
                self.notes.push(format!(
                    "--xattr-prefix={shown} has no effect: it does not begin with user., trusted. or security."
                ));
            }
            "xattr-inode-digest" => build.xattrs.fingerprint = Some(value.as_bytes().to_vec()),
            "xattr-prefix" => build.xattrs.long_prefixes.push(value.as_bytes().to_vec()),
            // Options without effect.
            _ => {}
        }
        Ok(())
    }

    /// The pcluster size of the metabox and the index of its algorithm.
    fn metabox_of(&mut self, text: &str) -> Result<(u32, usize), Wrong> {
        let (size, algorithm) = text.split_once(':').unwrap_or((text, "0"));
        let size = sized(size).filter(|size| *size > 0).ok_or_else(|| format!("invalid metabox option {text}"))?;
        let number = match algorithm.parse() {
            Ok(number) => number,
            Err(_) => {
                self.algorithms.extend(Algorithm::list(OsStr::new(algorithm))?);
                self.algorithms.len() - 1
            }
        };
        Ok((size, number))
    }

    fn hints_of(&mut self, path: &Path) -> Result<Vec<Hint>, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.shown());
        let text = std::fs::read(path).map_err(|error| told(&error))?;
        if self.algorithms.is_empty() {
            return Ok(Vec::new());
        }
        let algorithm = |index: usize, size| self.algorithms.get(index).map(|algorithm| algorithm.compression(size));
        let skip = |message: String| {
            self.notes.push(format!("{}: {message}: the line has no effect", path.shown()));
            Ok(())
        };
        let block_bytes = 1 << self.build.block_size_log2;
        compress_hints::parse(&text, block_bytes, algorithm, skip).map_err(|error| told(&error))
    }

    /// Resolves settings that depend on several options.
    fn complete(&mut self) -> Result<(), String> {
        let block_size = 1u32 << self.build.block_size_log2;
        self.drop_settings_refusal();
        self.build.pcluster_bytes = self.pcluster_bytes.unwrap_or(block_size);
        self.build.compression =
            self.algorithms.first().map(|algorithm| algorithm.compression(self.build.pcluster_bytes));
        let hints = self.hints.clone();
        self.build.hints = hints.map(|path| self.hints_of(&path)).transpose()?.unwrap_or_default();
        self.build.splits_links = self.splits_links && !self.is_tar;
        if self.is_tar && self.build.whiteouts == Whiteouts::Keep {
            // The original does not look for such marks in archives.
            self.build.overlay_marks = OverlayMarks::Keep;
        }
        let hinted = self.build.hints.iter().filter_map(|hint| hint.coding).map(|coding| coding.pcluster_bytes).max();
        let largest = self.build.pcluster_bytes.max(hinted.unwrap_or(0));
        let coding = |number: usize, pcluster_bytes: u32, what: &str| match self.algorithms.get(number) {
            _ if pcluster_bytes > largest => Err(format!(
                "pcluster size ({} blocks) for {what} exceeds maximum; use -C too",
                pcluster_bytes / block_size
            )),
            Some(algorithm) => Ok(Coding { compression: algorithm.compression(pcluster_bytes), pcluster_bytes }),
            None => Err(format!("there is no algorithm {number} for {what}: add it to -z")),
        };
        if let Some(pcluster_bytes) = self.extended.packed_pcluster {
            self.build.layout.packed_coding = Some(coding(0, pcluster_bytes, "packed inode")?);
        }
        self.build.layout.metabox = match self.metabox {
            None => Metabox::None,
            Some((_, 0)) if self.algorithms.is_empty() => Metabox::Inode(None),
            Some((pcluster_bytes, number)) => Metabox::Inode(Some(coding(number, pcluster_bytes, "metabox inode")?)),
        };
        self.build.times = self.times(source_date_epoch::from_environment()?);
        self.build.wide |= self.metabox.is_some();
        Ok(())
    }

    /// Drops compression where files have chunks, and its settings where nothing is compressed, as the original does.
    fn drop_settings_refusal(&mut self) {
        if self.build.chunk_bytes.is_some() && !self.algorithms.is_empty() && self.metabox.is_none() {
            self.algorithms.clear();
            self.notes.push("-z has no effect: files have chunks".into());
        }
        if !self.algorithms.is_empty() {
            return;
        }
        if self.build.inline_pclusters || self.build.fragments != Fragments::None {
            (self.build.inline_pclusters, self.build.fragments) = (false, Fragments::None);
            self.extended.packed_pcluster = None;
            self.notes.push("ztailpacking and fragments have no effect: files are not compressed".into());
        }
        if self.hints.is_some() {
            self.notes.push("--compress-hints has no effect: files are not compressed".into());
        }
    }

    /// The times of inodes. As in the original, the time in the environment takes precedence over `-T`, and times are
    /// ignored only where inodes have none of their own.
    fn times(&self, limit: Option<i64>) -> Times {
        let has_compact_inodes = self.build.inode_form == InodeForm::Smallest && !self.build.wide;
        if has_compact_inodes && (self.ignores_times || self.extended.ignores_times) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            return Times::All(limit.or(self.time).unwrap_or(i64::try_from(now).unwrap_or(0)));
        }
        match (limit, self.time) {
            (Some(seconds), _) => Times::AtMost(seconds),
            (None, Some(seconds)) if !self.is_build_time => Times::All(seconds),
            (None, Some(seconds)) => Times::OwnBuiltAt(seconds),
            (None, None) => Times::Own,
        }
    }
}

/// Reports no progress.
struct Silence<'a>(&'a AtomicBool);

impl Progress for Silence<'_> {
    fn advance(&mut self, _: Phase, _: u64, _: u64) -> ControlFlow<()> {
        if self.0.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn lossy(value: Option<&OsStr>) -> String {
    value.map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// A size in bytes, optionally with a unit of KiB, MiB or GiB.
fn sized(text: &str) -> Option<u32> {
    let (digits, shift) = match text.char_indices().next_back()? {
        (end, 'k' | 'K') => (&text[..end], 10),
        (end, 'm' | 'M') => (&text[..end], 20),
        (end, 'g' | 'G') => (&text[..end], 30),
        _ => (text, 0),
    };
    u32::try_from(number(OsStr::new(digits))?.checked_mul(1 << shift)?).ok()
}

/// Prints a summary. The caller ignores errors, because the image exists even if nobody reads the summary.
fn tell(summary: &Summary, options: &BuildOptions) -> io::Result<()> {
    let block_size = 1u64 << options.block_size_log2;
    let mut output = io::stdout().lock();
    writeln!(output, "mkfs.erofs (floe) {}\nBuild completed.\n\n------", env!("CARGO_PKG_VERSION"))?;
    writeln!(output, "Filesystem UUID: {}", uuid_text(&summary.uuid))?;
    writeln!(
        output,
        "Filesystem total blocks: {} (of {block_size}-byte blocks)",
        (summary.image_bytes + summary.blob_bytes) / block_size
    )?;
    writeln!(output, "Filesystem total inodes: {}", summary.inodes)?;
    writeln!(output, "Filesystem total metadata blocks: {}", summary.metadata_bytes / block_size)?;
    writeln!(output, "Filesystem total deduplicated bytes (of source files): {}", summary.duplicate_bytes)
}
