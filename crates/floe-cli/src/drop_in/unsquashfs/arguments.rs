//! Parses the command line of `unsquashfs`.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use floe::{
    Attr, EngineOptions, Image, Offset, OpenOptions, Timestamp, VolumeOptions, WorkerMode, XattrFilter, XattrSelection,
};
use floe_image::{Shown, ShownName};
use floe_mount::quantity;
use regex::bytes::Regex;

use super::{
    FATAL, default_target,
    links::{self, Way},
    name_list,
    path_patterns::{self, Matching, PathPatterns},
    progress, time,
};
use crate::output::{Output, remark};

pub(crate) const HELP: &str = "\
SYNTAX: unsquashfs [OPTIONS] FILESYSTEM [files to extract, to exclude (with -excludes) or to print (with -cat)]
Extract or list a SquashFS image. This is floe under the name of unsquashfs.

  -d[est] DIR        extract to DIR [squashfs-root]; also the prefix of listings
  -f[orce]           replace existing files, and empty directories in the place of files
  -max[-depth] N     no deeper than N directories
  -excludes          exclude the files on the command line
  -ex[clude-list] NAME… ;      exclude these files
  -exc[f] FILE, -exclude-file FILE                a list of files to exclude, one per line
  -e[f] FILE, -extract-file FILE                  a list of files to extract, one per line
                     a name to exclude that begins with three dots and a blank matches at any depth: '... *.o'
  -no-wild[cards]    names contain no wildcards
  -r[egex]           names are extended regular expressions, one for each part of a path
  -follow[-symlinks], -L       follow links in the names, and select the links too; implies -no-wildcards
  -missing[-symlinks], -match  end if a name leads to nothing; imply -follow-symlinks
  -all[-time] TIME   set all times to TIME: seconds since 1970, or a text that date understands
  -pf FILE, -pseudo-file FILE                     write a pseudo file, from which mksquashfs -pf rebuilds the image;
                     - is standard output
  -cat               write the files to standard output
  -l[s], -ll[s], -lln[umeric], -lc, -llc          list, do not extract
  -i[nfo], -li[nfo]  list files as they are extracted
  -full[-precision], -UTC      times with seconds; times in UTC instead of the local time zone
  -s[tat]            show the superblock; -mkfs-time, -fstime: show the build time
  -x[attrs], -no[-xattrs]      with or without extended attributes
  -xattrs-include REGEX, -xattrs-exclude REGEX    only, or not, the extended attributes whose names match
  -p[rocessors] N    the number of threads
  -o[ffset] BYTES    offset of the image in bytes
  -ig[nore-errors]   go on after faults of the image
  -st[rict-errors]   end with exit code 1 at any error; -no-exit[-code]: end with 0 where it would be 2
  -q[uiet]           do not print what will be and what was created
  -n[o-progress], -percentage  print no progress bar, or percentages instead of it
  --sandbox=off      do not confine the process that reads the image
  -mem SIZE, -mem-percent N    have no effect
  -v[ersion], -h[elp]
";

/// The start of a name that excludes at any depth.
const STICKY: &[u8] = b"... ";

/// The action. If several are requested, the last one of these is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    Extract,
    Pseudo,
    List,
    Cat,
    Superblock,
    BuiltTime,
}

/// The form of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    /// Like `ls -l`.
    pub(super) has_attributes: bool,
    /// Owners and groups are numbers.
    pub(super) is_numeric: bool,
    /// Directories with entries are omitted.
    pub(super) is_concise: bool,
}

/// The command line.
pub(super) struct Arguments {
    pub(super) task: Task,
    pub(super) image: PathBuf,
    pub(super) target: PathBuf,
    /// The path of the pseudo file.
    pub(super) pseudo_file: OsString,
    /// The names on the command line that select.
    pub(super) names: Vec<OsString>,
    /// The names in files that select.
    listed: Vec<OsString>,
    pub(super) matching: Matching,
    /// The patterns for all these names; empty means everything.
    pub(super) selected: PathPatterns,
    pub(super) excluded: PathPatterns,
    /// The patterns that exclude at any depth.
    pub(super) sticky: PathPatterns,
    /// Whether the names on the command line lead through links, and only to what exists.
    follows_links: bool,
    pub(super) must_resolve: bool,
    /// The time that replaces all times.
    pub(super) time: Option<Timestamp>,
    pub(super) depth_max: Option<usize>,
    pub(super) form: Option<Form>,
    pub(super) info: bool,
    pub(super) full_precision: bool,
    pub(super) is_utc: bool,
    pub(super) force: bool,
    pub(super) xattrs: XattrSelection,
    pub(super) jobs: Option<usize>,
    pub(super) quiet: bool,
    /// The form in which progress is shown, if it is.
    pub(super) progress: Option<progress::Form>,
    pub(super) strict: bool,
    pub(super) ignores_errors: bool,
    pub(super) no_exit_code: bool,
    offset: u64,
}

impl Arguments {
    /// Parses a command line, which begins with the program name. Prints errors itself and returns the exit code as the
    /// error.
    pub(super) fn parse(arguments: &[OsString]) -> Result<Self, u8> {
        let mut parsed = Self {
            task: Task::Extract,
            image: PathBuf::new(),
            target: default_target(),
            pseudo_file: OsString::new(),
            names: Vec::new(),
            listed: Vec::new(),
            matching: Matching::Wildcards,
            selected: PathPatterns::default(),
            excluded: PathPatterns::default(),
            sticky: PathPatterns::default(),
            follows_links: false,
            must_resolve: false,
            time: None,
            depth_max: None,
            form: None,
            info: false,
            full_precision: false,
            is_utc: false,
            force: false,
            xattrs: XattrSelection::All,
            jobs: None,
            quiet: false,
            progress: Some(progress::Form::Bar),
            strict: false,
            ignores_errors: false,
            no_exit_code: false,
            offset: 0,
        };
        let (mut operands, mut are_excludes, mut excluded) = (Vec::new(), false, Vec::new());
        let (mut is_exact, mut is_regex) = (false, false);
        let mut xattrs = XattrNames::default();
        let mut rest = arguments.iter().skip(1);
        let plain = Form { has_attributes: false, is_numeric: false, is_concise: false };
        while let Some(argument) = rest.next() {
            let option = argument.to_string_lossy();
            if !operands.is_empty() || !option.starts_with('-') || option == "-" {
                operands.push(argument.clone());
                continue;
            }
            let mut task = Task::Extract;
            let mut value = || rest.next().ok_or_else(|| wrong(&format!("{option} needs a value")));
            match option.trim_start_matches('-') {
                "d" | "dest" => parsed.target = value()?.into(),
                "f" | "force" => parsed.force = true,
                "max" | "max-depth" => parsed.depth_max = Some(count(&option, value()?)?),
                "excludes" => are_excludes = true,
                "ex" | "exclude-list" => {
                    let count = rest.clone().position(|name| name == ";").filter(|count| *count > 0);
                    let count = count.ok_or_else(|| wrong(&format!("{option} needs names, and a ';' after them")))?;
                    excluded.extend(rest.by_ref().take(count).cloned());
                    rest.next();
                }
                "exc" | "excf" | "exclude-file" => excluded.extend(listed(value()?)?),
                "e" | "ef" | "extract-file" => parsed.listed.extend(listed(value()?)?),
                "no-wild" | "no-wildcards" => is_exact = true,
                "r" | "regex" => is_regex = true,
                "follow" | "follow-symlinks" | "L" => (parsed.follows_links, is_exact) = (true, true),
                "missing" | "missing-symlinks" | "match" => {
                    (parsed.follows_links, parsed.must_resolve, is_exact) = (true, true, true);
                }
                "all" | "all-time" => {
                    parsed.time = Some(time::parse(value()?).map_err(|error| wrong(&format!("{option}: {error}")))?);
                }
                "pf" | "pseudo-file" => (task, parsed.pseudo_file) = (Task::Pseudo, value()?.clone()),
                "cat" => task = Task::Cat,
                "l" | "ls" => (task, parsed.form) = (Task::List, Some(plain)),
                "ll" | "lls" => {
                    (task, parsed.form) = (Task::List, Some(Form { has_attributes: true, ..plain }));
                }
                "lln" | "llnumeric" => {
                    let form = Form { has_attributes: true, is_numeric: true, ..plain };
                    (task, parsed.form) = (Task::List, Some(form));
                }
                "lc" => (task, parsed.form) = (Task::List, Some(Form { is_concise: true, ..plain })),
                "llc" => {
                    let form = Form { has_attributes: true, is_concise: true, ..plain };
                    (task, parsed.form) = (Task::List, Some(form));
                }
                "i" | "info" => (parsed.info, parsed.form) = (true, Some(plain)),
                "li" | "linfo" => (parsed.info, parsed.form) = (true, Some(Form { has_attributes: true, ..plain })),
                "full" | "full-precision" => parsed.full_precision = true,
                "UTC" => parsed.is_utc = true,
                "ig" | "ignore-errors" => parsed.ignores_errors = true,
                "n" | "no-progress" => parsed.progress = None,
                "percentage" => parsed.progress = Some(progress::Form::Percentage),
                "s" | "stat" => task = Task::Superblock,
                "mkfs-time" | "fstime" => task = Task::BuiltTime,
                "x" | "xattrs" => xattrs.is_none = false,
                "u" | "user-xattrs" => (xattrs.is_none, xattrs.included) = (false, Some(Included::User)),
                "no" | "no-xattrs" => xattrs.is_none = true,
                "xattrs-include" => {
                    let names = Included::Matching(expression(&option, value()?)?);
                    (xattrs.is_none, xattrs.included) = (false, Some(names));
                }
                "xattrs-exclude" => {
                    (xattrs.is_none, xattrs.excluded) = (false, Some(expression(&option, value()?)?));
                }
                "p" | "processors" => parsed.jobs = Some(count(&option, value()?)?.max(1)),
                "o" | "offset" => parsed.offset = bytes(&option, value()?)?,
                "q" | "quiet" => parsed.quiet = true,
                "st" | "strict-errors" => parsed.strict = true,
                "no-exit" | "no-exit-code" => parsed.no_exit_code = true,
                "mem" | "mem-percent" | "da" | "data-queue" | "fr" | "frag-queue" => {
                    value()?;
                }
                "v" | "version" => {
                    return Err(told(&format!("unsquashfs version {} (floe)\n", env!("CARGO_PKG_VERSION"))));
                }
                "h" | "help" | "ha" | "help-all" => {
                    return Err(told(HELP));
                }
                _ => return Err(wrong(&format!("{option} is an invalid option"))),
            }
            parsed.task = parsed.task.max(task);
        }
        if parsed.task == Task::List && !parsed.pseudo_file.is_empty() {
            return Err(wrong("a listing and -pf exclude each other"));
        }
        if is_exact && is_regex {
            return Err(wrong("-no-wildcards and -regex exclude each other"));
        }
        if parsed.strict && (parsed.ignores_errors || parsed.no_exit_code) {
            return Err(wrong("-strict-errors excludes -ignore-errors and -no-exit-code"));
        }
        if parsed.info || parsed.pseudo_file == "-" {
            parsed.progress = None;
        }
        let mut operands = operands.into_iter();
        parsed.image = operands.next().ok_or_else(without_operands)?.into();
        if are_excludes && parsed.task != Task::Cat {
            excluded.extend(operands)
        } else {
            parsed.names.extend(operands)
        }
        parsed.matching = match (is_exact, is_regex) {
            (true, _) => Matching::Exact,
            (_, true) => Matching::Expressions,
            _ => Matching::Wildcards,
        };
        parsed.xattrs = xattrs.into_selection();
        if parsed.task != Task::Cat {
            parsed.set_patterns(excluded)?;
        }
        Ok(parsed)
    }

    /// Sets the patterns that select and exclude.
    fn set_patterns(&mut self, excluded: Vec<OsString>) -> Result<(), u8> {
        let patterns = |names: &[OsString]| {
            if let Some(name) = names.iter().find(|name| path_patterns::names(name.as_bytes()).next().is_none()) {
                return Err(wrong(&format!("'{}' names no file", name.shown())));
            }
            PathPatterns::new(names, self.matching).map_err(|error| wrong(&error))
        };
        let (mut at_any_depth, mut at_their_place) = (Vec::new(), Vec::new());
        for name in excluded {
            match name.as_bytes().strip_prefix(STICKY) {
                Some(name) => at_any_depth.push(OsString::from_vec(name.to_vec())),
                None => at_their_place.push(name),
            }
        }
        let selected = [&self.listed[..], &self.names].concat();
        (self.selected, self.excluded, self.sticky) =
            (patterns(&selected)?, patterns(&at_their_place)?, patterns(&at_any_depth)?);
        Ok(())
    }

    /// Follows links in the names that select, if that was requested. Prints errors itself and returns the exit code as
    /// the error.
    pub(super) fn follow_links(&mut self, image: &Image) -> Result<(), u8> {
        if !self.follows_links || !matches!(self.task, Task::Extract | Task::List | Task::Pseudo) {
            return Ok(());
        }
        let mut paths = self.listed.clone();
        for name in &self.names {
            let mut found = Vec::new();
            match links::follow(image, Way::default(), name.as_bytes(), &mut found) {
                Ok(way) => {
                    found.push(way.path());
                    paths.extend(found.into_iter().map(OsString::from_vec));
                }
                Err(message) if self.must_resolve => {
                    say!("FATAL ERROR: Extract filename {} {message}", Shown(name.as_bytes()));
                    return Err(FATAL);
                }
                Err(message) => {
                    say!("Extract filename {} {message}", Shown(name.as_bytes()));
                    paths.push(name.clone());
                }
            }
        }
        self.selected = PathPatterns::new(&paths, Matching::Exact).map_err(|error| wrong(&error))?;
        Ok(())
    }

    /// Attributes with the time that replaces all times.
    pub(super) fn with_time(&self, attr: Attr) -> Attr {
        Attr { modified: self.time.unwrap_or(attr.modified), ..attr }
    }

    /// The options for opening the image.
    pub(super) fn open_options(&self) -> OpenOptions {
        let engine = EngineOptions { workers: WorkerMode::Inline, reserved_pages: 0, ..EngineOptions::default() };
        let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
        let offset = if self.offset == 0 { Offset::None } else { Offset::At(self.offset) };
        OpenOptions { offset, engine, volume, ..OpenOptions::default() }
    }
}

/// The names of the extended attributes to extract. Of several options of one kind, the last one counts.
#[derive(Default)]
struct XattrNames {
    is_none: bool,
    included: Option<Included>,
    excluded: Option<Regex>,
}

enum Included {
    User,
    Matching(Regex),
}

impl XattrNames {
    fn into_selection(self) -> XattrSelection {
        match (self.included, self.excluded) {
            _ if self.is_none => XattrSelection::None,
            (None, None) => XattrSelection::All,
            (Some(Included::User), None) => XattrSelection::User,
            (included, excluded) => XattrSelection::Accepted(XattrFilter::new(move |name| {
                let is_included = match &included {
                    None => true,
                    Some(Included::User) => XattrSelection::User.includes(name),
                    Some(Included::Matching(names)) => names.is_match(name),
                };
                is_included && !excluded.as_ref().is_some_and(|names| names.is_match(name))
            })),
        }
    }
}

/// Prints a text; returns the exit code.
fn told(text: &str) -> u8 {
    Output::print(text).unwrap_or_else(|fail| wrong(&fail.to_string()))
}

/// Reports that the image is missing, with the usage, in which callers look for options.
fn without_operands() -> u8 {
    say!("unsquashfs: no input filesystem specified on command line");
    remark(HELP);
    FATAL
}

/// Reports an error in the command line.
fn wrong(message: &str) -> u8 {
    say!("unsquashfs: {message}; see unsquashfs -help");
    FATAL
}

fn expression(option: &str, value: &OsString) -> Result<Regex, u8> {
    path_patterns::expression(value.as_bytes()).map_err(|error| wrong(&format!("{option}: {error}")))
}

fn count(option: &str, value: &OsString) -> Result<usize, u8> {
    let number = value.to_str().and_then(|value| value.parse().ok());
    number.ok_or_else(|| wrong(&format!("{option}: '{}' is not a number", value.shown())))
}

fn bytes(option: &str, value: &OsString) -> Result<u64, u8> {
    quantity::bytes(&value.to_string_lossy()).map_err(|error| wrong(&format!("{option}: {error}")))
}

fn listed(file: &OsString) -> Result<Vec<OsString>, u8> {
    name_list::read(Path::new(file)).map_err(|error| wrong(&error))
}
