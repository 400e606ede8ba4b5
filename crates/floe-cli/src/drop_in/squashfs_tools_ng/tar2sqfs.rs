//! `tar2sqfs`.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use floe_image::ShownName;
use floe_mkfs::{Format, ImpliedDirectories, Options as BuildOptions, PackedTails, Source, SquashfsOptions, Times};

use super::{FAILED, Program, compressor, plain_path};
use crate::{
    drop_in::{
        erofs_tool::number,
        mksquashfs::{self, arguments::Order, paths::ExcludedNames, size::size},
        unsquashfs::path_patterns::Matching,
    },
    fail::Fail,
    root_hash_file::root_hash_paths,
    source_date_epoch,
};

const PROGRAM: Program = Program::Tar2sqfs;
/// The padding of an image, in bytes.
const PADDING: u64 = 4096;

/// The command line while it is read.
struct Parsed {
    build: BuildOptions,
    squashfs: SquashfsOptions,
    compressor: String,
    compressor_options: String,
    excludes: Vec<OsString>,
    defaults: ImpliedDirectories,
    default_time: Option<i64>,
    drops_times: bool,
    replaces: bool,
    is_quiet: bool,
}

/// Runs the program.
///
/// # Errors
/// Signal handlers cannot be installed.
pub(in crate::drop_in) fn run(arguments: &[OsString]) -> Result<u8, Fail> {
    let mut parsed = Parsed {
        build: BuildOptions::new(""),
        squashfs: SquashfsOptions { tails: PackedTails::All, exports: false, ..SquashfsOptions::default() },
        compressor: compressor::DEFAULT.into(),
        compressor_options: String::new(),
        excludes: Vec::new(),
        defaults: ImpliedDirectories::default(),
        default_time: None,
        drops_times: false,
        replaces: false,
        is_quiet: false,
    };
    parsed.build.tree_changes.retargets_links = true;
    let operands = PROGRAM.options(arguments, |letter, value| parsed.take(letter, value))?;
    let image = match operands.map(|operands| PROGRAM.image(operands)) {
        Ok(Ok(image)) => PathBuf::from(image),
        Ok(Err(message)) => return PROGRAM.wrong(&message),
        Err(exit) => return Ok(exit),
    };
    let order = match parsed.finish(image) {
        Ok(order) => order,
        Err(message) => return PROGRAM.failed(&message),
    };
    let Format::Squashfs(squashfs) = &order.build.format else { return Ok(FAILED) };
    match mksquashfs::build(&order, squashfs)? {
        Ok(summary) => {
            if !order.is_quiet {
                summary.notes().iter().for_each(|note| say!("WARNING: {note}"));
            }
            Ok(0)
        }
        Err(error) => PROGRAM.failed(&error.to_string()),
    }
}

impl Parsed {
    fn take(&mut self, letter: char, value: &OsStr) -> Result<(), String> {
        let text = value.to_str().unwrap_or_default();
        let wrong = |what: &str| format!("{what} {} is invalid", value.shown());
        match letter {
            'r' => {
                let invalid = |_| format!("Invalid root directory '{}'.", value.shown());
                self.build.tree_changes.root_directory = Some(plain_path(value).map_err(invalid)?);
            }
            'S' => self.build.tree_changes.retargets_links = false,
            'c' => text.clone_into(&mut self.compressor),
            'X' => text.clone_into(&mut self.compressor_options),
            'j' => {
                let count =
                    usize::try_from(number(value).ok_or_else(|| wrong("Number of jobs"))?).unwrap_or(usize::MAX);
                self.build.jobs = count.clamp(1, BuildOptions::JOBS_MAX).try_into().unwrap_or(self.build.jobs);
            }
            'b' => {
                let bytes = size(text).filter(|bytes| bytes.is_power_of_two() && (4096..=1 << 20).contains(bytes));
                let bytes = bytes.ok_or_else(|| format!("{}: a power of two from 4K to 1M", wrong("Block size")))?;
                self.squashfs.block_size_log2 = u8::try_from(bytes.ilog2()).unwrap_or(u8::MAX);
            }
            'B' => {
                let bytes = size(text).ok_or_else(|| wrong("Device block size"))?;
                if bytes < 1024 {
                    return Err("Device block size must be at least 1024".into());
                }
                if !PADDING.is_multiple_of(bytes) {
                    return Err(format!(
                        "--dev-block-size {text} is not offered by floe: images are padded to 4096 bytes"
                    ));
                }
            }
            'd' => self.take_defaults(text)?,
            'x' => self.build.xattrs.keep = false,
            'k' => self.drops_times = true,
            'e' => self.squashfs.exports = true,
            'T' => self.squashfs.tails = PackedTails::SmallFiles,
            'E' => self.excludes.push(value.to_owned()),
            'f' => self.replaces = true,
            'q' => self.is_quiet = true,
            // Options without effect.
            _ => {}
        }
        Ok(())
    }

    fn take_defaults(&mut self, text: &str) -> Result<(), String> {
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or_else(|| format!("Missing value for option {option}"))?;
            let value = number(OsStr::new(value)).and_then(|value| u32::try_from(value).ok());
            let value = value.ok_or_else(|| format!("{key}: value is not a number from 0 to 4294967295"))?;
            match key {
                "uid" => self.defaults.uid = value,
                "gid" => self.defaults.gid = value,
                "mode" => {
                    let mode = u16::try_from(value).ok().filter(|mode| *mode <= 0o7777);
                    self.defaults.permissions = mode.ok_or("mode: value too large")?;
                }
                "mtime" => self.default_time = Some(value.into()),
                _ => return Err(format!("Unknown option '{option}'")),
            }
        }
        Ok(())
    }

    fn finish(mut self, image: PathBuf) -> Result<Order, String> {
        if !self.replaces && image.symlink_metadata().is_ok_and(|status| status.is_file() || status.is_symlink()) {
            return Err(format!("{}: it exists: use --force to replace it", image.shown()));
        }
        let epoch = source_date_epoch::from_environment()?;
        let time = self.default_time.or(epoch).unwrap_or(0);
        self.defaults.modified = Some(time);
        self.build.implied_directories = self.defaults;
        self.build.times = if self.drops_times { Times::All(time) } else { Times::Own };
        self.squashfs.built_at = Some(time);
        if !self.excludes.is_empty() {
            let names = ExcludedNames::new(&self.excludes, Matching::Wildcards)?;
            self.build.exclude_filter = Some(names.into_filter());
        }
        let block_bytes = 1 << self.squashfs.block_size_log2;
        self.squashfs.compression = compressor::compression(&self.compressor, &self.compressor_options, block_bytes)?;
        self.build.format = Format::Squashfs(self.squashfs);
        self.build.companions = root_hash_paths(&image);
        self.build.output = image;
        Ok(Order {
            build: self.build,
            sources: vec![Source::TarFromInput],
            compressor: "",
            is_quiet: self.is_quiet,
            progress: None,
            info: None,
            notes: Vec::new(),
        })
    }
}
