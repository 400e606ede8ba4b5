//! One entry of a manifest, and the escaping of bytes in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// A segment of a file, as reported by `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The offset of the first byte.
    pub offset: u64,
    /// The offset after the last byte.
    pub end: u64,
    /// Whether it is data.
    pub is_data: bool,
}

/// The results of `lstat`, `readlink`, `getxattr` and `read` for one path.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Entry {
    /// f d l c b p s: file, directory, symlink, character device, block device, fifo, socket.
    #[serde(rename = "type")]
    pub file_type: char,
    /// The twelve permission bits.
    #[serde(deserialize_with = "octal")]
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The number of hard links.
    #[serde(rename = "nlink")]
    pub link_count: u64,
    /// The modification time: seconds and nanoseconds.
    #[serde(rename = "mtime")]
    pub modified: (i64, u32),
    /// The major and minor number of a device.
    #[serde(rename = "rdev")]
    pub device: Option<(u32, u32)>,
    /// The target of a symbolic link.
    #[serde(default, deserialize_with = "escaped")]
    pub target: Option<Vec<u8>>,
    /// Xattr values by name.
    #[serde(default, deserialize_with = "xattrs")]
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The SHA-256 of a file's content, in hex.
    pub sha256: Option<String>,
    /// The first path of the same inode, in byte order.
    #[serde(default, deserialize_with = "escaped")]
    pub link_of: Option<Vec<u8>>,
    /// `st_ino`; not in the manifests.
    #[serde(skip)]
    pub inode_number: Option<u64>,
    /// `st_blocks`; not in the manifests.
    #[serde(skip)]
    pub blocks_512: Option<u64>,
    /// The data and holes of a file; not in the manifests.
    #[serde(skip)]
    pub segments: Option<Vec<Segment>>,
}

impl Entry {
    /// The manifest line of this entry with `path`.
    pub(super) fn to_line(&self, path: &[u8]) -> String {
        let mut fields = vec![
            ("path", json!(escape(path))),
            ("type", json!(self.file_type)),
            ("mode", json!(format!("{:04o}", self.mode))),
            ("uid", json!(self.uid)),
            ("gid", json!(self.gid)),
            ("size", json!(self.size)),
            ("nlink", json!(self.link_count)),
            ("mtime", json!(self.modified)),
        ];
        fields.extend(self.device.map(|device| ("rdev", json!(device))));
        fields.extend(self.target.as_ref().map(|target| ("target", json!(escape(target)))));
        if !self.xattrs.is_empty() {
            let pairs = self.xattrs.iter().map(|(name, value)| (escape(name), json!(hex_from_bytes(value))));
            fields.push(("xattrs", Value::Object(pairs.collect::<Map<_, _>>())));
        }
        fields.extend(self.sha256.as_ref().map(|sha256| ("sha256", json!(sha256))));
        fields.extend(self.link_of.as_ref().map(|first| ("link_of", json!(escape(first)))));
        let fields: Vec<String> = fields.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }
}

fn octal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let digits = String::deserialize(deserializer)?;
    u32::from_str_radix(&digits, 8).map_err(|_| D::Error::custom(format!("mode {digits} is not octal")))
}

fn escaped<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| unescape(&text).ok_or_else(|| D::Error::custom(format!("escapes in {text}")))).transpose()
}

fn xattrs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, D::Error> {
    let pairs = BTreeMap::<String, String>::deserialize(deserializer)?;
    let decoded = pairs.into_iter().map(|(name, value)| {
        let bytes = unescape(&name).zip(bytes_from_hex(&value));
        bytes.ok_or_else(|| D::Error::custom(format!("attribute {name} = {value}")))
    });
    decoded.collect()
}

/// Escapes each byte outside `A-Za-z0-9._-/+=,@:~` as `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => text.push(char::from(*byte)),
            byte if b"._-/+=,@:~".contains(byte) => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The inverse of [`escape`]; `None` if a `%` is not followed by two hex digits.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(bytes)
}

/// The bytes in lower-case hex.
pub fn hex_from_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The inverse of [`hex_from_bytes`]; `None` if the string is invalid.
pub fn bytes_from_hex(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok())
        .collect()
}

/// The SHA-256 of `bytes`, in hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex_from_bytes(&Sha256::digest(bytes))
}
