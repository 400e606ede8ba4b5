//! Parses the command line of `mksquashfs`.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use floe_image::ShownName;
use floe_mkfs::{Format, Options as BuildOptions, PackedTails, Source, SquashfsOptions, Times, UncompressedParts};

use super::{
    accounts::{Accounts, octal_mode},
    compressor::CompressorOptions,
    option_table::{self, Support},
    paths::{ExcludedNames, ImagePaths},
    program::Program,
    pseudo,
    size::size,
};
use crate::{
    drop_in::unsquashfs::{name_list, path_patterns::Matching, progress::Form, time},
    source_date_epoch,
};

/// The longest pseudo file or sort file in bytes.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// The permission bits of a root that no source has.
const ROOT_MODE: u16 = 0o777;

/// Where to write the names of files.
pub(in crate::drop_in) enum InfoTarget {
    Output,
    File(PathBuf),
}

/// What to build.
pub(in crate::drop_in) struct Order {
    pub(in crate::drop_in) build: BuildOptions,
    pub(in crate::drop_in) sources: Vec<Source>,
    pub(in crate::drop_in) compressor: &'static str,
    pub(in crate::drop_in) is_quiet: bool,
    /// The form in which progress is shown, if it is.
    pub(in crate::drop_in) progress: Option<Form>,
    pub(in crate::drop_in) info: Option<InfoTarget>,
    /// Messages about options that have no effect, a line for each.
    pub(in crate::drop_in) notes: Vec<String>,
}

/// What the command line asks for.
pub(super) enum Request {
    Build(Box<Order>),
    Help,
    Version,
}

/// The command line while it is read.
struct Parsed {
    build: BuildOptions,
    squashfs: SquashfsOptions,
    compressor: CompressorOptions,
    accounts: Accounts,
    excludes: Vec<OsString>,
    exclude_matching: Matching,
    /// Pseudo definitions.
    pseudo: Vec<Vec<u8>>,
    sort_file: Option<PathBuf>,
    build_time: Option<GivenTime>,
    inode_time: Option<GivenTime>,
    replaces: bool,
    is_tar: bool,
    /// Whether there is an export table; by default, there is none for an archive.
    exports: Option<bool>,
    keeps_directory: bool,
    is_quiet: bool,
    progress: Option<Form>,
    info: Option<InfoTarget>,
}

/// A time on the command line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenTime {
    /// The latest time of a file.
    Latest,
    Seconds(i64),
}

/// Parses the arguments, which begin with the name of the program.
///
/// # Errors
/// A message.
pub(super) fn parse(program: Program, arguments: &[OsString]) -> Result<Request, String> {
    let mut rest: VecDeque<&OsString> = arguments.iter().skip(1).collect();
    let mut parsed = Parsed::new();
    let mut operands = Vec::new();
    if program == Program::Sqfstar {
        parsed.is_tar = true;
        if let Some(request) = parsed.take_options(&mut rest)? {
            return Ok(request);
        }
        operands.push(PathBuf::from("-"));
        operands.extend(rest.pop_front().map(PathBuf::from));
        parsed.excludes.extend(rest.into_iter().cloned());
    } else {
        while rest.front().is_some_and(|text| !is_option(text)) {
            operands.extend(rest.pop_front().map(PathBuf::from));
        }
        if let Some(request) = parsed.take_options(&mut rest)? {
            return Ok(request);
        }
        if let Some(unexpected) = rest.front() {
            return Err(format!("{} is unexpected: sources and the image come before the options", unexpected.shown()));
        }
    }
    match operands.pop() {
        Some(image) if !operands.is_empty() => {
            parsed.finish(operands, image).map(|order| Request::Build(Box::new(order)))
        }
        _ if program == Program::Sqfstar => Err("name an image: sqfstar [OPTIONS] FILESYSTEM [PATH...]".into()),
        _ => Err("name sources and an image: mksquashfs SOURCE... FILESYSTEM [OPTIONS]".into()),
    }
}

fn is_option(text: &OsStr) -> bool {
    text.as_encoded_bytes().starts_with(b"-") && text != "-"
}
impl Parsed {
    fn new() -> Self {
        Self {
            build: BuildOptions::new(""),
            squashfs: SquashfsOptions::default(),
            compressor: CompressorOptions::default(),
            accounts: Accounts::default(),
            excludes: Vec::new(),
            exclude_matching: Matching::Exact,
            pseudo: Vec::new(),
            sort_file: None,
            build_time: None,
            inode_time: None,
            replaces: false,
            is_tar: false,
            exports: None,
            keeps_directory: false,
            is_quiet: false,
            progress: Some(Form::Bar),
            info: None,
        }
    }

    /// Reads options up to the first argument that is none.
    fn take_options(&mut self, rest: &mut VecDeque<&OsString>) -> Result<Option<Request>, String> {
        while rest.front().is_some_and(|text| is_option(text))
            && let Some(argument) = rest.pop_front()
        {
            let name = argument.to_str().and_then(|text| text.strip_prefix('-')).unwrap_or_default();
            // All drop-in programs have these.
            let name = name.strip_prefix('-').filter(|name| matches!(*name, "help" | "version")).unwrap_or(name);
            let Some(row) = option_table::find(name) else {
                return Err(format!("{} is an invalid option; see -help", argument.shown()));
            };
            match row.support {
                Support::Refused(why) => return Err(format!("-{name} is not offered by floe: {why}")),
                Support::Supported | Support::Ignored(_) => {}
            }
            match row.names.first().copied().unwrap_or_default() {
                "help" | "Xhelp" => return Ok(Some(Request::Help)),
                "version" => return Ok(Some(Request::Version)),
                "e" if !rest.is_empty() => self.excludes.extend(rest.drain(..).cloned()),
                name if row.value.is_empty() => self.take_flag(name),
                name => {
                    let value = rest.pop_front().ok_or_else(|| format!("-{name} needs a value: {}", row.value))?;
                    self.take_value(name, value)?;
                }
            }
        }
        Ok(None)
    }

    fn take_flag(&mut self, name: &str) {
        let (squashfs, build) = (&mut self.squashfs, &mut self.build);
        let parts = &mut squashfs.uncompressed;
        match name {
            "noI" => parts.inodes = true,
            "noId" => parts.ids = true,
            "noD" => parts.data = true,
            "noF" => parts.fragments = true,
            "noX" => parts.xattrs = true,
            "no-compression" => {
                *parts = UncompressedParts { inodes: true, data: true, fragments: true, xattrs: true, ids: true };
            }
            "Xhc" => self.compressor.is_high = true,
            "tar" => self.is_tar = true,
            "no-exports" => self.exports = Some(false),
            "exports" => self.exports = Some(true),
            "no-sparse" => squashfs.finds_holes = false,
            "no-tailends" if squashfs.tails == PackedTails::All => squashfs.tails = PackedTails::SmallFiles,
            "tailends" if squashfs.tails == PackedTails::SmallFiles => squashfs.tails = PackedTails::All,
            "no-fragments" => squashfs.tails = PackedTails::None,
            "no-duplicates" => squashfs.shares_files = false,
            "no-hardlinks" => build.splits_links = true,
            "keep-as-directory" => self.keeps_directory = true,
            "repro" => self.build_time = Some(GivenTime::Latest),
            "all-root" => (build.ownership.force_uid, build.ownership.force_gid) = (Some(0), Some(0)),
            "wildcards" => self.exclude_matching = Matching::Wildcards,
            "regex" => self.exclude_matching = Matching::Expressions,
            "no-xattrs" => build.xattrs.keep = false,
            "xattrs" => build.xattrs.keep = true,
            "exit-on-error" => build.strict = true,
            "quiet" => self.is_quiet = true,
            "info" => (self.info, self.progress) = (Some(InfoTarget::Output), None),
            "no-progress" => self.progress = None,
            "progress" => self.progress = Some(Form::Bar),
            "percentage" => self.progress = Some(Form::Percentage),
            "noappend" => self.replaces = true,
            "nopad" => squashfs.pads = false,
            // Options without effect.
            _ => {}
        }
    }

    fn take_value(&mut self, name: &str, value: &OsStr) -> Result<(), String> {
        let shown = value.shown();
        let text = value.to_str().unwrap_or_default();
        let wrong = || format!("-{name} {shown} is invalid");
        let root = self.build.tree_changes.root;
        let build = &mut self.build;
        match name {
            "b" => {
                let size = size(text).filter(|size| size.is_power_of_two() && (4096..=1 << 20).contains(size));
                let size = size.ok_or_else(|| format!("{}: a block has 4K to 1M, a power of two", wrong()))?;
                self.squashfs.block_size_log2 = u8::try_from(size.ilog2()).unwrap_or(u8::MAX);
            }
            "comp" => self.compressor.choose(text)?,
            "Xcompression-level" => self.compressor.level = Some(text.parse().map_err(|_| wrong())?),
            "Xwindow-size" => self.compressor.window_log2 = Some(text.parse().map_err(|_| wrong())?),
            "Xstrategy" => self.compressor.strategies = Some(text.to_owned()),
            "Xbcj" => self.compressor.filters = Some(text.to_owned()),
            "Xdict-size" => self.compressor.dictionary = Some(text.to_owned()),
            "Xalgorithm" => self.compressor.algorithm = Some(text.to_owned()),
            "mkfs-time" => self.build_time = Some(given_time(value)?),
            "inode-time" => self.inode_time = Some(seconds_of(name, given_time(value)?)?),
            "repro-time" => {
                let time = seconds_of(name, given_time(value)?)?;
                (self.build_time, self.inode_time) = (Some(time), Some(time));
            }
            "root-time" => {
                if let GivenTime::Seconds(seconds) = seconds_of(name, given_time(value)?)? {
                    build.tree_changes.root.modified = Some(seconds);
                }
            }
            "root-mode" => build.tree_changes.root.permissions = Some(octal_mode(text).ok_or_else(wrong)?),
            "root-uid" => build.tree_changes.root.uid = Some(self.accounts.user(text).ok_or_else(wrong)?),
            "root-gid" => build.tree_changes.root.gid = Some(self.accounts.group(text).ok_or_else(wrong)?),
            "force-uid" => build.ownership.force_uid = Some(self.accounts.user(text).ok_or_else(wrong)?),
            "force-gid" => build.ownership.force_gid = Some(self.accounts.group(text).ok_or_else(wrong)?),
            "uid-gid-offset" => {
                let offset = text.parse().map_err(|_| wrong())?;
                (build.ownership.uid_offset, build.ownership.gid_offset) = (offset, offset);
            }
            "default-mode" => build.implied_directories.permissions = octal_mode(text).ok_or_else(wrong)?,
            "default-uid" => build.implied_directories.uid = self.accounts.user(text).ok_or_else(wrong)?,
            "default-gid" => build.implied_directories.gid = self.accounts.group(text).ok_or_else(wrong)?,
            "p" => self.pseudo.push(value.as_encoded_bytes().to_vec()),
            "pf" => self.pseudo.extend(pseudo::definitions(&read_list(value)?)),
            "info-file" => self.info = Some(InfoTarget::File(PathBuf::from(value))),
            "sort" => self.sort_file = Some(PathBuf::from(value)),
            "ef" => self.excludes.extend(name_list::read(Path::new(value))?),
            "processors" => {
                let count: usize = text.parse().ok().filter(|count| *count > 0).ok_or_else(wrong)?;
                build.jobs = count.min(BuildOptions::JOBS_MAX).try_into().unwrap_or(build.jobs);
            }
            "mem" => {
                let bytes = size(text).ok_or_else(wrong)?;
                build.memory_bytes = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
            }
            "offset" => build.layout.offset = size(text).ok_or_else(wrong)?,
            // Options without effect.
            _ => {}
        }
        let now_root = self.build.tree_changes.root;
        let forces = self.build.ownership.force_uid.is_some() || self.build.ownership.force_gid.is_some();
        if now_root != root && forces && matches!(name, "root-uid" | "root-gid") {
            return Err(format!("-{name} cannot be combined with -all-root, -force-uid and -force-gid here"));
        }
        Ok(())
    }

    fn finish(mut self, operands: Vec<PathBuf>, image: PathBuf) -> Result<Order, String> {
        if image.as_os_str() == "-" {
            return Err("an image cannot be written to standard output: name a file".into());
        }
        if !self.replaces && image.symlink_metadata().is_ok_and(|status| status.is_file() || status.is_symlink()) {
            return Err(format!(
                "{} exists, and floe does not append to images: use -noappend to replace it",
                image.shown()
            ));
        }
        let sources = self.sources(operands)?;
        self.set_times()?;
        self.squashfs.exports = self.exports.unwrap_or(!self.is_tar);
        let paths = ImagePaths::of(&sources);
        let mut notes = Vec::new();
        if self.exclude_matching == Matching::Exact {
            for name in &self.excludes {
                match paths.find(name) {
                    found if found.is_empty() => {
                        notes.push(format!("Cannot stat exclude dir/file {}, ignoring", name.shown()))
                    }
                    found => self.build.excludes.extend(found),
                }
            }
        } else if !self.excludes.is_empty() {
            let names = ExcludedNames::new(&self.excludes, self.exclude_matching)?;
            self.build.exclude_filter = Some(names.into_filter());
        }
        if let Some(file) = &self.sort_file {
            self.build.tree_changes.priorities = paths.priorities(&read_list(file.as_os_str())?)?;
        }
        let now = now_seconds();
        self.build.tree_changes.pseudo_files =
            self.pseudo.iter().map(|text| pseudo::parse(text, &self.accounts, now)).collect::<Result<_, _>>()?;
        let block_bytes = 1 << self.squashfs.block_size_log2;
        self.squashfs.compression = self.compressor.compression(block_bytes)?;
        self.build.format = Format::Squashfs(self.squashfs);
        self.build.companions = crate::root_hash_file::root_hash_paths(&image);
        self.build.output = image;
        Ok(Order {
            build: self.build,
            sources,
            compressor: self.compressor.name(),
            is_quiet: self.is_quiet,
            progress: self.progress.filter(|_| !self.is_quiet),
            info: self.info,
            notes,
        })
    }

    /// The sources. A single directory is the root; otherwise the sources are entries of a root that has none of its own.
    fn sources(&mut self, operands: Vec<PathBuf>) -> Result<Vec<Source>, String> {
        if self.is_tar {
            return match operands.as_slice() {
                [operand] if operand.as_os_str() == "-" => Ok(vec![Source::TarFromInput]),
                _ => Err("with -tar, the only source is -".into()),
            };
        }
        let stat = |path: &PathBuf| {
            fs::metadata(path).map_err(|error| {
                let reason = error.to_string();
                let reason = reason.split(" (os error").next().unwrap_or_default();
                format!("Cannot stat source directory \"{}\" because {reason}", path.shown())
            })
        };
        if let [operand] = operands.as_slice()
            && stat(operand)?.is_dir()
            && !self.keeps_directory
        {
            return Ok(vec![Source::Directory(operand.clone())]);
        }
        let root = &mut self.build.tree_changes.root;
        root.permissions.get_or_insert(ROOT_MODE);
        root.uid.get_or_insert(rustix::process::getuid().as_raw());
        root.gid.get_or_insert(rustix::process::getgid().as_raw());
        root.modified.get_or_insert(now_seconds());
        let named = |path: PathBuf| match path.file_name() {
            Some(_) => Ok(path),
            // The name of `.` or `..` is that of the directory.
            None => path.canonicalize().map_err(|error| format!("{}: {error}", path.shown())),
        };
        operands.into_iter().map(|path| named(path).map(Source::Entry)).collect()
    }

    fn set_times(&mut self) -> Result<(), String> {
        let epoch = source_date_epoch::from_environment()?;
        if epoch.is_some() && (self.build_time.is_some() || self.inode_time.is_some()) {
            return Err("SOURCE_DATE_EPOCH and options for times cannot be combined: omit one of them".into());
        }
        self.build.times = match (self.inode_time, epoch) {
            (Some(GivenTime::Seconds(seconds)), _) => Times::All(seconds),
            (_, Some(seconds)) => Times::AtMost(seconds),
            _ => Times::Own,
        };
        self.squashfs.built_at = match (self.build_time, epoch) {
            (Some(GivenTime::Latest), _) => None,
            (Some(GivenTime::Seconds(seconds)), _) | (None, Some(seconds)) => Some(seconds),
            (None, None) => Some(now_seconds()),
        };
        Ok(())
    }
}

fn now_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

fn given_time(text: &OsStr) -> Result<GivenTime, String> {
    if text == "inode" { Ok(GivenTime::Latest) } else { Ok(GivenTime::Seconds(time::parse(text)?.seconds)) }
}

/// A time that is not that of a file.
fn seconds_of(name: &str, time: GivenTime) -> Result<GivenTime, String> {
    match time {
        GivenTime::Latest => Err(format!("-{name} inode is not offered by floe: give a time")),
        seconds => Ok(seconds),
    }
}

/// Reads a file, or standard input if it is `-`.
fn read_list(path: &OsStr) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.shown());
    let mut text = Vec::new();
    let read = if path == "-" {
        io::stdin().lock().take(LIST_BYTES_MAX).read_to_end(&mut text)
    } else {
        fs::File::open(path).map_err(failed)?.take(LIST_BYTES_MAX).read_to_end(&mut text)
    };
    read.map_err(failed)?;
    Ok(text)
}
