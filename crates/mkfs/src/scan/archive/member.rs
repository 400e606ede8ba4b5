//! Iterates over the members of an archive.

use std::sync::Arc;

use floe_image::{DeviceNumber, FileType, ShownName, Timestamp};
use tar::{EntryType, Header};

use super::{
    Archive,
    extensions::Extensions,
    header::{self, BLOCK_LEN, BLOCK_SIZE, number},
    sparse::SparseMap,
};
use crate::{
    error::Result,
    tree::{Metadata, content::Content, xattrs::Xattr},
};

/// The longest extended header or long name, in bytes.
const EXTENSION_LEN_MAX: u64 = 16 << 20;
/// The maximum size of global records in bytes: every member gets a copy, and a member needs only 512 bytes.
const GLOBALS_LEN_MAX: usize = 4 << 10;

/// A member of an archive.
pub(super) struct Member {
    /// The path as recorded.
    pub(super) path: Vec<u8>,
    pub(super) kind: MemberKind,
    pub(super) metadata: Metadata,
    pub(super) xattrs: Vec<Xattr>,
    /// Access control lists as text: the access list and the default list.
    pub(super) access_acl: Option<Vec<u8>>,
    pub(super) default_acl: Option<Vec<u8>>,
    /// Whether the member has an NFSv4 access control list, which images cannot store.
    pub(super) has_nfs_acl: bool,
}

/// The type of a member with its data.
pub(super) enum MemberKind {
    Directory,
    File(Content),
    /// A hard link to an earlier member.
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Special(FileType, DeviceNumber),
}

/// Iterates over the members of an archive.
pub(super) struct Members<'a> {
    archive: &'a Archive,
    position: u64,
    globals: Extensions,
    /// The offset of the last zero block before a member. The end marker has two of them.
    zero_block: Option<u64>,
}

impl<'a> Members<'a> {
    pub(super) fn new(archive: &'a Archive) -> Self {
        Self { archive, position: 0, globals: Extensions::default(), zero_block: None }
    }

    /// A warning about members after a zero block, where other programs end.
    pub(super) fn warning(&self) -> Option<String> {
        let path = self.archive.path().shown();
        let warning = |at| format!("{path}: members follow the zero block at byte {at}; they are in the image");
        self.zero_block.map(warning)
    }

    /// Reads the next member; `None` at the end marker.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let mut extensions = Extensions::default();
        loop {
            let start = self.position;
            let mut block = [0; BLOCK_LEN];
            self.archive.read_at(start, &mut block)?;
            if block == [0; BLOCK_LEN] {
                self.position += BLOCK_SIZE;
                if !self.is_at_header() {
                    return Ok(None);
                }
                self.zero_block = Some(start);
                continue;
            }
            if !header::is_whole(&block) {
                let rule = "wrong checksum";
                return Err(self.archive.broken(start, rule));
            }
            self.position += BLOCK_SIZE;
            header::complete_version(&mut block);
            let header = Header::from_byte_slice(&block);
            let archive = self.archive;
            let broken = |rule: &str| archive.broken(start, rule);
            let own_size = number(&header.as_old().size).and_then(|size| u64::try_from(size).ok());
            let own_size = own_size.ok_or_else(|| broken("invalid size"))?;
            match header.entry_type().as_byte() {
                b'x' | b'X' => extensions.add(&self.extension(own_size, start)?).map_err(broken)?,
                b'g' => {
                    let data = self.extension(own_size, start)?;
                    self.globals.add(&data).map_err(broken)?;
                    if self.globals.len() > GLOBALS_LEN_MAX {
                        return Err(broken("global extended headers exceed 4 KiB"));
                    }
                }
                b'L' => extensions.long_name = Some(self.extension(own_size, start)?),
                b'K' => extensions.long_link = Some(self.extension(own_size, start)?),
                // A volume label.
                b'V' => self.skip(own_size)?,
                _ => {
                    extensions.complete(&self.globals);
                    return self.member(header, extensions, own_size, start).map(Some);
                }
            }
        }
    }

    /// Whether a sound header follows.
    fn is_at_header(&self) -> bool {
        let mut block = [0; BLOCK_LEN];
        self.archive.read_at(self.position, &mut block).is_ok() && header::is_whole(&block)
    }

    fn member(&mut self, header: &Header, extensions: Extensions, own_size: u64, start: u64) -> Result<Member> {
        let broken = |rule: &'static str| self.archive.broken(start, rule);
        let stored_len = extensions.number("size").map_err(broken)?.unwrap_or(own_size);
        let path = [extensions.text("GNU.sparse.name"), extensions.text("path"), extensions.long_name.as_deref()];
        let path = match path.into_iter().flatten().next() {
            Some(path) => trimmed(path),
            None => header.path_bytes().into_owned(),
        };
        let link = extensions.text("linkpath").or(extensions.long_link.as_deref()).map(trimmed);
        let link = link.or_else(|| header.link_name_bytes().map(|link| link.into_owned())).unwrap_or_default();
        let metadata = self.metadata(header, &extensions, start)?;
        let (position, archive) = (self.position, self.archive);
        let after_data = || position.checked_add(stored_len).ok_or_else(|| archive.truncated());
        let (kind, end) = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => (MemberKind::Directory, None),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (content, end) = self.content(header, &extensions, stored_len, &path, start)?;
                (MemberKind::File(content), Some(end))
            }
            // With pax records, data may follow a hard link.
            EntryType::Link => (MemberKind::HardLink(link), if extensions.is_pax { Some(after_data()?) } else { None }),
            EntryType::Symlink => (MemberKind::Symlink(link), None),
            EntryType::Directory => (MemberKind::Directory, None),
            EntryType::Fifo => (MemberKind::Special(FileType::Fifo, DeviceNumber::default()), None),
            EntryType::Char => (self.device(FileType::CharacterDevice, header, &extensions, &path, start)?, None),
            EntryType::Block => (self.device(FileType::BlockDevice, header, &extensions, &path, start)?, None),
            // A directory in an incremental dump, followed by a list of its former entries.
            other if other.as_byte() == b'D' => (MemberKind::Directory, Some(after_data()?)),
            other => {
                let letter = char::from(other.as_byte()).escape_default();
                return Err(self.archive.unfit(&path, &format!("it has the unknown type '{letter}'")));
            }
        };
        if let Some(end) = end {
            self.go_to(end)?;
        }
        let acl = |name| extensions.text(name).map(<[u8]>::to_vec);
        let (access_acl, default_acl) = (acl("SCHILY.acl.access"), acl("SCHILY.acl.default"));
        let has_nfs_acl = extensions.text("SCHILY.acl.ace").is_some();
        Ok(Member { path, kind, metadata, xattrs: extensions.into_xattrs(), access_acl, default_acl, has_nfs_acl })
    }

    fn metadata(&self, header: &Header, extensions: &Extensions, start: u64) -> Result<Metadata> {
        let broken = |rule: &'static str| self.archive.broken(start, rule);
        let old = header.as_old();
        let id = |name: &str, field: &[u8]| {
            let id = match extensions.number(name).map_err(broken)? {
                Some(id) => u32::try_from(id).ok(),
                None => number(field).and_then(|id| u32::try_from(id).ok()),
            };
            id.ok_or_else(|| broken("invalid owner or group"))
        };
        let mode = number(&old.mode).ok_or_else(|| broken("invalid mode"))?;
        let modified = match extensions.modified().map_err(broken)? {
            Some(modified) => modified,
            None => Timestamp { seconds: number(&old.mtime).ok_or_else(|| broken("invalid time"))?, nanoseconds: 0 },
        };
        let permissions = u16::try_from(mode & 0o7777).unwrap_or(0);
        Ok(Metadata { permissions, uid: id("uid", &old.uid)?, gid: id("gid", &old.gid)?, modified })
    }

    /// The content of a file, and where its data ends in the archive.
    fn content(
        &self,
        header: &Header,
        extensions: &Extensions,
        stored_len: u64,
        path: &[u8],
        start: u64,
    ) -> Result<(Content, u64)> {
        let (archive, position) = (self.archive, self.position);
        let unfit = |rule: &'static str| archive.unfit(path, rule);
        let end = position.checked_add(stored_len).filter(|end| *end <= archive.len);
        let mut end = end.ok_or_else(|| archive.truncated())?;
        let sparse = match header.as_gnu().filter(|_| header.entry_type() == EntryType::GNUSparse) {
            Some(gnu) => {
                let (listed, data) = SparseMap::of_gnu(archive, gnu, position, path)?;
                end = data.checked_add(stored_len).ok_or_else(|| archive.truncated())?;
                let size = number(&gnu.realsize).and_then(|size| u64::try_from(size).ok());
                let size = size.ok_or_else(|| archive.broken(start, "invalid size"))?;
                Some(SparseMap::new(&listed, size, data, stored_len).map_err(unfit)?)
            }
            None if header.entry_type() == EntryType::GNUSparse => {
                return Err(archive.broken(start, "a sparse file without a GNU header"));
            }
            None => match SparseMap::of_pax(archive, extensions, position, stored_len, path)? {
                None => None,
                Some((listed, data)) => {
                    let size = extensions.number("GNU.sparse.realsize").map_err(unfit)?;
                    let size = size.or(extensions.number("GNU.sparse.size").map_err(unfit)?);
                    let size = size.ok_or_else(|| unfit("a sparse file has no size"))?;
                    let data_len = end.checked_sub(data).ok_or_else(|| archive.truncated())?;
                    Some(SparseMap::new(&listed, size, data, data_len).map_err(unfit)?)
                }
            },
        };
        let file = Arc::clone(&archive.file);
        let content = match sparse {
            Some(SparseMap { size, runs }) => Content::Sparse { file, runs: runs.into(), size },
            None => Content::Region { file, offset: position, size: stored_len },
        };
        Ok((content, end))
    }

    fn device(
        &self,
        file_type: FileType,
        header: &Header,
        extensions: &Extensions,
        path: &[u8],
        start: u64,
    ) -> Result<MemberKind> {
        let broken = |rule: &'static str| self.archive.broken(start, rule);
        let (major, minor) = header::device_fields(header).unzip();
        let part = |name: &str, field: Option<&[u8]>| -> Result<u32> {
            let part = match extensions.number(name).map_err(broken)? {
                Some(part) => u32::try_from(part).ok(),
                None => {
                    let own = field.and_then(number).ok_or_else(|| broken("invalid device number"))?;
                    u32::try_from(own).ok()
                }
            };
            Ok(part.unwrap_or(u32::MAX))
        };
        let number = DeviceNumber { major: part("SCHILY.devmajor", major)?, minor: part("SCHILY.devminor", minor)? };
        if DeviceNumber::from_encoded(number.encoded()) != number {
            return Err(self.archive.unfit(path, "its device numbers exceed 4095 and 1048575"));
        }
        Ok(MemberKind::Special(file_type, number))
    }

    fn extension(&mut self, len: u64, start: u64) -> Result<Vec<u8>> {
        if len > EXTENSION_LEN_MAX {
            return Err(self.archive.broken(start, "extended header exceeds 16 MiB"));
        }
        if self.position + len > self.archive.len {
            return Err(self.archive.truncated());
        }
        let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
        self.archive.read_at(self.position, &mut data)?;
        self.skip(len)?;
        Ok(data)
    }

    fn skip(&mut self, len: u64) -> Result<()> {
        self.go_to(self.position.saturating_add(len))
    }

    fn go_to(&mut self, end: u64) -> Result<()> {
        // The position must advance, so that the iteration ends.
        let is_ahead = self.position <= end && end <= self.archive.len;
        let next = end.checked_next_multiple_of(BLOCK_SIZE).filter(|_| is_ahead);
        self.position = next.ok_or_else(|| self.archive.truncated())?;
        Ok(())
    }
}

/// The name without trailing zero bytes.
fn trimmed(name: &[u8]) -> Vec<u8> {
    let end = name.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    name[..end].to_vec()
}
