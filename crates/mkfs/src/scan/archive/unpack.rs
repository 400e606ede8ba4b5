//! Recognises tar archives, and decompresses them into a temporary file.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::Path,
};

use flate2::bufread::GzDecoder;
use liblzma::stream::Stream;

use super::{
    Archive,
    header::{self, BLOCK_LEN},
};
use crate::{
    error::{Error, Result},
    files::output_file::scratch_file,
    progress::{Phase, Progress, report},
};

/// How many bytes identify the compression of an archive: the first header, because the name of its member may begin
/// with the magic of a compression.
pub(super) const HEAD_LEN: usize = BLOCK_LEN;
/// The read size in bytes.
const BUFFER_LEN: usize = 1 << 20;
/// The first byte of a member of a gzip file.
const GZIP_MAGIC: u8 = 0x1f;
/// The largest memory for decoding xz or lzma, in bytes; the highest preset needs 65 MiB.
const XZ_MEMORY_MAX: u64 = 1 << 30;

/// The compression of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    Plain,
    Gzip,
    Xz,
    /// The format of LZMA Utils.
    Lzma,
    Zstd,
    /// A known format that is not supported.
    Other(&'static str),
}

/// Whether an archive with this beginning is uncompressed.
pub(super) fn is_plain(head: &[u8]) -> bool {
    Packing::of(head) == Packing::Plain
}

/// Whether a file with this beginning is an archive or compressed.
pub(super) fn is_packed(head: &[u8]) -> bool {
    head.first_chunk().is_some_and(header::is_whole) || !is_plain(head)
}

/// Decompresses an archive to a temporary file next to the image `output`; returns it with its length.
pub(super) fn unpacked(
    mut input: impl Read,
    path: &Path,
    output: &Path,
    progress: &mut dyn Progress,
) -> Result<(File, u64)> {
    let mut head = Vec::with_capacity(HEAD_LEN);
    let begun = input.by_ref().take(HEAD_LEN as u64).read_to_end(&mut head);
    begun.map_err(Error::source(path, "read"))?;
    let packing = Packing::of(&head);
    let whole = BufReader::with_capacity(BUFFER_LEN, io::Cursor::new(head).chain(input));
    let mut decoder = packing.decoder(whole, path)?;
    let mut file = scratch_file(output)?;
    let mut buffer = vec![0; BUFFER_LEN];
    let mut len = 0;
    let action = if packing == Packing::Plain { "read" } else { "decompress" };
    loop {
        let read = match decoder.read(&mut buffer) {
            Ok(0) => return Ok((file, len)),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::source(path, action)(error)),
        };
        let written = file.write_all(&buffer[..read]);
        written.map_err(|error| Error::Output {
            path: output.to_path_buf(),
            action: "unpack the source next to",
            error,
        })?;
        len += read as u64;
        report(progress, Phase::Unpack, len, 0)?;
    }
}

impl Packing {
    fn of(head: &[u8]) -> Self {
        if head.first_chunk().is_some_and(header::is_whole) {
            return Self::Plain;
        }
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Other("bzip2"),
            [b'L', b'Z', b'I', b'P', ..] => Self::Other("lzip"),
            [0x5d, 0, 0, ..] => Self::Lzma,
            [0x04, 0x22, 0x4d, 0x18, ..] => Self::Other("lz4"),
            [b'P', b'K', 3, 4, ..] => Self::Other("zip"),
            _ => Self::Plain,
        }
    }

    fn decoder<'a>(self, input: impl BufRead + 'a, path: &Path) -> Result<Box<dyn Read + 'a>> {
        let failed = |error: io::Error| Error::source(path, "decompress")(error);
        Ok(match self {
            Self::Plain => Box::new(input),
            Self::Gzip => Box::new(GzipMembers::new(input)),
            Self::Xz | Self::Lzma => {
                let stream = match self {
                    Self::Lzma => Stream::new_lzma_decoder(XZ_MEMORY_MAX),
                    _ => Stream::new_stream_decoder(XZ_MEMORY_MAX, liblzma::stream::CONCATENATED),
                };
                let stream = stream.map_err(|error| failed(error.into()))?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(input, stream))
            }
            Self::Zstd => Box::new(zstd::Decoder::with_buffer(input).map_err(failed)?),
            Self::Other(name) => {
                let reason = format!("it is compressed with {name}, which is not supported: decompress it first");
                return Err(Error::unfit(path, reason));
            }
        })
    }
}

/// Decodes the members of a gzip file. Zeros after a member are skipped: tapes and some programs pad files with them.
struct GzipMembers<Input> {
    /// The current member; `None` at the end.
    member: Option<GzDecoder<Input>>,
}

impl<Input: BufRead> GzipMembers<Input> {
    fn new(input: Input) -> Self {
        Self { member: Some(GzDecoder::new(input)) }
    }
}

impl<Input: BufRead> Read for GzipMembers<Input> {
    fn read(&mut self, output: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(member) = &mut self.member else { return Ok(0) };
            let len = member.read(output)?;
            if len > 0 || output.is_empty() {
                return Ok(len);
            }
            // The decoder does not touch its input after the end of the member.
            let input = member.get_mut();
            if skip_zeros(input)? {
                self.member = None;
            } else if input.fill_buf()?.first() != Some(&GZIP_MAGIC) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "other data follows the compressed data"));
            } else {
                self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner()));
            }
        }
    }
}

/// Skips zeros; returns whether the input ends after them.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(true);
        }
        let (zeros, len) = (bytes.iter().take_while(|byte| **byte == 0).count(), bytes.len());
        input.consume(zeros);
        if zeros < len {
            return Ok(false);
        }
    }
}

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
                _ if self.len == 0 => Error::unfit(self.path(), "it is empty; a tar archive has at least 1024 bytes"),
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
        Error::unfit(self.path(), reason)
    }
}
