//! Compresses segments of files into pclusters.

use floe_codec::encode::Encoder;
use floe_erofs::write::{CompressedExtent, ExtentKind};

use crate::{
    content::storage_method::{TailRule, inline_len_max},
    error::Result,
    options::{Coding, Options},
};

/// Data of at most this many pclusters becomes a fragment without trial compression.
const FRAGMENT_PCLUSTERS: usize = 2;

/// The largest decoded length of a pcluster in bytes (PCLUSTER_MAX_DSIZE).
const EXTENT_LEN_MAX: usize = 12 << 20;

/// After a first failure to compress, one part in this many of a pcluster is stored uncompressed.
const PLAIN_PARTS: usize = 8;

/// The end of a compressed segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Tail {
    /// The last extent is stored like the others.
    None,
    /// The stored bytes of the last extent, which follow the inode.
    Inline(Vec<u8>),
    /// The data of the last extent, which goes into the packed inode.
    Fragment(Vec<u8>),
}

/// A compressed segment of a file.
#[derive(Debug)]
pub(crate) struct CompressedSegment {
    /// The extents; their block numbers are relative to the start of `stored`.
    pub(crate) extents: Vec<CompressedExtent>,
    /// The contiguous pclusters.
    pub(crate) stored: Vec<u8>,
    pub(crate) tail: Tail,
    /// How many bytes at the end belong to the next segment, because they cannot be stored separately.
    pub(crate) left_len: usize,
    /// The number of consecutive failures to shrink data.
    failures: u32,
}

/// Compresses segments of files independently.
pub(crate) struct SegmentCompressor {
    encoder: Box<dyn Encoder>,
    block_len: usize,
    pcluster_len: usize,
    /// The largest decoded length of a pcluster in bytes.
    extent_len_max: usize,
    output: Vec<u8>,
}

/// The approximate length of the index of a file of this size, in bytes.
pub(crate) const fn index_len(size: u64, block_size: u64) -> u64 {
    8 + size.div_ceil(block_size) * 3
}

impl SegmentCompressor {
    /// Creates a compressor with this coding.
    pub(crate) fn new(options: &Options, coding: Coding) -> Result<Self> {
        let pcluster_len = usize::try_from(coding.pcluster_bytes).unwrap_or(usize::MAX);
        let extent_len_max = options.layout.extent_bytes_max.and_then(|max| usize::try_from(max).ok());
        Ok(Self {
            encoder: coding.compression.encoder()?,
            block_len: options.block_len(),
            pcluster_len,
            extent_len_max: extent_len_max.map_or(EXTENT_LEN_MAX, |max| max.min(EXTENT_LEN_MAX)),
            output: vec![0; pcluster_len],
        })
    }

    /// The number of bytes to store uncompressed before the next attempt to compress: few at first, to find
    /// compressible data soon, and more after each consecutive failure.
    fn plain_len(&self, failures: u32) -> usize {
        (self.pcluster_len / PLAIN_PARTS)
            .max(self.block_len)
            .saturating_mul(1 << failures.min(16))
            .min(self.pcluster_len)
    }

    /// Whether this form of a file of this length takes less space than the uncompressed form.
    pub(crate) fn pays(&self, segment: &CompressedSegment, len: usize) -> bool {
        let stored_len = match &segment.tail {
            Tail::Inline(bytes) => segment.stored.len() + bytes.len(),
            _ => segment.stored.len(),
        };
        (stored_len as u64) + index_len(len as u64, self.block_len as u64) < len as u64
    }

    /// Compresses a segment: `data`, which begins at `offset` of its file. `rule` says how its end is stored.
    pub(crate) fn compress(&mut self, data: &[u8], rule: TailRule, offset: u64) -> Result<CompressedSegment> {
        self.encoder.restart();
        let mut segment =
            CompressedSegment { extents: Vec::new(), stored: Vec::new(), tail: Tail::None, left_len: 0, failures: 0 };
        let inline_max = inline_len_max(self.block_len);
        let ending = Ending::new(data.len(), rule, offset, self.block_len);
        let mut rest = data;
        while !rest.is_empty() {
            if rule == TailRule::Fragment && rest.len() <= self.pcluster_len * FRAGMENT_PCLUSTERS {
                segment.put_fragment(rest);
                break;
            }
            if matches!(rule, TailRule::Blocks | TailRule::Followed) && rest.len() <= self.block_len {
                segment.put_plain(rest, self.block_len);
                break;
            }
            let input = &rest[..rest.len().min(self.extent_len_max)];
            let mut fit = self.encoder.encode_to_fit(input, &mut self.output)?;
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
                    // Data that does not fit into whole blocks may still be small enough to be inline.
                    let shorter = self.encoder.encode_to_fit(rest, &mut self.output[..whole_blocks_len])?;
                    let left = rest.len() - shorter.consumed;
                    if shorter.produced + left < fit.produced.next_multiple_of(self.block_len) {
                        fit = shorter;
                    } else {
                        fit = self.encoder.encode_to_fit(rest, &mut self.output)?;
                    }
                }
            }
            let is_plain = !self.shrinks(fit.consumed, fit.produced);
            let mut consumed = if is_plain { rest.len().min(self.plain_len(segment.failures)) } else { fit.consumed };
            if ending.is_missed(rest.len(), consumed, is_plain) {
                // The rest would begin in the lcluster in which it has to end, so the extent before it is shortened.
                let shorter = ending.shorter(rest.len()).filter(|_| !is_plain).map(|len| &rest[..len]);
                let encoded = match shorter {
                    Some(shorter) => {
                        self.encoder.encode_whole(shorter, &mut self.output)?.map(|len| (shorter.len(), len))
                    }
                    None => None,
                };
                match encoded.filter(|(consumed, produced)| self.shrinks(*consumed, *produced)) {
                    Some((shorter, produced)) => {
                        fit.produced = produced;
                        consumed = shorter;
                    }
                    None => {
                        let (before, left) = rest.split_at(ending.len_before(rest.len()));
                        segment.put_plain(before, self.block_len);
                        segment.left_len = left.len();
                        break;
                    }
                }
            }
            if is_plain {
                segment.put_plain(&rest[..consumed], self.block_len);
                segment.failures += 1;
            } else {
                segment.failures = 0;
                segment.put_encoded(consumed, &self.output[..fit.produced], self.block_len);
            }
            rest = &rest[consumed..];
        }
        Ok(segment)
    }

    /// Whether the encoded form takes fewer blocks.
    fn shrinks(&self, consumed: usize, produced: usize) -> bool {
        produced > 0 && produced.next_multiple_of(self.block_len) < consumed
    }
}

/// The end of a segment inside an lcluster in which an extent of the next segment begins. An lcluster can contain the
/// beginning of one extent only, so the last extent of this segment must begin in an earlier one.
#[derive(Clone, Copy)]
struct Ending {
    /// The offset in the lcluster at which the segment ends, in bytes; 0 if it ends with the lcluster or the file.
    within_len: usize,
    block_len: usize,
}

impl Ending {
    fn new(len: usize, rule: TailRule, offset: u64, block_len: usize) -> Self {
        let end = offset + len as u64;
        let within_len = usize::try_from(end % block_len as u64).unwrap_or(0);
        Self { within_len: if rule == TailRule::Followed { within_len } else { 0 }, block_len }
    }

    /// Whether part of the rest would begin in the lcluster in which it ends, if the next extent or run of plain blocks
    /// takes `consumed` bytes.
    fn is_missed(&self, rest_len: usize, consumed: usize, is_plain: bool) -> bool {
        let last_block = if is_plain { (consumed - 1) % self.block_len + 1 } else { consumed };
        let begins = if consumed < rest_len { rest_len - consumed } else { last_block };
        begins <= self.within_len
    }

    /// How much of the rest to store so that what remains takes one block and begins in an earlier lcluster; `None` if
    /// that is too short for an extent.
    fn shorter(&self, rest_len: usize) -> Option<usize> {
        rest_len.checked_sub(self.block_len).filter(|len| *len >= self.block_len)
    }

    /// How much of the rest precedes the lcluster in which it ends.
    fn len_before(&self, rest_len: usize) -> usize {
        rest_len - self.within_len
    }
}

impl CompressedSegment {
    fn put_encoded(&mut self, len: usize, encoded: &[u8], block_len: usize) {
        let stored_len = encoded.len().next_multiple_of(block_len);
        self.put_extent(len, stored_len, ExtentKind::Encoded { partial: false }, block_len);
        // The format requires leading zeros.
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
    fn tails_follow_the_rule() {
        let noise: Vec<u8> = (0..40_000u64)
            .map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56 ^ n.wrapping_mul(n) >> 7) as u8)
            .collect();
        let text: Vec<u8> = (0..5000).flat_map(|n| format!("line {n}, {}\n", n * n % 977).into_bytes()).collect();
        let mixed = [&text[..], &noise[..], &text[..9000]].concat();
        let mut options = Options::new("unused");
        options.compression = Some(Compression::Lz4 { window_bytes: floe_codec::encode::LZ4_WINDOW_MAX });
        for pcluster_bytes in [4096, 65536] {
            options.pcluster_bytes = pcluster_bytes;
            let coding = options.codings()[0];
            let mut compressor = SegmentCompressor::new(&options, coding).expect("the options are valid");
            for (data, rule) in [&text, &noise, &mixed, &noise[..100].to_vec(), &text[..3000].to_vec()]
                .into_iter()
                .flat_map(|data| [TailRule::Blocks, TailRule::Inline, TailRule::Fragment].map(|rule| (data, rule)))
            {
                let segment = compressor.compress(data, rule, 0).expect("it compresses");
                let len: usize = segment.extents.iter().map(|extent| extent.len as usize).sum();
                assert_eq!(len, data.len());
                let mut offset = 0;
                for extent in &segment.extents[..segment.extents.len() - 1] {
                    assert!(offset % 4096 + extent.len as usize >= 4096, "{extent:?} ends in its first lcluster");
                    offset += extent.len as usize;
                }
                match (rule, &segment.tail) {
                    (TailRule::Blocks, Tail::None) | (TailRule::Fragment, Tail::Fragment(_)) => {}
                    (TailRule::Inline, Tail::Inline(bytes)) => assert!(bytes.len() <= inline_len_max(4096)),
                    (TailRule::Inline, Tail::None) => {}
                    (rule, tail) => panic!("{rule:?} gives {tail:?}"),
                }
            }
        }
    }
}
