//! `floe ls`: lists directories and files of an image.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use clap::Args;
use floe::{Attr, EntryLimit, Error, FileType, Image, Nid};

use crate::{
    fail::{Exit, Fail},
    image_arguments::ImageArguments,
    inode_record::{InodeRecord, ModeText},
    iso_time::IsoTime,
    output::Output,
};
use floe_image::Shown;

/// List directories and files of an image
///
/// Prints one name per line, in the order of the image. A name with control characters, or that is not UTF-8, is quoted
/// for shells: $'two\nlines'. `.` and `..` are omitted; all other names are shown.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    floe ls system.erofs\n  \
    floe ls -lR system.erofs /etc /usr/bin\n  \
    floe ls --json app.sqfs /share | jq -r 'select(.size > 1e6) | .path'\n  \
    floe ls --offset auto Tool.AppImage\n\n\
    With --json there is one object per line: path, type (f d l c b p s), mode, uid, gid, size, nlink,\n\
    mtime [seconds, nanoseconds], rdev [major, minor], target, ino, nid, blocks. In names, %XX encodes\n\
    control characters, '%' and bytes that are not UTF-8.\n\n\
    Exit codes:\n  \
    0  everything was listed\n  \
    1  a part could not be read\n  \
    2  wrong usage\n  \
    3  the file is not an image, or is broken")]
pub(crate) struct Arguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Paths to list: the content of directories, or single files
    #[arg(value_name = "PATH", default_value = "/", hide_default_value = true)]
    paths: Vec<std::ffi::OsString>,

    /// Show type, mode, links, owner, group, size or device, time in UTC, name and link target
    #[arg(short = 'l', long)]
    long: bool,

    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,

    /// List directories themselves, not their content
    #[arg(short = 'd', long, conflicts_with = "recursive")]
    directory: bool,

    /// Show inode numbers
    #[arg(short = 'i', long)]
    inode: bool,

    /// Accepted for compatibility with ls; names that begin with a dot are always shown
    #[arg(short = 'a', long, hide = true)]
    all: bool,

    /// Write one JSON object per line
    #[arg(long, conflicts_with_all = ["long", "inode"])]
    json: bool,
}

struct Lister<'a> {
    arguments: &'a Arguments,
    image: &'a Image,
    output: &'a mut dyn Write,
    exit: u8,
    entered: HashSet<Nid>,
    limit: EntryLimit,
    /// Whether the listing found more entries than an image can have.
    is_over: bool,
    has_listed: bool,
}

/// One line of a listing.
struct Row {
    name: Vec<u8>,
    attr: Result<Attr, Error>,
    target: Option<Result<Vec<u8>, Error>>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let image = arguments.image.open()?;
    Output::run(|output| {
        let (entered, limit, exit) = (HashSet::new(), EntryLimit::default(), Exit::Done.code());
        let mut lister =
            Lister { arguments, image: &image, output, exit, entered, limit, is_over: false, has_listed: false };
        lister.list_paths()?;
        Ok(lister.exit)
    })
}

impl Lister<'_> {
    /// Lists the arguments: first single files, then directories, like ls.
    fn list_paths(&mut self) -> io::Result<()> {
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for path in &self.arguments.paths {
            let path = path.as_encoded_bytes();
            // A link to a directory is listed as that directory, but with -l or -d as a link.
            let follow = !self.arguments.long && !self.arguments.directory || path.ends_with(b"/");
            let found = if follow { self.image.resolve(path) } else { self.image.resolve_link(path) };
            let attr = found.and_then(|nid| Ok(self.image.attr(nid)?));
            match attr {
                Ok(attr) if attr.file_type == FileType::Directory && !self.arguments.directory => {
                    directories.push((path.to_vec(), attr.nid));
                }
                Ok(attr) => files.push(self.row(path.to_vec(), Ok(attr))),
                Err(error) => self.complain(&error),
            }
        }
        if !files.is_empty() {
            self.write_rows(b"", &files)?;
            self.has_listed = true;
        }
        let with_headers = self.arguments.recursive || self.arguments.paths.len() > 1;
        directories.reverse();
        // The directories that are still to list, the next one last.
        while let Some((path, nid)) = directories.pop() {
            if !self.entered.insert(nid) && self.arguments.recursive {
                let error = Error::corrupt("directory found in two places", floe_image::Place::inode(nid));
                self.complain(&format_args!("{}: {error}", Shown(&path)));
                continue;
            }
            let below = self.list_directory(&path, nid, with_headers)?;
            if self.is_over {
                return Ok(());
            }
            if self.arguments.recursive {
                directories.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    /// Lists a directory. Returns its subdirectories.
    fn list_directory(&mut self, path: &[u8], nid: Nid, with_header: bool) -> io::Result<Vec<(Vec<u8>, Nid)>> {
        if with_header && !self.arguments.json {
            let gap = if self.has_listed { "\n" } else { "" };
            writeln!(self.output, "{gap}{}:", Shown(path))?;
        }
        self.has_listed = true;
        let (mut rows, mut below) = (Vec::new(), Vec::new());
        for entry in self.image.read_dir(nid) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.complain(&format_args!("{}: {error}", Shown(path)));
                    continue;
                }
            };
            if self.arguments.recursive
                && let Err(error) = self.limit.take(self.image.file_system().as_ref(), nid)
            {
                self.complain(&format_args!("{}: {error}", Shown(path)));
                self.is_over = true;
                break;
            }
            let is_plain = !(self.arguments.long || self.arguments.json || self.arguments.inode);
            if entry.file_type == FileType::Directory {
                below.push((join(path, &entry.name), entry.nid));
            }
            if is_plain {
                writeln!(self.output, "{}", Shown(&entry.name))?;
            } else {
                rows.push(self.row(entry.name, self.image.attr(entry.nid)));
            }
        }
        self.write_rows(path, &rows)?;
        Ok(below)
    }

    fn row(&self, name: Vec<u8>, attr: Result<Attr, Error>) -> Row {
        let target = match &attr {
            Ok(attr) if attr.file_type == FileType::Symlink && self.arguments.long => {
                Some(self.image.file_system().read_link(attr.nid))
            }
            _ => None,
        };
        Row { name, attr, target }
    }

    /// Writes rows with aligned columns. `directory` is empty if the names are whole paths.
    fn write_rows(&mut self, directory: &[u8], rows: &[Row]) -> io::Result<()> {
        let mut widths = [0; 5];
        for row in rows {
            let Ok(attr) = &row.attr else { continue };
            for (width, cell) in widths.iter_mut().zip(cells(attr)) {
                *width = cell.len().max(*width);
            }
        }
        for row in rows {
            let path = if directory.is_empty() { row.name.clone() } else { join(directory, &row.name) };
            let attr = match &row.attr {
                Ok(attr) => attr,
                Err(error) => {
                    self.complain(&format_args!("{}: {error}", Shown(&path)));
                    continue;
                }
            };
            if self.arguments.json {
                match InodeRecord::new(self.image.file_system().as_ref(), &path, attr, false) {
                    Ok(record) => self.output.write_all(record.to_line().as_bytes())?,
                    Err(error) => self.complain(&format_args!("{}: {error}", Shown(&path))),
                }
                continue;
            }
            let [links, uid, gid, size, inode] = cells(attr);
            let [links_width, uid_width, gid_width, size_width, inode_width] = widths;
            if self.arguments.inode {
                write!(self.output, "{inode:>inode_width$} ")?;
            }
            if self.arguments.long {
                write!(
                    self.output,
                    "{} {links:>links_width$} {uid:>uid_width$} {gid:>gid_width$} {size:>size_width$} {} ",
                    ModeText(attr),
                    IsoTime(attr.modified)
                )?;
            }
            write!(self.output, "{}", Shown(&row.name))?;
            match &row.target {
                None => {}
                Some(Ok(target)) => write!(self.output, " -> {}", Shown(target))?,
                Some(Err(error)) => self.complain(&format_args!("{}: {error}", Shown(&path))),
            }
            writeln!(self.output)?;
        }
        Ok(())
    }

    fn complain(&mut self, message: &dyn std::fmt::Display) {
        self.exit = Exit::Failed.code();
        say!("floe: {message}");
    }
}

/// Links, owner, group, size or device numbers, and inode number, as text.
fn cells(attr: &Attr) -> [String; 5] {
    let size = match attr.file_type {
        FileType::CharacterDevice | FileType::BlockDevice => format!("{}, {}", attr.device.major, attr.device.minor),
        _ => attr.size.to_string(),
    };
    [attr.link_count.to_string(), attr.uid.to_string(), attr.gid.to_string(), size, attr.inode_number.to_string()]
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, separator, name].concat()
}
