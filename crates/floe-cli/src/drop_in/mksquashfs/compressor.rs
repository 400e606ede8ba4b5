//! The compressor and its own options, `-X…`.

use floe_mkfs::BlockCompression;

use super::size::size;

/// The compressors of the original.
const NAMES: [&str; 6] = ["gzip", "lzo", "lz4", "xz", "zstd", "lzma"];
/// The strategies of gzip and the filters of xz, by their bits in an image.
const STRATEGIES: [&str; 5] = ["default", "filtered", "huffman_only", "run_length_encoded", "fixed"];
const FILTERS: [&str; 8] = ["x86", "powerpc", "ia64", "arm", "armthumb", "sparc", "arm64", "riscv"];
/// The only algorithm and level of lzo.
const LZO: (&str, i32) = ("lzo1x_999", 8);
/// The smallest dictionary of xz, in bytes.
const DICTIONARY_MIN: u32 = 8 << 10;

/// The compressor and its options, as given on the command line.
#[derive(Default)]
pub(in crate::drop_in) struct CompressorOptions {
    /// `None` is gzip.
    name: Option<&'static str>,
    pub(in crate::drop_in) level: Option<i32>,
    pub(in crate::drop_in) window_log2: Option<u8>,
    pub(in crate::drop_in) strategies: Option<String>,
    pub(in crate::drop_in) filters: Option<String>,
    pub(in crate::drop_in) dictionary: Option<String>,
    pub(in crate::drop_in) algorithm: Option<String>,
    pub(in crate::drop_in) is_high: bool,
}

impl CompressorOptions {
    /// Chooses a compressor.
    ///
    /// # Errors
    /// A message: there is no such compressor.
    pub(in crate::drop_in) fn choose(&mut self, text: &str) -> Result<(), String> {
        let known = NAMES.into_iter().find(|name| *name == text);
        let known = known.ok_or_else(|| format!("-comp {text} is unknown: use {}", NAMES.join(", ")))?;
        self.name = Some(known);
        Ok(())
    }

    /// The name of the compressor.
    pub(in crate::drop_in) fn name(&self) -> &'static str {
        self.name.unwrap_or("gzip")
    }

    /// The compression of blocks of this size.
    ///
    /// # Errors
    /// A message: an option is wrong, or belongs to another compressor.
    pub(in crate::drop_in) fn compression(&self, block_bytes: u32) -> Result<BlockCompression, String> {
        let name = self.name();
        let given = [
            ("-Xcompression-level", self.level.is_some(), &["gzip", "zstd", "lzo"][..]),
            ("-Xwindow-size", self.window_log2.is_some(), &["gzip"]),
            ("-Xstrategy", self.strategies.is_some(), &["gzip"]),
            ("-Xbcj", self.filters.is_some(), &["xz"]),
            ("-Xdict-size", self.dictionary.is_some(), &["xz"]),
            ("-Xalgorithm", self.algorithm.is_some(), &["lzo"]),
            ("-Xhc", self.is_high, &["lz4"]),
        ];
        if let Some((option, ..)) = given.iter().find(|(_, is_given, names)| *is_given && !names.contains(&name)) {
            return Err(format!("{option} is not an option of {name}"));
        }
        let compression = match name {
            "gzip" => BlockCompression::Gzip {
                level: u8::try_from(self.level.unwrap_or(9)).unwrap_or(u8::MAX),
                window_log2: self.window_log2.unwrap_or(15),
                strategies: u16::try_from(bits("-Xstrategy", self.strategies.as_deref(), &STRATEGIES)?).unwrap_or(0),
            },
            "lzo" => {
                let is_other = self.algorithm.as_deref().is_some_and(|name| name != LZO.0);
                if is_other || self.level.is_some_and(|level| level != LZO.1) {
                    return Err(format!("lzo has only {} of level {} in floe", LZO.0, LZO.1));
                }
                BlockCompression::Lzo
            }
            "lz4" => BlockCompression::Lz4 { is_high: self.is_high },
            "xz" => {
                let filters = bits("-Xbcj", self.filters.as_deref(), &FILTERS)?;
                let dictionary_bytes = match &self.dictionary {
                    None => block_bytes.max(DICTIONARY_MIN),
                    Some(text) => {
                        dictionary(text, block_bytes).ok_or_else(|| format!("-Xdict-size {text} is invalid"))?
                    }
                };
                BlockCompression::Xz { dictionary_bytes, filters }
            }
            "zstd" => BlockCompression::Zstd { level: self.level.unwrap_or(15) },
            _ => BlockCompression::Lzma,
        };
        Ok(compression)
    }
}

/// The bits of names in a list with commas.
fn bits(option: &str, list: Option<&str>, names: &[&str]) -> Result<u32, String> {
    list.unwrap_or_default().split(',').filter(|name| !name.is_empty()).try_fold(0, |bits, name| {
        let bit = names.iter().position(|known| *known == name);
        bit.map(|bit| bits | 1 << bit).ok_or_else(|| format!("{option} {name} is unknown: use {}", names.join(", ")))
    })
}

/// A dictionary size: bytes, or a percentage of the block size.
fn dictionary(text: &str, block_bytes: u32) -> Option<u32> {
    match text.strip_suffix('%') {
        Some(percentage) => {
            let percentage: f64 = percentage.parse().ok().filter(|share| (0.0..=100.0).contains(share))?;
            Some((f64::from(block_bytes) * percentage / 100.0) as u32)
        }
        None => u32::try_from(size(text)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_their_compressors() {
        type Change = fn(&mut CompressorOptions);
        let rows: [(&str, Change, Result<BlockCompression, &str>); 9] = [
            ("gzip", |_| {}, Ok(BlockCompression::Gzip { level: 9, window_log2: 15, strategies: 0 })),
            (
                "gzip",
                |options| {
                    (options.level, options.window_log2) = (Some(3), Some(9));
                    options.strategies = Some("default,fixed".into());
                },
                Ok(BlockCompression::Gzip { level: 3, window_log2: 9, strategies: 0b10001 }),
            ),
            ("gzip", |options| options.is_high = true, Err("-Xhc is not an option of gzip")),
            ("lz4", |options| options.is_high = true, Ok(BlockCompression::Lz4 { is_high: true })),
            (
                "xz",
                |options| {
                    options.dictionary = Some("75%".into());
                    options.filters = Some("x86,arm".into());
                },
                Ok(BlockCompression::Xz { dictionary_bytes: 98_304, filters: 0b1001 }),
            ),
            ("xz", |options| options.filters = Some("m68k".into()), Err("-Xbcj m68k is unknown: use x86,")),
            ("zstd", |options| options.level = Some(-3), Ok(BlockCompression::Zstd { level: -3 })),
            ("lzo", |options| options.algorithm = Some("lzo1x_999".into()), Ok(BlockCompression::Lzo)),
            ("lzo", |options| options.algorithm = Some("lzo1x_1".into()), Err("lzo has only lzo1x_999")),
        ];
        for (name, change, expected) in rows {
            let mut options = CompressorOptions::default();
            options.choose(name).expect("it is known");
            change(&mut options);
            match (options.compression(128 << 10), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
        assert!(CompressorOptions::default().choose("lzip").is_err());
    }
}
