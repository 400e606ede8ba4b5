//! Compressing a part of a file into pclusters.

use floe_codec::encode::Encoder;
use floe_erofs::write::{CompressedExtent, ExtentKind};

use crate::{error::Result, options::Options};

/// What is inline ends within one block, wherever the inode ends; so much is left for that, in bytes.
const INLINE_MARGIN: usize = 64;
/// What is at most this many pclusters long is a fragment without being compressed to see whether it would fit one.
const FRAGMENT_PCLUSTERS: usize = 2;

/// After a first failure to compress one part in this many of a pcluster is stored as it is.
const PLAIN_PARTS: usize = 8;

/// What becomes of the end of a file that does not fill a pcluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TailRule {
    /// It takes blocks of its own. The rule for parts that are not a file's last, too.
    Blocks,
    /// It goes behind the inode if it is small enough.
    Inline,
    /// It goes into the packed inode.
    Fragment,
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tail {
    /// Nothing special.
    None,
    /// The last extent's stored bytes are these, behind the inode.
    Inline(Vec<u8>),
    /// The last extent's data is these bytes, in the packed inode.
    Fragment(Vec<u8>),
}

/// A part of a file, compressed.
#[derive(Debug)]
pub(crate) struct CompressedSegment {
    /// Its extents; their blocks are counted from the first block of `stored`.
    pub(crate) extents: Vec<CompressedExtent>,
    /// The pclusters one behind the other.
    pub(crate) stored: Vec<u8>,
    pub(crate) tail: Tail,
}

/// Compresses parts of files, each by itself.
pub(crate) struct SegmentCompressor {
    encoder: Box<dyn Encoder>,
    block_len: usize,
    pcluster_len: usize,
    output: Vec<u8>,
}

/// The most bytes that stand inline behind an inode.
pub(crate) const fn inline_len_max(block_len: usize) -> usize {
    block_len - INLINE_MARGIN
}

/// About what the index of a file of this size takes, in bytes.
pub(crate) const fn index_len(size: u64, block_size: u64) -> u64 {
    8 + size.div_ceil(block_size) * 3
}

impl SegmentCompressor {
    /// A compressor for these options, if they say that files are compressed.
    pub(crate) fn new(options: &Options) -> Result<Option<Self>> {
        let Some(compression) = options.compression else { return Ok(None) };
        let pcluster_len = usize::try_from(options.pcluster_bytes).unwrap_or(usize::MAX);
        Ok(Some(Self {
            encoder: compression.encoder()?,
            block_len: options.block_len(),
            pcluster_len,
            output: vec![0; pcluster_len],
        }))
    }

    /// How much is stored as it is before compression is tried again: little at first, so that what does compress is
    /// found soon, more with each failure in a row.
    fn plain_len(&self, failures: u32) -> usize {
        (self.pcluster_len / PLAIN_PARTS)
            .max(self.block_len)
            .saturating_mul(1 << failures.min(16))
            .min(self.pcluster_len)
    }

    /// Whether a file of this length takes less when it is stored as this.
    pub(crate) fn pays(&self, segment: &CompressedSegment, len: usize) -> bool {
        let stored_len = match &segment.tail {
            Tail::Inline(bytes) => segment.stored.len() + bytes.len(),
            _ => segment.stored.len(),
        };
        (stored_len as u64) + index_len(len as u64, self.block_len as u64) < len as u64
    }

    /// Compresses `data`, which is the last part of its file or ends with an lcluster.
    pub(crate) fn compress(&mut self, data: &[u8], rule: TailRule) -> Result<CompressedSegment> {
        self.encoder.restart();
        let mut segment = CompressedSegment { extents: Vec::new(), stored: Vec::new(), tail: Tail::None };
        let inline_max = inline_len_max(self.block_len);
        let mut rest = data;
        let mut failures = 0u32;
        while !rest.is_empty() {
            if rule == TailRule::Fragment && rest.len() <= self.pcluster_len * FRAGMENT_PCLUSTERS {
                segment.put_fragment(rest);
                break;
            }
            if rule == TailRule::Blocks && rest.len() <= self.block_len {
                segment.put_plain(rest, self.block_len);
                break;
            }
            let mut fit = self.encoder.encode_to_fit(rest, &mut self.output)?;
            if fit.consumed == rest.len() {
                if rule == TailRule::Fragment && fit.produced < self.pcluster_len {
                    segment.put_fragment(rest);
                    break;
                }
                let is_smaller = fit.produced < rest.len();
                if rule == TailRule::Inline && rest.len().min(fit.produced) <= inline_max {
                    let (kind, bytes) = if is_smaller {
                        (ExtentKind::Encoded { partial: false }, &self.output[..fit.produced])
                    } else {
                        (ExtentKind::Plain, rest)
                    };
                    segment.put_inline(rest.len(), kind, bytes, self.block_len);
                    break;
                }
                let whole_blocks_len = fit.produced / self.block_len * self.block_len;
                if rule == TailRule::Inline && whole_blocks_len > 0 && whole_blocks_len < fit.produced {
                    // Perhaps what is too much for whole blocks is small enough to be inline.
                    let shorter = self.encoder.encode_to_fit(rest, &mut self.output[..whole_blocks_len])?;
                    let left = rest.len() - shorter.consumed;
                    if shorter.produced + left < fit.produced.next_multiple_of(self.block_len) {
                        fit = shorter;
                    } else {
                        fit = self.encoder.encode_to_fit(rest, &mut self.output)?;
                    }
                }
            }
            let consumed = if fit.produced == 0 || fit.produced.next_multiple_of(self.block_len) >= fit.consumed {
                let len = rest.len().min(self.plain_len(failures));
                segment.put_plain(&rest[..len], self.block_len);
                failures += 1;
                len
            } else {
                failures = 0;
                segment.put_encoded(fit.consumed, &self.output[..fit.produced], self.block_len);
                fit.consumed
            };
            rest = &rest[consumed..];
        }
        Ok(segment)
    }
}

impl CompressedSegment {
    fn put_encoded(&mut self, len: usize, encoded: &[u8], block_len: usize) {
        let stored_len = encoded.len().next_multiple_of(block_len);
        self.put_extent(len, stored_len, ExtentKind::Encoded { partial: false }, block_len);
        // The format wants the zeros in front.
        self.stored.resize(self.stored.len() + stored_len - encoded.len(), 0);
        self.stored.extend_from_slice(encoded);
    }

    fn put_plain(&mut self, data: &[u8], block_len: usize) {
        for block in data.chunks(block_len) {
            self.put_extent(block.len(), block_len, ExtentKind::Plain, block_len);
            self.stored.extend_from_slice(block);
            self.stored.resize(self.stored.len() + block_len - block.len(), 0);
        }
    }

    fn put_inline(&mut self, len: usize, kind: ExtentKind, bytes: &[u8], block_len: usize) {
        self.put_extent(len, block_len, kind, block_len);
        self.tail = Tail::Inline(bytes.to_vec());
    }

    fn put_fragment(&mut self, data: &[u8]) {
        self.put_extent(data.len(), 0, ExtentKind::Fragment, 1);
        self.tail = Tail::Fragment(data.to_vec());
    }

    fn put_extent(&mut self, len: usize, stored_len: usize, kind: ExtentKind, block_len: usize) {
        let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let block = (self.stored.len() / block_len) as u64;
        self.extents.push(CompressedExtent { len: number(len), stored_len: number(stored_len), block, kind });
    }
}

#[cfg(test)]
mod tests {
    use floe_codec::encode::Compression;

    use super::*;

    #[test]
    fn tails_go_where_the_rule_says() {
        let noise: Vec<u8> = (0..40_000u64)
            .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56 ^ n.wrapping_mul(n) >> 7) as u8)
            .collect();
        let text: Vec<u8> = (0..5000).flat_map(|n| format!("line {n}, {}\n", n * n % 977).into_bytes()).collect();
        let mixed = [&text[..], &noise[..], &text[..9000]].concat();
        let mut options = Options::new("unused");
        options.compression = Some(Compression::Lz4 { window_bytes: floe_codec::encode::LZ4_WINDOW_MAX });
        for pcluster_bytes in [4096, 65536] {
            options.pcluster_bytes = pcluster_bytes;
            let mut compressor =
                SegmentCompressor::new(&options).expect("the options are valid").expect("it compresses");
            for (data, rule) in [&text, &noise, &mixed, &noise[..100].to_vec(), &text[..3000].to_vec()]
                .into_iter()
                .flat_map(|data| [TailRule::Blocks, TailRule::Inline, TailRule::Fragment].map(|rule| (data, rule)))
            {
                let segment = compressor.compress(data, rule).expect("it compresses");
                let len: usize = segment.extents.iter().map(|extent| extent.len as usize).sum();
                assert_eq!(len, data.len());
                let mut offset = 0;
                for extent in &segment.extents[..segment.extents.len() - 1] {
                    assert!(offset % 4096 + extent.len as usize >= 4096, "{extent:?} ends in its first lcluster");
                    offset += extent.len as usize;
                }
                match (rule, &segment.tail) {
                    (TailRule::Blocks, Tail::None) | (TailRule::Fragment, Tail::Fragment(_)) => {}
                    (TailRule::Inline, Tail::Inline(bytes)) => assert!(bytes.len() <= 4096 - INLINE_MARGIN),
                    (TailRule::Inline, Tail::None) => {}
                    (rule, tail) => panic!("{rule:?} gives {tail:?}"),
                }
            }
        }
    }
}
