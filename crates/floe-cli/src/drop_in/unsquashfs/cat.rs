//! Writes files to standard output.

use std::{
    ffi::OsStr,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
};

use floe::{DirectoryEntry, EntryLimit, FileType, Image, Nid};

use super::{
    FATAL, NOT_FATAL,
    arguments::Arguments,
    links::{self, Way},
    path_patterns::{Pattern, names},
};
use crate::{fail::Fail, output::Output};
use floe_image::Shown;

/// The number of bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// Writes the files that the names on the command line match, and those to which matching links lead. Returns the exit code:
/// it is not 0 if a name has no match, or matches something else than a file.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn write(image: &Image, arguments: &Arguments) -> Result<u8, Fail> {
    Output::run(|output| {
        let piece = vec![0; PIECE_BYTES];
        let mut cat = Cat { image, arguments, output, piece, limit: EntryLimit::default(), exit: 0 };
        for name in &arguments.names {
            cat.limit = EntryLimit::default();
            cat.write_matches(name)?;
            if cat.exit == FATAL {
                break;
            }
        }
        Ok(if cat.exit == NOT_FATAL && arguments.no_exit_code { 0 } else { cat.exit })
    })
}

/// One name of a path on the command line.
enum Part {
    /// `.`
    Here,
    /// `..`
    Up,
    Named(Pattern),
}

struct Cat<'a> {
    image: &'a Image,
    arguments: &'a Arguments,
    output: &'a mut (dyn Write + Send),
    piece: Vec<u8>,
    limit: EntryLimit,
    exit: u8,
}

impl Cat<'_> {
    fn write_matches(&mut self, name: &OsStr) -> io::Result<()> {
        let part = |text: &[u8]| match text {
            b"." => Ok(Part::Here),
            b".." => Ok(Part::Up),
            text => Pattern::new(text, self.arguments.matching).map(Part::Named),
        };
        let parts = match names(name.as_bytes()).map(part).collect::<Result<Vec<_>, _>>() {
            Ok(parts) => parts,
            Err(message) => {
                self.complain(b"", &message);
                return Ok(());
            }
        };
        // The directories that the first parts match, with the number of these parts. The next one is the last.
        let mut pending = vec![(Way::default(), 0)];
        while let Some((way, index)) = pending.pop() {
            match parts.get(index) {
                None => self.complain(&way.path(), "is a directory"),
                Some(Part::Here) => pending.push((way, index + 1)),
                Some(Part::Up) => match way.back() {
                    Some(way) => pending.push((way, index + 1)),
                    None => self.complain(b"/..", "cannot ascend beyond the root directory"),
                },
                Some(Part::Named(pattern)) => {
                    let found = self.enter(&way, pattern, index + 1 == parts.len())?;
                    pending.extend(found.into_iter().rev().map(|way| (way, index + 1)));
                }
            }
            if self.exit == FATAL {
                break;
            }
        }
        Ok(())
    }

    /// Finds the entries of a directory that match. Writes them if they are the last part of their path, otherwise returns the
    /// directories among them.
    fn enter(&mut self, way: &Way, pattern: &Pattern, is_last: bool) -> io::Result<Vec<Way>> {
        let (mut directories, mut has_match, directory) = (Vec::new(), false, way.nid(self.image));
        for entry in self.image.read_dir(directory) {
            let entry = entry.and_then(|entry| {
                self.limit.take(self.image.file_system().as_ref(), directory)?;
                Ok(entry)
            });
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.fail(&way.path(), &error);
                    break;
                }
            };
            if pattern.matches(&entry.name) {
                has_match = true;
                directories.extend(self.visit(way, entry, is_last)?);
                if self.exit == FATAL {
                    break;
                }
            }
        }
        if !has_match && self.exit != FATAL {
            self.complain(&way.path(), "no matches in this directory");
        }
        Ok(directories)
    }

    /// Writes a match if it is the last part of its path, otherwise returns it if it is a directory.
    fn visit(&mut self, way: &Way, entry: DirectoryEntry, is_last: bool) -> io::Result<Option<Way>> {
        let (name, mut file_type) = (entry.name.clone(), entry.file_type);
        let mut found = way.clone().below(entry.name, entry.nid);
        let path = found.path();
        if file_type == FileType::Symlink {
            let followed = links::follow(self.image, way.clone(), &name, &mut Vec::new());
            let followed = followed.and_then(|way| {
                let attr = self.image.attr(way.nid(self.image)).map_err(|error| error.to_string())?;
                Ok((way, attr.file_type))
            });
            match followed {
                Ok(followed) => (found, file_type) = followed,
                Err(message) => {
                    self.complain(&path, &message);
                    return Ok(None);
                }
            }
        }
        match (file_type, is_last) {
            (FileType::Regular, true) => self.write_file(found.nid(self.image), &path)?,
            (FileType::Directory, false) => return Ok(Some(found)),
            (FileType::Directory, true) => self.complain(&path, "is a directory"),
            (_, true) => self.complain(&path, "is not a regular file"),
            (_, false) => self.complain(&path, "is not a directory"),
        }
        Ok(None)
    }

    fn write_file(&mut self, nid: Nid, path: &[u8]) -> io::Result<()> {
        let mut position = 0;
        loop {
            match self.image.read_at(nid, position, &mut self.piece) {
                Ok(0) => return Ok(()),
                Ok(len) => {
                    self.output.write_all(&self.piece[..len])?;
                    position += len as u64;
                }
                Err(error) => {
                    self.fail(path, &error);
                    return Ok(());
                }
            }
        }
    }

    /// Reports a name that cannot be written.
    fn complain(&mut self, path: &[u8], message: &str) {
        say!("cat: {}: {message}", Shown(if path.is_empty() { b"/" } else { path }));
        self.exit = NOT_FATAL;
    }

    /// Reports a fault of the image, which ends the program unless errors are ignored.
    fn fail(&mut self, path: &[u8], error: &floe::Error) {
        let (kind, exit) = if self.arguments.ignores_errors { ("ERROR", NOT_FATAL) } else { ("FATAL ERROR", FATAL) };
        say!("{kind}: cat: {}: {error}", Shown(if path.is_empty() { b"/" } else { path }));
        self.exit = exit;
    }
}
