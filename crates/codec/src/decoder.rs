//! The decoder of all encodings.

mod deflate;
mod lz4;
mod lz4_ring;
mod lz4_sys;
mod lz4_window;
mod lzma;
mod lzma_memory_sys;
mod lzma_sys;
mod lzo;
mod request;
mod stream;
mod zstd;

use std::fmt;

use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding, Padding};

use self::{
    deflate::{Deflate, Wrapping},
    lzma_sys::LzmaStream,
    request::{EMPTY, Request},
    zstd::Zstd,
};
use request::{HOLDS_MORE, Scratch};

/// Memory of a decoder apart from dictionaries and windows, in bytes.
const STATE_BYTES: usize = 128 * 1024;

/// Memory for decoding part of an LZ4 block: its window.
const LZ4_BYTES_MAX: usize = 64 * 1024;

/// The state of libzstd without its window, including its buffer for split blocks.
const ZSTD_BYTES: usize = 640 * 1024;

/// Decodes every [`Encoding`] and keeps its working state from block to block.
#[derive(Default)]
pub struct Decoder {
    scratch: Scratch,
    deflate: Deflate,
    micro_lzma: Option<LzmaStream>,
    xz: Option<LzmaStream>,
    lzma_alone: Option<LzmaStream>,
    zstd: Option<Zstd>,
    is_strict: bool,
}

impl Decoder {
    /// Creates a decoder without state; each codec's state is created when the first block needs it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a decoder for checks: it accepts a block only if each part of the block can be decoded too. The windowed
    /// decoder of LZ4 blocks, which decodes parts of them, refuses blocks that liblz4 accepts.
    pub fn strict() -> Self {
        Self { is_strict: true, ..Self::default() }
    }

    /// The memory that the decoder holds, in bytes: the state of each codec used so far, and scratch memory.
    pub fn held_bytes(&self) -> usize {
        let streams = [&self.micro_lzma, &self.xz, &self.lzma_alone].map(held_by);
        streams.iter().sum::<usize>() + self.scratch.held_bytes() + self.deflate.held_bytes() + held_by_zstd(&self.zstd)
    }

    /// An upper bound of [`Decoder::held_bytes`] after this decoder next decodes a block of this encoding.
    pub fn held_bytes_after(&self, encoding: &Encoding, decoded_len: DecodedLen) -> usize {
        let of_codec = match encoding {
            Encoding::Stored | Encoding::Lz4 { .. } | Encoding::Lzo => self.scratch.held_bytes(),
            Encoding::MicroLzma { .. } => held_by(&self.micro_lzma),
            Encoding::Xz { .. } => held_by(&self.xz),
            Encoding::LzmaAlone => held_by(&self.lzma_alone),
            Encoding::Deflate { .. } | Encoding::Zlib => self.deflate.held_bytes(),
            Encoding::Zstd { .. } => held_by_zstd(&self.zstd),
        };
        self.held_bytes() - of_codec + of_codec.max(Self::held_bytes_max(encoding, decoded_len))
    }

    /// An upper bound of [`Decoder::held_bytes`] after a new decoder decodes a block of this encoding.
    pub fn held_bytes_max(encoding: &Encoding, decoded_len: DecodedLen) -> usize {
        let decoded_len = usize::try_from(decoded_len.bytes()).unwrap_or(usize::MAX);
        let bytes = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
        match *encoding {
            Encoding::Stored => 0,
            Encoding::Lz4 { .. } => LZ4_BYTES_MAX,
            Encoding::Deflate { .. } | Encoding::Zlib => 2 * deflate::STATE_BYTES_MAX + STATE_BYTES,
            Encoding::Zstd { window_log2_max, .. } => {
                let window = 1_usize.checked_shl(window_log2_max.into()).unwrap_or(usize::MAX);
                window.min(decoded_len).saturating_add(ZSTD_BYTES)
            }
            Encoding::Lzo => decoded_len.min(1 << 20).saturating_add(STATE_BYTES),
            Encoding::MicroLzma { dictionary_bytes, .. } => {
                bytes(lzma::dictionary_of(dictionary_bytes, decoded_len)).saturating_add(STATE_BYTES)
            }
            Encoding::Xz { dictionary_bytes } => bytes(dictionary_bytes).saturating_add(STATE_BYTES),
            Encoding::LzmaAlone => bytes(lzma::dictionary_bytes_max(decoded_len)) + STATE_BYTES,
        }
    }

    /// Scratch memory of the last decode in bytes, apart from the output and the codecs' own state.
    pub fn temporary_bytes_last(&self) -> usize {
        self.scratch.used_last()
    }

    /// The largest scratch memory of any decode so far, in bytes.
    pub fn temporary_bytes_max(&self) -> usize {
        self.scratch.used_max()
    }
}

impl Decompressor for Decoder {
    fn decode(
        &mut self,
        encoding: &Encoding,
        decoded_len: DecodedLen,
        stored: &[u8],
        skip: usize,
        output: &mut [u8],
    ) -> Result<usize, DecodeError> {
        let scratch = &mut self.scratch;
        scratch.begin();
        let stored = unpadded(encoding, stored)?;
        let request = &mut Request::new(decoded_len, stored, skip, output)?;
        if request.output.is_empty() {
            return Ok(0);
        }
        match *encoding {
            Encoding::Stored => decode(request),
            Encoding::Lz4 { padding, window_bytes } => {
                let len = lz4::decode(padding, window_bytes, request, scratch)?;
                if self.is_strict {
                    lz4_window::refuse_zero_distances(stored, skip.saturating_add(len))?;
                }
                Ok(len)
            }
            Encoding::MicroLzma { padding, dictionary_bytes } => {
                let lzma = self.micro_lzma.get_or_insert_with(LzmaStream::new);
                lzma::decode_micro(lzma, padding, dictionary_bytes, request, scratch)
            }
            Encoding::Deflate { window_log2, .. } => self.deflate.decode_raw(window_log2, request, scratch),
            Encoding::Zlib => self.deflate.decode(Wrapping::Zlib, request, scratch),
            Encoding::Zstd { window_log2_max, .. } => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(Zstd::new()?),
                };
                zstd.decode(window_log2_max, request, scratch)
            }
            Encoding::LzmaAlone => {
                lzma::decode_alone(self.lzma_alone.get_or_insert_with(LzmaStream::new), request, scratch)
            }
            Encoding::Lzo => lzo::decode(request, scratch),
            Encoding::Xz { dictionary_bytes } => {
                lzma::decode_xz(self.xz.get_or_insert_with(LzmaStream::new), dictionary_bytes, request, scratch)
            }
        }
    }

    fn decode_in_place(
        &mut self,
        encoding: &Encoding,
        decoded_len: usize,
        stored_len: usize,
        buffer: &mut [u8],
    ) -> Result<bool, DecodeError> {
        let (Some(margin), Some(start)) =
            (self.in_place_margin(encoding, stored_len), buffer.len().checked_sub(stored_len))
        else {
            return Ok(false);
        };
        if decoded_len.saturating_add(margin) > buffer.len() {
            return Ok(false);
        }
        self.scratch.begin();
        let stored = unpadded(encoding, &buffer[start..])?;
        if self.is_strict {
            lz4_window::refuse_zero_distances(stored, decoded_len)?;
        }
        let start = buffer.len() - stored.len();
        lz4::decode_in_place(start, decoded_len, buffer).map(|()| true)
    }

    fn in_place_margin(&self, encoding: &Encoding, stored_len: usize) -> Option<usize> {
        match encoding {
            // The end of a block with trailing padding is unknown before it is decoded.
            Encoding::Lz4 { padding: Padding::None | Padding::Leading, .. } => Some(lz4::in_place_margin(stored_len)),
            _ => None,
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Decoder").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}

fn held_by(stream: &Option<LzmaStream>) -> usize {
    stream.as_ref().map_or(0, LzmaStream::held_bytes)
}

fn held_by_zstd(zstd: &Option<Zstd>) -> usize {
    zstd.as_ref().map_or(0, Zstd::held_bytes)
}

/// The stored bytes without the zeros of [`Padding::Leading`].
fn unpadded<'a>(encoding: &Encoding, stored: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    if matches!(encoding, Encoding::Stored) {
        return Ok(stored);
    }
    let start = match encoding.padding() {
        Padding::Leading => stored.iter().position(|byte| *byte != 0).unwrap_or(stored.len()),
        Padding::None | Padding::Trailing => 0,
    };
    stored.get(start..).filter(|bytes| !bytes.is_empty()).ok_or(EMPTY)
}

/// Copies the requested bytes.
pub(crate) fn decode(request: &mut Request<'_>) -> Result<usize, DecodeError> {
    if request.ends_with_block() && request.stored.len() > request.len_max() {
        return Err(HOLDS_MORE);
    }
    let rest = request.stored.get(request.skip..).unwrap_or_default();
    let len = rest.len().min(request.output.len());
    request.output[..len].copy_from_slice(&rest[..len]);
    request.answer(len)
}
