//! Compressor options (section "Compressor options").

use super::{Field, Raw, raw_structs};

raw_structs! {
    /// The options of the gzip compressor.
    pub struct GzipOptions: 8 {
        /// 1 to 9.
        pub compression_level: u32,
        /// log2 of the window, 8 to 15.
        pub window_size: u16,
        /// The strategies tried during compression, a bit for each.
        pub strategies: u16,
    }

    /// The options of the lzo compressor.
    pub struct LzoOptions: 8 {
        /// 0 to 4: lzo1x_1, lzo1x_1_11, lzo1x_1_12, lzo1x_1_15, lzo1x_999.
        pub algorithm: u32,
        /// 1 to 9, for lzo1x_999.
        pub compression_level: u32,
    }

    /// The options of the xz compressor.
    pub struct XzOptions: 8 {
        /// The dictionary size in bytes.
        pub dictionary_size: u32,
        /// The branch filters tried during compression, a bit for each.
        pub flags: u32,
    }

    /// The options of the lz4 compressor.
    pub struct Lz4Options: 8 {
        /// 1: raw blocks.
        pub version: u32,
        /// Bit 0: high compression; bit 1: a level or an acceleration follows.
        pub flags: u32,
    }

    /// The options of the zstd compressor.
    pub struct ZstdOptions: 4 {
        /// The level; negative for the fast levels.
        pub compression_level: i32,
    }
}
