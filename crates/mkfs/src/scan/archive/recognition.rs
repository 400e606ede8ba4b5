//! Recognises tar archives, and other files commonly mistaken for them.

use super::{
    Archive,
    header::{self, BLOCK_LEN},
};
use crate::error::{Error, Result};

/// An archive without members consists of zeros only, at most one record of the largest usual size.
const EMPTY_LEN_MAX: u64 = 1 << 20;
/// The read size in bytes.
const READ_LEN: usize = 64 << 10;

/// Magic numbers of files that users may pass by mistake instead of an archive: offset, bytes, description.
const MAGICS: [(u64, &[u8], &str); 20] = [
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS image"),
    (0, b"hsqs", "a SquashFS image"),
    (0, b"\x7fELF", "a program"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"PK\x05\x06", "a zip archive"),
    (0, b"070701", "a cpio archive"),
    (0, b"070702", "a cpio archive"),
    (0, b"070707", "a cpio archive"),
    (0, &[0xc7, 0x71], "a cpio archive"),
    (0, b"!<arch>\n", "an ar archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a RAR archive"),
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"XFSB", "an XFS image"),
    (0, &[0x45, 0x3d, 0xcd, 0x28], "a cramfs image"),
    (0, b"-rom1fs-", "a romfs image"),
    (512, b"EFI PART", "a partitioned disk"),
    (1080, &[0x53, 0xef], "an ext4 image"),
    (0x8001, b"CD001", "an ISO 9660 image"),
    (0x1_0040, b"_BHRfS_M", "a Btrfs image"),
];

impl Archive {
    /// Fails unless the file begins with a member header or consists of zeros only.
    pub(super) fn recognize(self) -> Result<Self> {
        let mut block = [0; BLOCK_LEN];
        if self.len < block.len() as u64 {
            return Err(match self.magic() {
                _ if self.len == 0 => Error::unfit(&*self.path, "it is empty; a tar archive has at least 1024 bytes"),
                what => self.not_an_archive(what.unwrap_or_default()),
            });
        }
        self.read_at(0, &mut block)?;
        if block == [0; BLOCK_LEN] {
            // An image may begin with zeros too.
            return if self.is_empty()? {
                Ok(self)
            } else {
                Err(self.not_an_archive(self.magic().unwrap_or_default()))
            };
        }
        if header::is_whole(&block) { Ok(self) } else { Err(self.not_an_archive(self.magic().unwrap_or_default())) }
    }

    fn is_empty(&self) -> Result<bool> {
        if self.len > EMPTY_LEN_MAX {
            return Ok(false);
        }
        let mut buffer = vec![0; READ_LEN];
        let mut at = 0;
        while at < self.len {
            let len = usize::try_from(self.len - at).unwrap_or(usize::MAX).min(READ_LEN);
            self.read_at(at, &mut buffer[..len])?;
            if buffer[..len].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// The type of the file by its magic number.
    fn magic(&self) -> Option<&'static str> {
        let has = |offset: u64, magic: &[u8]| {
            let mut there = vec![0; magic.len()];
            self.read_at(offset, &mut there).is_ok() && there == magic
        };
        MAGICS.iter().find(|(offset, magic, _)| has(*offset, magic)).map(|(.., what)| *what)
    }

    fn not_an_archive(&self, what: &str) -> Error {
        let rule = "it is neither a directory nor a tar archive";
        let reason = match what {
            "" => rule.to_owned(),
            what => format!("{rule} but {what}: extract it and give the directory"),
        };
        Error::unfit(&*self.path, reason)
    }
}
