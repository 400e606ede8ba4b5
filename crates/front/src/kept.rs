//! Kept images: the metadata of an original as an EROFS image in a file, so that the next mount renders nothing.
//!
//! The kernel mounts the file in place of the virtual image. Names, attributes and data are the same as there, and so is the
//! root's inode number; other inodes have other numbers, because here they are as close together as possible. File data is not
//! in the file: small and large files each have a device, on which Floe serves their data. An index leads from the addresses on
//! these devices back to files of the original.
//!
//! The original itself can be a third device ([`ImageFile`]): the kernel then reads data that is stored uncompressed, in whole
//! blocks, without Floe. Rendering checks that these blocks are in the image. The bytes behind the last whole block of such a file
//! follow its inode, as far as there is room in the file. The kernel also decodes small files, from blocks that rendering has
//! decoded before.
//!
//! | bytes | what |
//! | --- | --- |
//! | block 0 | the superblock with the devices |
//! | block 1 | the header, for Floe alone: version, identity of the original, lengths, checksums |
//! | from the root on, in block 1 | inodes and directory blocks, a directory after the other in the order of a walk |
//! | from a block on | shared extended attributes |
//! | behind them | the index: 16 bytes for each run of file data |
//!
//! The inode of a directory, its entries and the inodes of its files stand together. The entries follow the inode, apart from
//! full blocks. Files come before their directory where they fill the rest of a block for which it is too large.
//!
//! Nothing is synced: a checksum covers the whole file, and a file that does not match it is not used.

mod algorithms;
mod checksum;
mod compressed;
mod empty_image;
mod entry;
mod header;
mod image_file;
mod metadata_file;
mod not_kept;
mod number_set;
mod runs;
mod shared_xattrs;
mod soundness;
mod writing;

use std::{fs::File, io, os::unix::fs::FileExt};

pub(crate) use self::runs::{KeptRun, KeptRuns};
pub use self::{
    algorithms::Algorithms,
    empty_image::empty_image,
    header::Identity,
    image_file::ImageFile,
    not_kept::NotKept,
    soundness::{KernelRights, NO_GROUP, OWNER_ALONE, UserRules, check_soundness},
    writing::{Pace, keep},
};
use self::{
    checksum::checksum,
    header::{HEADER_BYTES, HEADER_START, Header},
};

/// A kept image whose content was verified.
#[derive(Debug)]
pub struct KeptImage {
    file: File,
    header: Header,
}

impl KeptImage {
    /// Reads all of `file`, and compares it with the checksum that was stored with it.
    ///
    /// # Errors
    /// The file is not a complete kept image of the original with this identity, or cannot be read.
    pub fn verify(file: File, identity: &Identity) -> io::Result<Self> {
        let Self { file, header } = Self::verified_elsewhere(file)?;
        if header.identity != *identity {
            return Err(refused("it belongs to another image"));
        }
        if file.metadata()?.len() != header.len {
            return Err(refused("its length is wrong"));
        }
        if checksum(&file, header.len)? != header.checksum {
            return Err(refused("its checksum is wrong"));
        }
        Ok(Self { file, header })
    }

    /// A kept image that another process, which this one trusts, has verified.
    ///
    /// # Errors
    /// The file has no valid header, or cannot be read.
    pub fn verified_elsewhere(file: File) -> io::Result<Self> {
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact_at(&mut bytes, HEADER_START)?;
        let header = Header::from_bytes(&bytes).ok_or_else(|| refused("it is not a complete kept image"))?;
        Ok(Self { file, header })
    }

    /// The file that the kernel mounts.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether the kernel reads data in the original itself.
    pub(crate) fn has_data_in_image(&self) -> bool {
        self.header.image_blocks > 0
    }

    /// Whether the kernel decodes small files. Not all kernels have all algorithms.
    pub fn is_decoded_by_kernel(&self) -> bool {
        self.header.decodes
    }

    /// The index, which takes 16 bytes of memory for each run of file data.
    ///
    /// # Errors
    /// The file cannot be read, or has changed.
    pub(crate) fn runs(&self) -> io::Result<KeptRuns> {
        KeptRuns::read(&self.file, &self.header.index)?.ok_or_else(|| refused("the index of the kept image is wrong"))
    }
}

fn refused(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
