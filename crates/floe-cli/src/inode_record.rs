//! An inode as text: a line of JSON, and the mode as `ls -l` shows it.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    ops::ControlFlow,
};

use floe::{Attr, Error, FileSystem, FileType, Xattr};
use floe_image::json_name;
use serde::Serialize;

/// An inode at a path, as a line of JSON. Bytes of names that are not text are written as `%XX` ([`json_name`]).
#[derive(Serialize)]
pub(crate) struct InodeRecord {
    path: String,
    #[serde(rename = "type")]
    file_type: char,
    mode: String,
    uid: u32,
    gid: u32,
    size: u64,
    nlink: u32,
    mtime: (i64, u32),
    #[serde(skip_serializing_if = "Option::is_none")]
    rdev: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    ino: u64,
    nid: u64,
    blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    xattrs: Option<BTreeMap<String, String>>,
}

impl InodeRecord {
    /// Collects the record of the inode that `attr` describes.
    pub(crate) fn new(
        file_system: &dyn FileSystem,
        path: &[u8],
        attr: &Attr,
        with_xattrs: bool,
    ) -> Result<Self, Error> {
        let target = match attr.file_type {
            FileType::Symlink => Some(json_name(&file_system.read_link(attr.nid)?)),
            _ => None,
        };
        let is_device = matches!(attr.file_type, FileType::CharacterDevice | FileType::BlockDevice);
        let mut xattrs = None;
        if with_xattrs {
            let found = xattrs.insert(BTreeMap::new());
            file_system.xattrs(attr.nid, &mut |Xattr { name, value }| {
                found.insert(json_name(name), hex(value));
                ControlFlow::Continue(())
            })?;
        }
        Ok(Self {
            path: json_name(path),
            file_type: attr.file_type.letter(),
            mode: format!("{:04o}", attr.permissions),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            nlink: attr.link_count,
            mtime: (attr.modified.seconds, attr.modified.nanoseconds),
            rdev: is_device.then_some((attr.device.major, attr.device.minor)),
            target,
            ino: attr.inode_number,
            nid: attr.nid.0,
            blocks: attr.blocks_512,
            xattrs,
        })
    }

    /// The line, including its newline.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Type and permissions as `ls -l` shows them: `drwxr-sr-x`.
pub(crate) struct ModeText<'a>(pub(crate) &'a Attr);

impl fmt::Display for ModeText<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permissions = self.0.permissions;
        let mut text = String::with_capacity(10);
        text.push(self.0.file_type.mode_letter());
        for (shift, special_bit, special) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
            let bits = permissions >> shift;
            text.push(if bits & 4 != 0 { 'r' } else { '-' });
            text.push(if bits & 2 != 0 { 'w' } else { '-' });
            text.push(match (permissions & special_bit != 0, bits & 1 != 0) {
                (true, true) => special,
                (true, false) => special.to_ascii_uppercase(),
                (false, true) => 'x',
                (false, false) => '-',
            });
        }
        formatter.pad(&text)
    }
}
