//! Stored blocks: runs of image bytes that decode as a unit.

/// One of an image's sources: 0 is the image itself; extra devices follow in the order of the device table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceId(pub u16);

/// Where the stored length of a block comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoredLen {
    /// The length is known: this many bytes.
    Known(u32),
    /// A 16-bit little-endian word at the block's offset precedes the stored bytes. Its low 15 bits are their length;
    /// its top bit is set if the data is uncompressed. The word itself is not part of the stored bytes.
    Prefixed,
}

/// The decoded length of a block in bytes, as far as the metadata states it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DecodedLen {
    /// The block decodes to exactly this many bytes; any other length is corruption.
    Exact(u32),
    /// The block decodes to at least this many bytes. Its full length is unknown here, and decoding stops at this
    /// length: the extent uses part of a block that several extents share.
    AtLeast(u32),
    /// The block decodes to at most this many bytes; the stream marks its own end.
    AtMost(u32),
}

impl DecodedLen {
    /// The size of a buffer that holds the decoded bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Exact(len) | Self::AtLeast(len) | Self::AtMost(len) => len,
        }
    }
}

/// Padding around the compressed bytes in the stored run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Padding {
    /// No padding: the compressed bytes fill the run.
    None,
    /// Zero bytes precede the compressed bytes; the decoder skips them (EROFS with 0-padding).
    Leading,
    /// Arbitrary bytes may follow the compressed bytes (EROFS without 0-padding): decoding stops at the decoded length.
    Trailing,
}

/// The branch filters (BCJ) that an xz stream may use, as the bits of SquashFS's compressor options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BcjFilters(pub u32);

/// How the stored bytes of a block encode its data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// The stored bytes are the data.
    Stored,
    /// One raw LZ4 block.
    Lz4 {
        /// The padding.
        padding: Padding,
        /// The largest match distance in bytes; at most 65,536.
        window_bytes: u32,
    },
    /// LZMA in the MicroLZMA form of XZ Utils: no header, and the properties replace the first byte.
    MicroLzma {
        /// The padding.
        padding: Padding,
        /// The dictionary size in bytes; at most 8 MiB.
        dictionary_bytes: u32,
    },
    /// A raw DEFLATE stream.
    Deflate {
        /// The padding.
        padding: Padding,
        /// log2 of the window size; at most 15.
        window_log2: u8,
    },
    /// A Zstandard frame.
    Zstd {
        /// The padding.
        padding: Padding,
        /// log2 of the largest accepted window.
        window_log2_max: u8,
    },
    /// A zlib stream (SquashFS "gzip").
    Zlib,
    /// The legacy .lzma ("LZMA alone") format.
    LzmaAlone,
    /// An LZO1X block.
    Lzo,
    /// An .xz stream.
    Xz {
        /// The dictionary size in bytes, which bounds the memory for decoding.
        dictionary_bytes: u32,
    },
}

/// How much work decoding takes, in classes of encodings of similar cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DecodeEffort {
    /// Copying.
    None,
    /// Byte-oriented codecs such as LZ4.
    Small,
    /// Entropy coding in parallel streams: Zstandard.
    Medium,
    /// Entropy coding symbol by symbol: DEFLATE.
    Large,
    /// Range coding bit by bit: LZMA.
    VeryLarge,
}

impl Encoding {
    /// The padding around the compressed bytes.
    pub const fn padding(&self) -> Padding {
        match *self {
            Self::Lz4 { padding, .. }
            | Self::MicroLzma { padding, .. }
            | Self::Deflate { padding, .. }
            | Self::Zstd { padding, .. } => padding,
            Self::Stored | Self::Zlib | Self::LzmaAlone | Self::Lzo | Self::Xz { .. } => Padding::None,
        }
    }

    /// How much work decoding takes.
    pub const fn effort(&self) -> DecodeEffort {
        match self {
            Self::Stored => DecodeEffort::None,
            Self::Lz4 { .. } | Self::Lzo => DecodeEffort::Small,
            Self::Zstd { .. } => DecodeEffort::Medium,
            Self::Deflate { .. } | Self::Zlib => DecodeEffort::Large,
            Self::MicroLzma { .. } | Self::LzmaAlone | Self::Xz { .. } => DecodeEffort::VeryLarge,
        }
    }
}

/// A run of image bytes that decodes as a unit: an EROFS pcluster; a SquashFS data, fragment or metadata block.
///
/// It is the unit of fetching, caching, decoding and measuring. Two blocks with the same device, offset and encoding
/// hold the same data, even if one of them states a shorter decoded length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoredBlock {
    /// The source that contains the block.
    pub device: DeviceId,
    /// The offset of its first byte in that source.
    pub offset: u64,
    /// The length of the stored bytes.
    pub stored_len: StoredLen,
    /// The length of the decoded bytes.
    pub decoded_len: DecodedLen,
    /// The encoding of the stored bytes.
    pub encoding: Encoding,
}
