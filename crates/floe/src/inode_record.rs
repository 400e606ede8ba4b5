//! What is at one path, as a line of JSON.

use std::collections::BTreeMap;

use floe::{Attr, Error, FileSystem, FileType};
use serde::Serialize;

use crate::shown::json_name;

/// What is at one path, as a line of JSON. Names are text in which `%XX` stands for what is not
/// ([`json_name`]).
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
    /// What `file_system` says of the inode that `attr` describes.
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
            for name in file_system.xattr_names(attr.nid)? {
                let value = file_system.xattr(attr.nid, &name)?.unwrap_or_default();
                found.insert(json_name(&name), value.iter().map(|byte| format!("{byte:02x}")).collect());
            }
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

    /// The line, with its end.
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}
