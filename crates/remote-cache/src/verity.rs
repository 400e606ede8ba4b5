//! dm-verity: hash trees over the blocks of an image, in the layout of the kernel, veritysetup and containerd.
//!
//! They are appended to images as containerd's EROFS snapshotter does it, with their roots in files beside the images:
//! `layer.erofs.dmverity`.

mod superblock;
mod tree;

pub use superblock::BadVerity;

pub(crate) use superblock::{Geometry, Superblock};
pub(crate) use tree::{Attempt, TreeBlocks, VerifyError, VerityTree};

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{Digest, VerityRoot};

/// The number of bytes per read.
const READ_BYTES: usize = 1 << 20;

/// Options of a tree. The default matches containerd: blocks of 4 KiB, a salt of 32 zero bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerityOptions {
    /// The size of data blocks and hash blocks in bytes: a power of two from 512 to 32 KiB. The kernel mounts the image only
    /// if the image's own blocks are no smaller.
    pub block_bytes: u32,
    /// The bytes that precede each block in its hash; at most 256.
    pub salt: Vec<u8>,
}

impl Default for VerityOptions {
    fn default() -> Self {
        Self { block_bytes: 4096, salt: vec![0; 32] }
    }
}

/// Appends a hash tree to the image in `file`: zeros up to a whole block, the superblock in its own block, then the
/// levels from the root down. The same image gives the same tree, including its UUID.
///
/// # Errors
/// The file cannot be read or written, is empty, or an option is invalid.
pub fn append_verity(file: &File, options: &VerityOptions) -> io::Result<VerityRoot> {
    let block_bytes = u64::from(options.block_bytes);
    if !options.block_bytes.is_power_of_two() || !(512..=superblock::BLOCK_BYTES_MAX).contains(&options.block_bytes) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "block sizes are powers of two from 512 bytes to 16 KiB",
        ));
    }
    if options.salt.len() > 256 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a salt has at most 256 bytes"));
    }
    let image_len = file.metadata()?.len();
    let hash_offset = image_len.next_multiple_of(block_bytes);
    let block_log2 = options.block_bytes.ilog2();
    let mut superblock = Superblock {
        data_block_log2: block_log2,
        hash_block_log2: block_log2,
        data_blocks: hash_offset >> block_log2,
        salt: options.salt.clone(),
        uuid: [0; 16],
    };
    let geometry = Geometry::new(superblock.clone(), hash_offset)
        .map_err(|BadVerity { rule }| io::Error::new(io::ErrorKind::InvalidInput, rule))?;
    file.set_len(geometry.end)?;
    let mut place = (0, superblock.data_blocks);
    for level in &geometry.levels {
        hash_level(file, place, level.offset, &superblock)?;
        place = (level.offset, level.blocks);
    }
    // The remainder is the topmost hash block, or the only data block.
    let mut top = vec![0; options.block_bytes as usize];
    file.read_exact_at(&mut top, place.0)?;
    let root_hash = Digest::salted(&superblock.salt, &top);
    superblock.uuid = uuid_of(&root_hash);
    file.write_all_at(&superblock.to_bytes(), hash_offset)?;
    Ok(VerityRoot { root_hash, hash_offset })
}

/// Hashes the blocks at `place` (the position of the first one, and their number), and writes the hashes at `output`,
/// in whole blocks padded with zeros.
fn hash_level(
    file: &File,
    (mut offset, blocks): (u64, u64),
    mut output: u64,
    superblock: &Superblock,
) -> io::Result<()> {
    let block_bytes = 1 << superblock.hash_block_log2;
    let end = offset + (blocks << superblock.data_block_log2);
    let mut input = vec![0; READ_BYTES];
    let mut hashes = Vec::new();
    while offset < end {
        let len = usize::try_from(end - offset).map_or(READ_BYTES, |rest| rest.min(READ_BYTES));
        file.read_exact_at(&mut input[..len], offset)?;
        offset += len as u64;
        for block in input[..len].chunks(block_bytes) {
            hashes.extend_from_slice(&Digest::salted(&superblock.salt, block).0);
        }
        let is_last = offset == end;
        if is_last {
            hashes.resize(hashes.len().next_multiple_of(block_bytes), 0);
        }
        let whole = hashes.len() - hashes.len() % block_bytes;
        file.write_all_at(&hashes[..whole], output)?;
        output += whole as u64;
        hashes.drain(..whole);
    }
    Ok(())
}

/// A UUID (version 8, vendor-specific) derived from this root hash.
fn uuid_of(root_hash: &Digest) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&Digest::salted(b"floe dm-verity UUID", &root_hash.0).0[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[derive(Deserialize)]
struct Sidecar {
    roothash: String,
    hashoffset: u64,
}

/// The path of the sidecar file for the image at `path`.
pub fn sidecar_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".dmverity");
    name.into()
}

/// The content of the sidecar file.
pub fn sidecar_text(root: &VerityRoot) -> String {
    // There is no line break at the end, as in containerd's files.
    format!("{{\n  \"roothash\": \"{}\",\n  \"hashoffset\": {}\n}}", root.root_hash, root.hash_offset)
}

/// Parses the output of [`sidecar_text`] or of containerd.
///
/// # Errors
/// The text is not such JSON, or the hash is not a SHA-256 digest.
pub fn parse_sidecar(text: &str) -> Result<VerityRoot, BadVerity> {
    let sidecar: Sidecar = serde_json::from_str(text)
        .map_err(|_| BadVerity { rule: "the .dmverity file is not a JSON object with roothash and hashoffset" })?;
    let root_hash = sidecar
        .roothash
        .parse()
        .map_err(|_| BadVerity { rule: "the root hash in the .dmverity file is not a SHA-256 digest" })?;
    Ok(VerityRoot { root_hash, hash_offset: sidecar.hashoffset })
}
