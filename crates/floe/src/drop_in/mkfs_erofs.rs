//! `mkfs.erofs`: its options, and its form of output.

mod algorithms;
mod extended;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read, Write},
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{SystemTime, UNIX_EPOCH},
};

use floe::{ImageVerifier, Thoroughness};
use floe_mkfs::{Hint, Options as BuildOptions, Phase, Progress, Source, Summary, Times, Whiteouts, build_verified};

use self::{algorithms::Algorithm, extended::Extended};
use super::erofs_tool::{ErofsTool, GivenOption, Options, number};
use crate::{cancellation, compress_hints, erofs_report::uuid_text, fail::Fail};

const HELP: &str = "\
Usage: mkfs.erofs [OPTIONS] FILE SOURCE
Make an EROFS image of a directory or a tar archive. This is floe under the name of mkfs.erofs.

 -b#                    the block size: 512 to 65536
 -C#                    the largest size of a pcluster in bytes
 -d<0-9>                what is told: 0 nothing, 2 faults
 -EX[,...]              features: all-fragments[=#] fragments[=#] dedupe ztailpacking legacy-compress 48bit
                        force-inode-compact force-inode-extended [^]inline_data force-chunk-indexes
                        force-inode-blockmap xattr-name-filter plain-xattr-prefixes fragdedupe=X
 -L X                   the name of the volume, at most 15 bytes
 -T#                    the time of the image and, but for --mkfs-time, of all files
 -U X                   the UUID; clear; random (by default it is made of the content)
 -x#                    attributes that more inodes have are stored once; below 0: none are stored
 -zX[,level=#][,dictsize=#][:...]
                        compress with lz4, lz4hc, lzma, deflate, libdeflate or zstd; after the first one those
                        that hints name by their numbers
 --all-root, --force-uid=#, --force-gid=#, --uid-offset=#, --gid-offset=#
 --all-time, --mkfs-time, --preserve-mtime, --ignore-mtime
 --aufs                 turn whiteouts of aufs into those of overlayfs
 --chunksize=#, --blobdev=X
 --compress-hints=X     how files are compressed whose paths match: <pcluster size> [algorithm] <expression>
 --exclude-path=X, --exclude-regex=X
 --quiet                write nothing to standard output
 --tar[=f]              SOURCE is a tar archive, or standard input where it is left out
 --workers=#            how many threads compress
 --xattr-prefix=X       store this prefix of names once
 --zfeature-bits=#      features of -E by their bits
 -h, --help, -V, --version
";

/// What is told if nothing else is asked for: faults.
const VERBOSITY: u64 = 2;
/// Options of the original that are not offered, with or without a value.
const NOT_OFFERED: [&str; 25] = [
    "m",
    "MZ",
    "zD",
    "incremental",
    "hard-dereference",
    "dsunit",
    "fsalignblks",
    "vmdk-desc",
    "s3",
    "oci",
    "gzinfo",
    "offset",
    "root-xattr-isize",
    "max-extent-bytes",
    "file-contexts",
    "product-out",
    "fs-config-file",
    "block-list-file",
    "mount-point",
    "xattr-inode-digest",
    "random-pclusterblks",
    "random-algorithms",
    "ovlfs-strip",
    "clean",
    "sort",
];
/// Which of them mean the default with this value.
const DEFAULTS: [(&str, &str); 9] = [
    ("MZ", "0"),
    ("zD", "0"),
    ("offset", "0"),
    ("dsunit", "0"),
    ("ovlfs-strip", "0"),
    ("clean", "data"),
    ("sort", "path"),
    ("sort", "none"),
    ("mount-point", "/"),
];

struct Order {
    build: BuildOptions,
    algorithms: Vec<Algorithm>,
    extended: Extended,
    pcluster_bytes: Option<u32>,
    hints: Option<PathBuf>,
    time: Option<i64>,
    /// Whether the time is the image's alone.
    is_build_time: bool,
    ignores_times: bool,
    is_tar: bool,
    is_quiet: bool,
    verbosity: u64,
}

/// Runs the program.
///
/// # Errors
/// Signals cannot be watched for.
pub(super) fn run(arguments: &[OsString]) -> Result<u8, Fail> {
    let tool = ErofsTool { name: "mkfs.erofs", help: HELP, usage_exit: 1 };
    let mut order = Order {
        build: BuildOptions::new(""),
        algorithms: Vec::new(),
        extended: Extended::default(),
        pcluster_bytes: None,
        hints: None,
        time: None,
        is_build_time: false,
        ignores_times: false,
        is_tar: false,
        is_quiet: false,
        verbosity: VERBOSITY,
    };
    order.build.xattrs.filter = false;
    let mut options = Options::new(arguments, "Vh");
    while let Some(option) = options.next() {
        match order.take(&option, &mut options) {
            Ok(true) => {}
            Ok(false) => return tool.standard(&option),
            Err(message) => return tool.wrong(&message),
        }
    }
    let operands = options.into_operands();
    let source = match order.source(&operands) {
        Ok(source) => source,
        Err(message) => return tool.wrong(&message),
    };
    if let Err(message) = order.complete() {
        return tool.wrong(&message);
    }
    let stop = cancellation::on_signals()?;
    let mut verifier = ImageVerifier { thoroughness: Thoroughness::Sample, jobs: order.build.jobs };
    match build_verified(&order.build, &[source], &mut verifier, &mut Silence(&stop)) {
        Ok(summary) => {
            if order.verbosity > 0 && !order.is_quiet {
                let _ = tell(&summary, &order.build);
            }
            Ok(0)
        }
        Err(error) => tool.failed(&error.to_string(), 1),
    }
}

impl Order {
    /// Takes an option; gives whether it is known.
    fn take(&mut self, option: &GivenOption, options: &mut Options) -> Result<bool, String> {
        let name = option.name.as_str();
        if NOT_OFFERED.contains(&name) {
            let value = option.attached();
            let is_default = DEFAULTS.iter().any(|default| *default == (name, &*lossy(value)));
            // Without a value this one means what is done anyway.
            if is_default || name == "clean" && value.is_none() {
                return Ok(true);
            }
            let dashes = if name.len() == 1 { "-" } else { "--" };
            return Err(format!("{dashes}{name} is not offered by floe"));
        }
        let build = &mut self.build;
        match name {
            "all-root" => (build.ownership.force_uid, build.ownership.force_gid) = (Some(0), Some(0)),
            "all-time" => self.is_build_time = false,
            "mkfs-time" => self.is_build_time = true,
            "ignore-mtime" => self.ignores_times = true,
            "preserve-mtime" => self.ignores_times = false,
            "aufs" => build.whiteouts = Whiteouts::Overlay,
            "quiet" => self.is_quiet = true,
            "tar" => match option.attached().map(OsStr::as_bytes) {
                None | Some(b"f") => self.is_tar = true,
                Some(_) => return Err(format!("--tar={} is not offered by floe", lossy(option.attached()))),
            },
            // How an archive is compressed is seen.
            "gzip" | "ungzip" | "unxz" | "unlzma" if option.attached().is_none() => {}
            "gzip" | "ungzip" | "unxz" | "unlzma" => return Err(format!("--{name}=X is not offered by floe")),
            "b" | "C" | "d" | "E" | "L" | "T" | "U" | "x" | "z" | "blobdev" | "chunksize" | "compress-hints"
            | "exclude-path" | "exclude-regex" | "force-uid" | "force-gid" | "uid-offset" | "gid-offset"
            | "workers" | "xattr-prefix" | "async-queue-limit" | "zfeature-bits" => {
                let value = options.value(option).ok_or_else(|| format!("option {name} requires an argument"))?;
                self.take_value(name, &value)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_value(&mut self, name: &str, value: &OsStr) -> Result<(), String> {
        let shown = value.to_string_lossy();
        let build = &mut self.build;
        let numbered = |what: &str| number(value).ok_or_else(|| format!("invalid {what} {shown}"));
        let id =
            |what: &str| numbered(what).and_then(|id| u32::try_from(id).map_err(|_| format!("invalid {what} {shown}")));
        match name {
            "b" => {
                let size = numbered("block size")?;
                if !(512..=65536).contains(&size) {
                    return Err(format!("invalid block size {shown}"));
                }
                build.block_size_log2 = u8::try_from(size.ilog2()).unwrap_or(u8::MAX);
            }
            "C" => self.pcluster_bytes = Some(id("physical clustersize")?),
            "d" => {
                self.verbosity = numbered("debug level")?;
                if self.verbosity > 9 {
                    return Err(format!("invalid debug level {shown}"));
                }
            }
            "E" => self.extended.take(&shown, build)?,
            "zfeature-bits" => self.extended.take_bits(numbered("zfeature bits")?, build)?,
            "L" => build.volume_name = value.as_bytes().to_vec(),
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
            "z" => self.algorithms = Algorithm::list(value)?,
            "blobdev" => build.blob_device = Some(PathBuf::from(value)),
            "compress-hints" => self.hints = Some(PathBuf::from(value)),
            "chunksize" => build.chunk_bytes = Some(numbered("chunksize")?),
            "exclude-path" => build.excludes.push(Path::new(value).components().collect()),
            "exclude-regex" => build.exclude_expressions.push(shown.into_owned()),
            "force-uid" => build.ownership.force_uid = Some(id("uid")?),
            "force-gid" => build.ownership.force_gid = Some(id("gid")?),
            "uid-offset" => build.ownership.uid_offset = id("uid offset")?,
            "gid-offset" => build.ownership.gid_offset = id("gid offset")?,
            "workers" => {
                let count = usize::try_from(numbered("worker number")?).unwrap_or(usize::MAX);
                // None means that the calling thread compresses.
                build.jobs = count.clamp(1, BuildOptions::JOBS_MAX).try_into().unwrap_or(build.jobs);
            }
            "xattr-prefix" => build.xattrs.long_prefixes.push(value.as_bytes().to_vec()),
            // Memory is bounded in another way.
            _ => {}
        }
        Ok(())
    }

    /// Takes what is no option.
    fn source(&mut self, operands: &[OsString]) -> Result<Source, String> {
        let mut operands = operands.iter();
        self.build.output = operands.next().ok_or("missing argument: FILE")?.into();
        let Some(source) = operands.next() else {
            return if self.is_tar { Ok(Source::TarFromInput) } else { Err("missing argument: SOURCE(s)".into()) };
        };
        if let Some(unexpected) = operands.next() {
            return Err(format!("unexpected argument: {}", unexpected.display()));
        }
        match self.is_tar {
            true => Ok(Source::Tar(source.into())),
            false if Path::new(source).is_file() => {
                Err("to make an image of other images is not offered by floe; for an archive give --tar".into())
            }
            false => Ok(Source::Directory(source.into())),
        }
    }

    fn hints_of(&self, path: &Path) -> Result<Vec<Hint>, String> {
        let told = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| told(&error))?;
        let algorithm = |index: usize, size| self.algorithms.get(index).map(|algorithm| algorithm.compression(size));
        compress_hints::parse(&text, algorithm).map_err(|error| told(&error))
    }

    /// Puts together what depends on several options.
    fn complete(&mut self) -> Result<(), String> {
        let block_size = 1u32 << self.build.block_size_log2;
        self.build.pcluster_bytes = self.pcluster_bytes.unwrap_or(block_size);
        self.build.compression =
            self.algorithms.first().map(|algorithm| algorithm.compression(self.build.pcluster_bytes));
        self.build.hints = self.hints.as_deref().map(|path| self.hints_of(path)).transpose()?.unwrap_or_default();
        if self.extended.packed_pcluster.is_some_and(|size| size != self.build.pcluster_bytes) {
            return Err("a pcluster size of fragments other than -C is not offered by floe".into());
        }
        let clamped = std::env::var_os("SOURCE_DATE_EPOCH").map(|text| {
            let seconds = number(&text).and_then(|seconds| i64::try_from(seconds).ok());
            seconds.ok_or_else(|| format!("environment variable $SOURCE_DATE_EPOCH {} is invalid", text.display()))
        });
        self.build.times = match (clamped.transpose()?, self.time) {
            (Some(seconds), _) => Times::AtMost(seconds),
            (None, Some(seconds)) if !self.is_build_time => Times::All(seconds),
            (None, Some(seconds)) => Times::OwnBuiltAt(seconds),
            (None, None) => Times::Own,
        };
        if self.ignores_times || self.extended.ignores_times {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            self.build.times = Times::All(self.time.unwrap_or(i64::try_from(now).unwrap_or(0)));
        }
        Ok(())
    }
}

/// Tells nothing.
struct Silence<'a>(&'a AtomicBool);

impl Progress for Silence<'_> {
    fn advance(&mut self, _: Phase, _: u64, _: u64) -> ControlFlow<()> {
        if self.0.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn lossy(value: Option<&OsStr>) -> String {
    value.map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// The UUID that an argument asks for.
fn uuid(text: &str) -> Result<Option<[u8; 16]>, String> {
    match text {
        "clear" => Ok(Some([0; 16])),
        "random" => random_uuid().map(Some).map_err(|error| format!("cannot make a random UUID: {error}")),
        text => {
            let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
            let is_uuid = digits.len() == 32 && text.len() == 36 && digits.iter().all(u8::is_ascii_hexdigit);
            let number = std::str::from_utf8(&digits).ok().filter(|_| is_uuid);
            let number = number.and_then(|digits| u128::from_str_radix(digits, 16).ok());
            number.map(|number| Some(number.to_be_bytes())).ok_or_else(|| format!("invalid UUID {text}"))
        }
    }
}

fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Says what was made; it is made even where nobody listens.
fn tell(summary: &Summary, options: &BuildOptions) -> io::Result<()> {
    let block_size = 1u64 << options.block_size_log2;
    let mut output = io::stdout().lock();
    writeln!(output, "mkfs.erofs (floe) {}\nBuild completed.\n\n------", env!("CARGO_PKG_VERSION"))?;
    writeln!(output, "Filesystem UUID: {}", uuid_text(&summary.uuid))?;
    writeln!(output, "Filesystem total blocks: {} (of {block_size}-byte blocks)", summary.image_bytes / block_size)?;
    writeln!(output, "Filesystem total inodes: {}", summary.inodes)?;
    writeln!(output, "Filesystem total metadata blocks: {}", summary.metadata_bytes / block_size)?;
    writeln!(output, "Filesystem total deduplicated bytes (of source files): {}", summary.duplicate_bytes)
}
