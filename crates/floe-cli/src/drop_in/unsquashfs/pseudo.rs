//! Writes pseudo files: a text description of an image, followed by the bytes of all files, from which `mksquashfs -pf`
//! builds the image again.

use std::{
    collections::HashMap,
    io::{self, BufWriter, Write},
};

use floe::{FileType, FormatImage, Image, Nid, WalkEntry, XattrSelection};

use super::{
    FATAL,
    arguments::Arguments,
    progress::{Amount, Progress},
    selection::Selection,
};
use crate::{confinement::OutputFile, fail::Fail, output::Output};
use floe_image::Shown;

/// The separator between the description and the bytes.
const DATA_MARK: &[u8] = b"#\n# START OF DATA - DO NOT MODIFY\n#\n";

/// The number of bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// Writes the pseudo file to `target`, or without one to standard output. An incomplete file is removed.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn write(image: &Image, arguments: &Arguments, target: Option<OutputFile>) -> Result<u8, Fail> {
    let pseudo = PseudoFile::new(image, arguments);
    let Some(mut target) = target else {
        return Output::run(|output| pseudo.write(output).or_else(told));
    };
    let written = target.begin().map_err(Failure::Output).and_then(|file| {
        let mut writer = BufWriter::with_capacity(PIECE_BYTES, file);
        let exit = pseudo.write(&mut writer)?;
        writer.flush()?;
        Ok(exit)
    });
    match written {
        Ok(exit) => {
            if exit == 0 {
                target.finish();
            }
            Ok(exit)
        }
        Err(Failure::Output(error)) => {
            say!("FATAL ERROR: {}: {error}", Shown(arguments.pseudo_file.as_encoded_bytes()));
            Ok(FATAL)
        }
        Err(failure @ Failure::Image(_)) => Ok(told(failure).unwrap_or(FATAL)),
    }
}

/// Why the pseudo file could not be written.
enum Failure {
    Output(io::Error),
    /// A fault of the image, as a message.
    Image(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Reports a failure; returns its exit code.
fn told(failure: Failure) -> io::Result<u8> {
    match failure {
        Failure::Output(error) => Err(error),
        Failure::Image(message) => {
            say!("FATAL ERROR: {message}");
            Ok(FATAL)
        }
    }
}

/// The state of writing a pseudo file.
struct PseudoFile<'a> {
    image: &'a Image,
    arguments: &'a Arguments,
    /// The path of each inode that is not a directory, by nid. Further paths become hard links to it.
    paths: HashMap<Nid, Vec<u8>>,
    /// The files whose bytes follow the description, in order, with their sizes.
    files: Vec<(Nid, u64)>,
    /// The offset of the next file within all bytes.
    data_offset: u64,
}

impl<'a> PseudoFile<'a> {
    fn new(image: &'a Image, arguments: &'a Arguments) -> Self {
        Self { image, arguments, paths: HashMap::new(), files: Vec::new(), data_offset: 0 }
    }

    fn write(mut self, output: &mut dyn Write) -> Result<u8, Failure> {
        for entry in Selection::new(self.image, self.arguments) {
            self.put_entry(&entry.map_err(Failure::Image)?, output)?;
        }
        output.write_all(DATA_MARK)?;
        let block_bytes = self.image.file_system().info().block_size;
        let blocks = |(_, size): &(Nid, u64)| size.div_ceil(u64::from(block_bytes).max(1));
        let amount = Amount { inodes: 0, blocks: self.files.iter().map(blocks).fold(0, u64::saturating_add) };
        let progress = Progress::new(self.arguments.progress, amount, block_bytes);
        let written = self.put_data(output, &progress);
        progress.finish(None, written.is_ok());
        written.map(|()| 0)
    }

    /// Writes the bytes of all files.
    fn put_data(&self, output: &mut dyn Write, progress: &Progress) -> Result<(), Failure> {
        let mut piece = vec![0; PIECE_BYTES];
        for (nid, size) in &self.files {
            let mut position = 0;
            while position < *size {
                let read = self.image.read_at(*nid, position, &mut piece);
                match read.map_err(|error| Failure::Image(error.to_string()))? {
                    0 => return Err(Failure::Image(format!("inode {nid} ends before its size"))),
                    len => {
                        output.write_all(&piece[..len])?;
                        position += len as u64;
                        progress.written(len as u64);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the lines for one path.
    fn put_entry(&mut self, entry: &WalkEntry, output: &mut dyn Write) -> Result<(), Failure> {
        let (attr, name) = (&entry.attr, escaped(&entry.path));
        let failed = |error: floe::Error| Failure::Image(format!("{}: {error}", Shown(&entry.path)));
        if attr.file_type == FileType::Directory {
            // With a depth limit, the original omits directories that it does not enter.
            if self.arguments.depth_max.is_some_and(|max| entry.depth >= max) {
                return Ok(());
            }
        } else if let Some(first) = self.paths.get(&attr.nid) {
            output.write_all(&[&name[..], b" L ", &first[..], b"\n"].concat())?;
            return Ok(());
        }
        output.write_all(&name)?;
        let letter = match attr.file_type {
            FileType::Directory => 'D',
            FileType::Regular => 'R',
            FileType::Symlink => 'S',
            FileType::BlockDevice => 'B',
            FileType::CharacterDevice => 'C',
            FileType::Fifo | FileType::Socket => 'I',
        };
        write!(output, " {letter} {} {:o} {} {}", attr.modified.seconds, attr.permissions, attr.uid, attr.gid)?;
        match attr.file_type {
            FileType::Directory => {}
            FileType::Regular => {
                let has_holes = u8::from(self.hole_bytes(attr.nid).map_err(failed)? != 0);
                write!(output, " {} {} {has_holes}", attr.size, self.data_offset)?;
                self.files.push((attr.nid, attr.size));
                self.data_offset = self.data_offset.saturating_add(attr.size);
            }
            FileType::Symlink => {
                output.write_all(b" ")?;
                output.write_all(&self.image.file_system().read_link(attr.nid).map_err(failed)?)?;
            }
            FileType::BlockDevice | FileType::CharacterDevice => {
                write!(output, " {} {}", attr.device.major, attr.device.minor)?;
            }
            FileType::Fifo => output.write_all(b" f")?,
            FileType::Socket => output.write_all(b" s")?,
        }
        output.write_all(b"\n")?;
        self.put_xattrs(attr.nid, &name, output)?;
        if attr.file_type != FileType::Directory {
            self.paths.insert(attr.nid, name);
        }
        Ok(())
    }

    fn put_xattrs(&self, nid: Nid, name: &[u8], output: &mut dyn Write) -> Result<(), Failure> {
        let failed = |error: floe::Error| Failure::Image(format!("{}: {error}", Shown(name)));
        let file_system = self.image.file_system();
        let is_wanted = |key: &[u8]| self.arguments.xattrs.includes(key);
        if self.arguments.xattrs == XattrSelection::None {
            return Ok(());
        }
        for key in file_system.xattr_names(nid).map_err(failed)?.into_iter().filter(|key| is_wanted(key)) {
            let value = file_system.xattr(nid, &key).map_err(failed)?.unwrap_or_default();
            output.write_all(&[name, b" x ", &key[..], b"=", &xattr_value(&value)[..], b"\n"].concat())?;
        }
        Ok(())
    }

    /// How many bytes of a file are holes in the image.
    fn hole_bytes(&self, nid: Nid) -> Result<u64, floe::Error> {
        match self.image.format_image() {
            FormatImage::Squashfs(squashfs) => floe_squashfs::dump::hole_bytes(squashfs, nid),
            FormatImage::Erofs(_) => Ok(0),
        }
    }
}

/// A path without the leading slash, with special characters escaped by backslashes.
fn escaped(path: &[u8]) -> Vec<u8> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    if path.is_empty() {
        return b"/".to_vec();
    }
    let mut name = Vec::with_capacity(path.len());
    for byte in path {
        if matches!(byte, b'"' | b'\\' | b' ' | b'\t'..=b'\r') {
            name.push(b'\\');
        }
        name.push(*byte);
    }
    name
}

/// The value of an attribute: plain if it can be parsed back, else with non-text bytes as octal numbers.
fn xattr_value(value: &[u8]) -> Vec<u8> {
    let is_marked = matches!(value, [b'0', b's' | b'S' | b'x' | b'X' | b't' | b'T', ..]);
    if value.iter().all(|byte| (b' '..=b'~').contains(byte)) && !is_marked {
        return value.to_vec();
    }
    let mut text = b"0t".to_vec();
    for byte in value {
        match byte {
            b'\\' => text.extend_from_slice(b"\\134"),
            b' '..=b'~' => text.push(*byte),
            _ => text.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_read_back() {
        for (path, expected) in [("/", "/"), ("/a b/c", "a\\ b/c"), ("/a\"\\\n", "a\\\"\\\\\\\n")] {
            assert_eq!(escaped(path.as_bytes()), expected.as_bytes(), "{path}");
        }
        for (value, expected) in [
            (&b"plain text"[..], &b"plain text"[..]),
            (b"back\\slash", b"back\\slash"),
            (b"0x12", b"0t0x12"),
            (b"\0\xff\\", b"0t\\000\\377\\134"),
            (b"", b""),
        ] {
            assert_eq!(xattr_value(value), expected, "{value:?}");
        }
    }
}
