//! The files of an OCI layout or of a docker archive: in a directory, or in a tar archive.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::ShownName;

use crate::error::{Error, Result};

/// The size of a block of a tar archive, in bytes.
const BLOCK: u64 = 512;
/// The maximum number of members of an archive.
const MEMBERS_MAX: usize = 65_536;
/// The maximum size of the extended header of a member, in bytes.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of links between a name and its file.
const LINKS_MAX: usize = 8;

/// The files of a directory or an archive, by their names.
pub(crate) enum Files {
    Directory(PathBuf),
    Archive { path: PathBuf, file: Arc<File>, members: HashMap<String, Member> },
}

/// A member of an archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Member {
    File {
        offset: u64,
        len: u64,
    },
    /// The name of another member.
    Link(String),
}

/// One of the files, which is read from its start.
pub(crate) struct OpenFile {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl Files {
    /// Opens a directory or an archive.
    ///
    /// # Errors
    /// The archive cannot be read, or is compressed.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let file = File::open(path).map_err(Error::file(path))?;
        let members = members(&file).map_err(|problem| Error::failed(format!("{}: {problem}", path.shown())))?;
        Ok(Self::Archive { path: path.to_owned(), file: Arc::new(file), members })
    }

    /// Whether there is such a file.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(path) => path.join(name).is_file(),
            Self::Archive { members, .. } => member(members, name).is_some(),
        }
    }

    /// The path of a file that is not in an archive.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Directory(path) => Some(path.join(name)),
            Self::Archive { .. } => None,
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// It does not exist.
    pub(crate) fn file(&self, name: &str) -> Result<OpenFile> {
        match self {
            Self::Directory(path) => {
                let path = path.join(name);
                let file = File::open(&path).map_err(Error::file(&path))?;
                let end = file.metadata().map_err(Error::file(&path))?.len();
                Ok(OpenFile { file: Arc::new(file), offset: 0, end })
            }
            Self::Archive { path, file, members } => match member(members, name) {
                Some((offset, len)) => Ok(OpenFile { file: Arc::clone(file), offset, end: offset + len }),
                None => Err(Error::failed(format!("{}: it has no '{}'", path.shown(), name.escape_debug()))),
            },
        }
    }

    /// Reads a file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// It does not exist, or is longer.
    pub(crate) fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
        let file = self.file(name)?;
        if file.end - file.offset > bytes_max {
            return Err(Error::failed(format!("'{}' has more than {bytes_max} bytes", name.escape_debug())));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for OpenFile {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX).min(output.len());
        let read = self.file.read_at(&mut output[..len], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

fn member(members: &HashMap<String, Member>, name: &str) -> Option<(u64, u64)> {
    let mut name = name.to_owned();
    for _ in 0..LINKS_MAX {
        match members.get(&name)? {
            Member::File { offset, len } => return Some((*offset, *len)),
            Member::Link(target) => name.clone_from(target),
        }
    }
    None
}

/// Lists the members of an archive.
fn members(file: &File) -> std::result::Result<HashMap<String, Member>, String> {
    let text = |error: io::Error| error.to_string();
    let file_len = file.metadata().map_err(text)?.len();
    let mut members = HashMap::new();
    // What extended headers say about the next member.
    let (mut long_name, mut long_link, mut long_len) = (None, None, None);
    let mut at = 0;
    while at + BLOCK <= file_len {
        let mut header = [0; BLOCK as usize];
        file.read_exact_at(&mut header, at).map_err(text)?;
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        if &header[257..262] != b"ustar" {
            let what = if at == 0 { "neither a directory nor a plain tar archive" } else { "a broken tar archive" };
            return Err(what.to_owned());
        }
        let kind = header[156];
        let is_extension = matches!(kind, b'x' | b'g' | b'L' | b'K');
        let len = number(&header[124..136]).ok_or("a broken tar archive: a length is not a number")?;
        let len = if is_extension { len } else { long_len.take().unwrap_or(len) };
        let offset = at + BLOCK;
        let end = offset.checked_add(len).filter(|end| *end <= file_len).ok_or("the archive is truncated")?;
        at = end.next_multiple_of(BLOCK);
        if is_extension {
            if len > EXTENSION_BYTES_MAX {
                return Err("a broken tar archive: an extended header is too long".to_owned());
            }
            let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
            file.read_exact_at(&mut bytes, offset).map_err(text)?;
            match kind {
                b'L' => long_name = Some(string(&bytes)),
                b'K' => long_link = Some(string(&bytes)),
                b'x' => {
                    for (key, value) in records(&bytes) {
                        match key {
                            b"path" => long_name = Some(string(value)),
                            b"linkpath" => long_link = Some(string(value)),
                            b"size" => long_len = string(value).parse().ok(),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
            continue;
        }
        let prefix = string(&header[345..500]);
        let short = string(&header[..100]);
        let short = if prefix.is_empty() { short } else { format!("{prefix}/{short}") };
        let name = normal(&long_name.take().unwrap_or(short));
        let link = long_link.take().unwrap_or_else(|| string(&header[157..257]));
        let member = match kind {
            0 | b'0' | b'7' => Member::File { offset, len },
            b'1' => Member::Link(normal(&link)),
            b'2' => Member::Link(normal(&format!("{}/../{link}", name))),
            _ => continue,
        };
        if members.len() == MEMBERS_MAX {
            return Err(format!("the archive has more than {MEMBERS_MAX} members"));
        }
        members.insert(name, member);
    }
    Ok(members)
}

/// The records of an extended header: `LENGTH KEY=VALUE\n`.
fn records(mut bytes: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut records = Vec::new();
    while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
        let len: Option<usize> = string(&bytes[..space]).parse().ok();
        let Some(record) = len.and_then(|len| bytes.get(space + 1..len)) else { break };
        let record_end = space + 1 + record.len();
        if let Some(equals) = record.iter().position(|byte| *byte == b'=') {
            let value = &record[equals + 1..];
            records.push((&record[..equals], value.strip_suffix(b"\n").unwrap_or(value)));
        }
        bytes = &bytes[record_end..];
    }
    records
}

/// A number of a header: octal digits, or big-endian with the highest bit set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let is_small = high[0] == 0x80 && high[1..].iter().all(|byte| *byte == 0);
        return is_small.then_some(u64::from_be_bytes(low.try_into().ok()?));
    }
    let text = string(field);
    u64::from_str_radix(text.trim(), 8).ok().or_else(|| text.trim().is_empty().then_some(0))
}

/// The text before the first zero byte.
fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// A name without `.` and `..`.
fn normal(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalised() {
        for (name, expected) in
            [("./a/b", "a/b"), ("a/layer.tar/../../b.tar", "b.tar"), ("../../a", "a"), ("/a//b/.", "a/b"), ("", "")]
        {
            assert_eq!(normal(name), expected, "{name}");
        }
    }

    #[test]
    fn numbers_of_headers_are_read() {
        let mut big = [0; 12];
        (big[0], big[10], big[11]) = (0x80, 1, 2);
        let mut huge = [0xff; 12];
        huge[0] = 0x80;
        for (field, expected) in [
            (*b"00000000017\0", Some(15)),
            (*b"      17    ", Some(15)),
            (*b"0000000018\0\0", None),
            (big, Some(258)),
            (huge, None),
        ] {
            assert_eq!(number(&field), expected, "{field:?}");
        }
    }

    #[test]
    fn records_of_extended_headers_are_read() {
        let expected: Vec<(&[u8], &[u8])> = vec![(b"path", b"a b"), (b"size", b"7")];
        assert_eq!(records(b"12 path=a b\n10 size=7\n"), expected);
        for broken in [&b"99 path=a\n"[..], b"x path=a\n", b"1 path=a\n", b"", b" ", b"0 a=b\n"] {
            assert!(records(broken).is_empty(), "{broken:?}");
        }
    }

    #[test]
    fn broken_archives_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("archive");
        let mut header = [0_u8; 512];
        header[..4].copy_from_slice(b"name");
        header[124..135].copy_from_slice(b"00000001000");
        header[257..262].copy_from_slice(b"ustar");
        for (bytes, expected) in
            [(&header[..], "truncated"), (&[1; 512], "neither a directory"), (&b"x".repeat(600), "neither a directory")]
        {
            std::fs::write(&path, bytes).expect("written");
            let error = Files::open(&path).err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        }
        // A link to itself is no file.
        header[124..135].copy_from_slice(b"00000000000");
        header[156] = b'1';
        header[157..161].copy_from_slice(b"name");
        std::fs::write(&path, header).expect("written");
        assert!(!Files::open(&path).expect("an archive").has("name"));
    }
}
