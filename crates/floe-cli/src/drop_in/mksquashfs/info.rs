//! `-info`: a line for each file of the image.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufWriter, Write},
};

use floe::{Attr, ByteRange, FileType, Image, Offset, OpenOptions};
use floe_image::Shown;
use floe_mkfs::Options as BuildOptions;

use super::arguments::InfoTarget;

/// Prints the files of a new image: first regular files, then other ones, and each directory after those in it.
///
/// # Errors
/// A message: the image cannot be read, or the lines cannot be written.
pub(super) fn write(build: &BuildOptions, target: &InfoTarget) -> Result<(), String> {
    let offset = if build.layout.offset == 0 { Offset::None } else { Offset::At(build.layout.offset) };
    let options = OpenOptions { offset, ..OpenOptions::default() };
    let image = Image::open(&build.output, &options).map_err(|error| error.to_string())?;
    let told = match target {
        InfoTarget::Output => write_lines(&image, &mut io::stdout().lock()),
        InfoTarget::File(path) => File::create(path).and_then(|file| write_lines(&image, &mut BufWriter::new(file))),
    };
    told.map_err(|error| format!("-info: {error}"))
}

fn write_lines(image: &Image, output: &mut dyn Write) -> io::Result<()> {
    let (mut nids, mut places) = (HashSet::new(), HashSet::new());
    let (mut others, mut directories) = (Vec::new(), Vec::new());
    for entry in image.walk() {
        let entry = entry.map_err(|error| io::Error::other(error.to_string()))?;
        match entry.attr.file_type {
            FileType::Regular => {
                let mark = if !nids.insert(entry.attr.nid) {
                    "LINK"
                } else if place(image, &entry.attr).is_some_and(|place| !places.insert(place)) {
                    "DUPLICATE"
                } else {
                    ""
                };
                writeln!(output, "file {}, uncompressed size {} bytes {mark}", Shown(&entry.path), entry.attr.size)?;
            }
            FileType::Directory => directories.push(line(&entry.path, &entry.attr)),
            _ => others.push(line(&entry.path, &entry.attr)),
        }
    }
    others.iter().chain(directories.iter().rev()).try_for_each(|line| writeln!(output, "{line}"))?;
    output.flush()
}

fn line(path: &[u8], attr: &Attr) -> String {
    let kind = match attr.file_type {
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "unix domain socket",
        FileType::Regular => "file",
    };
    format!("{kind} {} inode 0x{:x}", Shown(path), attr.nid.0)
}

/// Where the image has the beginning of a file; equal files are in the same place.
fn place(image: &Image, attr: &Attr) -> Option<String> {
    let mut extents = Vec::new();
    image.file_system().map(attr.nid, ByteRange::new(0, attr.size.min(1)), &mut extents).ok()?;
    extents.first().filter(|_| attr.size > 0).map(|extent| format!("{:?} {}", extent.data, attr.size))
}
