//! The compressor of `tar2sqfs` and its options.

use floe_mkfs::BlockCompression;

use crate::drop_in::mksquashfs::compressor::CompressorOptions;

/// The compressor without an option.
pub(super) const DEFAULT: &str = "xz";

/// The compression by the compressor of this name, with the options in a list with commas.
///
/// # Errors
/// A message: there is no such compressor, or no such option of it.
pub(super) fn compression(name: &str, extra: &str, block_bytes: u32) -> Result<BlockCompression, String> {
    let mut options = CompressorOptions::default();
    options.choose(name).map_err(|_| format!("Unsupported compressor '{name}'"))?;
    let (mut strategies, mut filters) = (Vec::new(), Vec::new());
    for option in extra.split(',').filter(|option| !option.is_empty()) {
        let unknown = || format!("Unknown compressor option '{option}'.");
        let (key, value) = option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
        match (name, key, value) {
            ("xz" | "lzma", "level" | "lc" | "lp" | "pb", Some(_)) | ("xz" | "lzma", "extreme", None) => {
                return Err(format!("{option} is not offered by floe: {name} has one setting for all images"));
            }
            ("gzip" | "zstd" | "lzo", "level", Some(level)) => {
                options.level = Some(level.parse().map_err(|_| unknown())?);
            }
            ("gzip", "window", Some(log2)) => options.window_log2 = Some(log2.parse().map_err(|_| unknown())?),
            ("gzip", "default" | "filtered" | "fixed", None) => strategies.push(key),
            ("gzip", "huffman", None) => strategies.push("huffman_only"),
            ("gzip", "rle", None) => strategies.push("run_length_encoded"),
            ("xz", "dictsize", Some(size)) => options.dictionary = Some(size.to_owned()),
            ("xz", "x86" | "powerpc" | "ia64" | "arm" | "armthumb" | "sparc", None) => filters.push(key),
            ("lzo", "algorithm", Some(algorithm)) => options.algorithm = Some(algorithm.to_owned()),
            ("lz4", "hc", None) => options.is_high = true,
            _ => return Err(unknown()),
        }
    }
    options.strategies = Some(strategies.join(",")).filter(|list| !list.is_empty());
    options.filters = Some(filters.join(",")).filter(|list| !list.is_empty());
    options.compression(block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_their_compressors() {
        for (name, extra, expected) in [
            ("gzip", "", Ok(BlockCompression::Gzip { level: 9, window_log2: 15, strategies: 0 })),
            (
                "gzip",
                "level=3,window=9,huffman,fixed",
                Ok(BlockCompression::Gzip { level: 3, window_log2: 9, strategies: 0b10100 }),
            ),
            (DEFAULT, "dictsize=50%,x86", Ok(BlockCompression::Xz { dictionary_bytes: 65_536, filters: 1 })),
            ("zstd", "level=3", Ok(BlockCompression::Zstd { level: 3 })),
            ("zstd", "", Ok(BlockCompression::Zstd { level: 15 })),
            ("lz4", "hc", Ok(BlockCompression::Lz4 { is_high: true })),
            ("lz4", "level=3", Err("Unknown compressor option 'level=3'.")),
            ("xz", "extreme", Err("extreme is not offered by floe")),
            ("bzip2", "", Err("Unsupported compressor 'bzip2'")),
        ] {
            match (compression(name, extra, 128 << 10), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }
}
