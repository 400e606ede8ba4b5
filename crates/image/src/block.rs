//! A run of image bytes that decodes to one run of data.

/// Which of an image's sources: 0 is the image itself, further ones are its extra devices in the order of its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceId(pub u16);

/// How a block's stored length is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoredLen {
    /// This many bytes.
    Known(u32),
    /// A 16-bit little-endian word stands before the bytes, at the block's offset: its low 15 bits are their length,
    /// and its top bit says that they are stored as they are. The word is not part of the stored bytes.
    Prefixed,
}

/// What is known of a block's decoded length, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DecodedLen {
    /// It decodes to exactly this many; anything else is corruption.
    Exact(u32),
    /// It decodes to at least this many, and what lies beyond is not known here and not to be decoded: a part of a
    /// block that several places share.
    AtLeast(u32),
    /// It decodes to at most this many, and its end tells where.
    AtMost(u32),
}

impl DecodedLen {
    /// The number of bytes to make room for.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Exact(len) | Self::AtLeast(len) | Self::AtMost(len) => len,
        }
    }
}

/// What stands beside the compressed bytes in the stored run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Padding {
    /// Nothing: the compressed bytes fill the run.
    None,
    /// Zero bytes stand before them and are skipped (EROFS with 0-padding).
    Leading,
    /// Bytes of no meaning may follow them (EROFS without 0-padding): decoding ends with the decoded length.
    Trailing,
}

/// The branch filters that an xz stream may name, as the bits of SquashFS's compressor options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BcjFilters(pub u32);

/// How stored bytes become data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// The stored bytes are the data.
    Stored,
    /// One raw LZ4 block.
    Lz4 {
        /// What surrounds it.
        padding: Padding,
        /// The farthest a match may reach back, in bytes; at most 65,536.
        window_bytes: u32,
    },
    /// LZMA in the MicroLZMA form of XZ Utils: no header, the properties in the place of the first byte.
    MicroLzma {
        /// What surrounds it.
        padding: Padding,
        /// The dictionary in bytes; at most 8 MiB.
        dictionary_bytes: u32,
    },
    /// A raw DEFLATE stream.
    Deflate {
        /// What surrounds it.
        padding: Padding,
        /// log2 of the window; at most 15.
        window_log2: u8,
    },
    /// A Zstandard frame.
    Zstd {
        /// What surrounds it.
        padding: Padding,
        /// log2 of the largest window that is accepted.
        window_log2_max: u8,
    },
    /// A zlib stream (SquashFS "gzip").
    Zlib,
    /// The legacy .lzma ("LZMA alone") form.
    LzmaAlone,
    /// An LZO1X block.
    Lzo,
    /// An .xz stream.
    Xz {
        /// The dictionary in bytes that bounds the memory of decoding.
        dictionary_bytes: u32,
    },
}

/// A run of image bytes that decodes to one run of data: an EROFS physical cluster; a SquashFS data, fragment or
/// metadata block.
///
/// It is what is fetched, cached, decoded and measured. Two blocks with the same place and encoding hold the same data,
/// though one may know less of its decoded length than the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoredBlock {
    /// The source it lies in.
    pub device: DeviceId,
    /// Its first byte in that source.
    pub offset: u64,
    /// How many bytes are stored.
    pub stored_len: StoredLen,
    /// How many bytes they decode to.
    pub decoded_len: DecodedLen,
    /// How they are decoded.
    pub encoding: Encoding,
}
