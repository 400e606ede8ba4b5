//! Writes finished pieces, which arrive in order, to the image.

use std::collections::HashMap;

use floe_erofs::write::{Chunks, CompressedExtent, ExtentKind};
use xxhash_rust::xxh64::xxh64;

use super::{
    data_location::{CompressedFile, DataLocation},
    extent_pool::ExtentPool,
    inline_data::InlineStore,
    known_data::{Gap, KnownChunks, KnownPclusters, Verdict, shared_extents},
    packed::{FinalOffsets, Packed},
};
use crate::{
    compress::{
        Compressors,
        piece::{HashedChunk, PieceData, PieceOutput, segment_end},
        segment::{CompressedSegment, Tail, index_len},
    },
    content::{
        FileToStore,
        file_split::Repeat,
        storage_method::{TailRule, inline_len_max},
    },
    error::Result,
    files::image_file::ImageFile,
    memory::zeros,
    options::Options,
    tree::content::Content,
};

/// The copy size in bytes.
const COPY_LEN: usize = 1 << 20;
/// The end of a file refers to an existing fragment only if the shared end is at least this many times as long as the
/// stored data before it.
const KNOWN_END_FACTOR: usize = 3;

/// Writes pieces to the image and records where each file is.
pub(crate) struct Assembler<'a> {
    pub(crate) image: ImageFile,
    pub(crate) blob: Option<ImageFile>,
    /// The extents of complete files.
    pub(crate) extents: ExtentPool,
    /// The data for behind the inodes.
    pub(crate) inlines: InlineStore,
    options: &'a Options,
    packed: Option<Packed>,
    /// Compressors for data that can only be compressed at this stage, because it depends on what the image contains.
    compressors: Compressors<'a>,
    /// The algorithm of each coding.
    algorithms: Vec<u8>,
    known_chunks: KnownChunks,
    /// For a file and an offset, the index of the extent that begins at that cut.
    cuts: HashMap<(usize, u64), usize>,
    /// Bytes found as duplicates here, apart from those that other structures count.
    duplicate_bytes: u64,
    /// Present if equal data is stored once.
    known_pclusters: Option<KnownPclusters>,
    current: Current,
}

/// The file whose pieces are arriving.
#[derive(Default)]
struct Current {
    start: u64,
    size: u64,
    place: usize,
    coding: Option<usize>,
    /// The similarity group.
    group: u32,
    /// A `COMPRESSION_` number.
    algorithm: u8,
    /// Whether repeats refer to it.
    is_source: bool,
    /// The number of bytes before the next piece that are not stored yet.
    left_len: u64,
    extents: Vec<CompressedExtent>,
    /// `None` unless the file is stored in chunks.
    chunks: Option<Chunks>,
    inline: Vec<u8>,
    fragment_offset: Option<u64>,
}

impl<'a> Assembler<'a> {
    pub(crate) fn new(image: ImageFile, blob: Option<ImageFile>, options: &'a Options, packed: Option<Packed>) -> Self {
        Self {
            image,
            blob,
            extents: ExtentPool::default(),
            inlines: InlineStore::new(options.output.clone()),
            options,
            packed,
            compressors: Compressors::new(options),
            algorithms: options.codings().into_iter().map(|coding| options.algorithm(coding)).collect(),
            known_chunks: KnownChunks::default(),
            cuts: HashMap::new(),
            duplicate_bytes: 0,
            known_pclusters: options.shares_files().then(KnownPclusters::default),
            current: Current::default(),
        }
    }

    /// How many bytes were found as duplicates.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.packed.as_ref().map_or(0, Packed::duplicate_bytes)
            + self.known_pclusters.as_ref().map_or(0, KnownPclusters::duplicate_bytes)
            + self.known_chunks.duplicate_bytes()
            + self.duplicate_bytes
    }

    /// Finishes the packed inode; returns its content and the final offsets of its fragments.
    pub(crate) fn take_packed(&mut self) -> Result<Option<(Content, FinalOffsets)>> {
        let Some(packed) = self.packed.take() else { return Ok(None) };
        self.duplicate_bytes += packed.duplicate_bytes();
        if packed.len() > 0 { packed.into_content().map(Some) } else { Ok(None) }
    }

    /// Begins an inode that does not belong to the tree, so that its place is not that of a file.
    pub(crate) fn begin_special(&mut self) {
        self.cuts.clear();
    }

    /// Adds a piece of a file; after the last one returns where the file is. `files` contains the files before.
    pub(crate) fn add(&mut self, piece: PieceOutput<'_>, files: &[DataLocation]) -> Result<Option<DataLocation>> {
        let FileToStore { place, content, coding, group, .. } = piece.file;
        let size = content.size();
        if piece.offset == 0 {
            self.begin_data_unit()?;
            let start = self.image.len();
            let algorithm = coding.and_then(|coding| self.algorithms.get(coding)).copied().unwrap_or(0);
            self.current = Current { start, size, place, coding, group, algorithm, ..Current::default() };
            self.known_pclusters.iter_mut().for_each(|blocks| blocks.begin_file(algorithm));
        }
        let end = piece.offset + piece.len as u64;
        let is_last = end == size;
        let is_whole = is_last && piece.offset == 0;
        if piece.is_cut && self.current.left_len == 0 {
            self.cuts.insert((place, piece.offset), self.current.extents.len());
            self.current.is_source = true;
        }
        match piece.data {
            PieceData::Flat(bytes) => self.add_flat(&bytes, is_last)?,
            PieceData::Compressed(_, rule, _) if self.current.left_len > 0 => {
                let start = piece.offset - self.current.left_len;
                self.compress_late(content, start, end, rule)?;
            }
            PieceData::Compressed(segment, _, fragment_hash) => self.add_compressed(segment, fragment_hash)?,
            PieceData::Repeat(Some((repeat, rule))) => self.add_repeat(&repeat, rule, content, files)?,
            PieceData::Repeat(None) => {}
            PieceData::Packed(bytes) if is_whole => self.add_fragment(&bytes, piece.hash)?,
            PieceData::Packed(bytes) => {
                let offset = self.append_packed(&bytes)?;
                self.current.fragment_offset.get_or_insert(offset);
            }
            PieceData::Chunks { chunk_len, chunks, bytes } => self.add_chunks(chunk_len, &chunks, &bytes)?,
            PieceData::Hole { chunk_len } => {
                let count = piece.len.div_ceil(chunk_len) as u64;
                self.chunks_of_current(chunk_len).push_holes(count);
            }
        }
        if is_last { self.finish(size, content).map(Some) } else { Ok(None) }
    }

    /// Aligns the image to the position where the data of a file may begin.
    fn begin_data_unit(&mut self) -> Result<()> {
        match self.options.chunk_bytes {
            None => self.image.pad(self.options.block_size() * u64::from(self.options.layout.data_unit_blocks)),
            // Chunks are deduplicated one by one, so the start of each depends on earlier ones.
            Some(_) => Ok(()),
        }
    }

    fn finish(&mut self, size: u64, content: &Content) -> Result<DataLocation> {
        let current = std::mem::take(&mut self.current);
        if let Some(chunks) = current.chunks {
            return Ok(DataLocation::Chunked(Box::new(chunks)));
        }
        let Current { start, extents, inline, fragment_offset, is_source, algorithm, .. } = current;
        if extents.is_empty() {
            if let Some(offset) = fragment_offset {
                return Ok(DataLocation::Fragment { offset });
            }
            let start_block = (self.image.len() > start).then_some(start / self.options.block_size());
            return Ok(DataLocation::flat(start_block, self.inlines.put(&inline)?));
        }
        if let (Some(offset), 1) = (fragment_offset, extents.len()) {
            return Ok(DataLocation::Fragment { offset });
        }
        let stored_len = self.image.len() - start + inline.len() as u64;
        if fragment_offset.is_none() && !is_source && stored_len + index_len(size, self.options.block_size()) >= size {
            self.known_pclusters.iter_mut().for_each(KnownPclusters::forget_file);
            self.image.rewind(start)?;
            return self.copy_flat(size, content);
        }
        let inline = self.inlines.put(&inline)?;
        let extents = self.extents.add(&extents)?;
        Ok(DataLocation::Compressed(CompressedFile::new(extents, algorithm, inline, fragment_offset)))
    }

    fn add_chunks(&mut self, chunk_len: usize, chunks: &[HashedChunk], bytes: &[u8]) -> Result<()> {
        let block_size = self.options.block_size();
        let (device, file) = match &mut self.blob {
            Some(blob) => (1, blob),
            None => (0, &mut self.image),
        };
        let places = self.known_chunks.add(bytes, chunks, device, block_size, file)?;
        let list = self.chunks_of_current(chunk_len);
        places.into_iter().for_each(|place| list.push(place));
        Ok(())
    }

    /// The chunks of the current file so far.
    fn chunks_of_current(&mut self, chunk_len: usize) -> &mut Chunks {
        let chunk_blocks_log2 = (chunk_len >> self.options.block_size_log2).max(1).ilog2();
        let chunk_blocks_log2 = u8::try_from(chunk_blocks_log2).unwrap_or(u8::MAX);
        self.current.chunks.get_or_insert_with(|| Chunks::new(chunk_blocks_log2))
    }

    fn add_flat(&mut self, bytes: &[u8], is_last: bool) -> Result<()> {
        let tail_len = if is_last { bytes.len() % self.options.block_len() } else { 0 };
        let inline = self.options.inline_data && tail_len <= inline_len_max(self.options.block_len());
        let (blocks, tail) = bytes.split_at(if inline { bytes.len() - tail_len } else { bytes.len() });
        self.image.append(blocks)?;
        self.image.pad(self.options.block_size())?;
        self.current.inline = tail.to_vec();
        Ok(())
    }

    fn add_compressed(&mut self, segment: CompressedSegment, fragment_hash: u64) -> Result<()> {
        self.put_extents(&segment)?;
        self.current.left_len = segment.left_len as u64;
        match segment.tail {
            Tail::None => {}
            Tail::Inline(bytes) => self.current.inline = bytes,
            Tail::Fragment(bytes) => self.add_fragment(&bytes, fragment_hash)?,
        }
        Ok(())
    }

    /// Adds a repeat: refers to the source's pclusters as far as possible, and compresses the rest.
    fn add_repeat(&mut self, repeat: &Repeat, rule: TailRule, content: &Content, files: &[DataLocation]) -> Result<()> {
        let mut start = repeat.start - self.current.left_len;
        let cut = self.cuts.get(&(repeat.source, repeat.source_start));
        if let (Some(first), 0) = (cut, self.current.left_len) {
            let source = match files.get(repeat.source) {
                _ if repeat.source == self.current.place => &self.current.extents[*first..],
                Some(DataLocation::Compressed(file)) => {
                    let extents = self.extents.of(file.extents);
                    &extents[*first..extents.len() - usize::from(!file.inline().is_empty())]
                }
                _ => &[],
            };
            let gap = Gap { start, end: repeat.end(), ends_file: repeat.end() == self.current.size };
            let (extents, len) = shared_extents(source, gap, self.options.block_size());
            self.current.extents.extend(extents);
            self.duplicate_bytes += len;
            start += len;
        }
        self.compress_late(content, start, repeat.end(), rule)
    }

    /// Compresses a part of the current file.
    fn compress_late(&mut self, content: &Content, start: u64, end: u64, rule: TailRule) -> Result<()> {
        self.current.left_len = 0;
        let open = content.open()?;
        let block_size = self.options.block_size();
        let mut at = start;
        while at < end {
            let next = segment_end(at, end, self.options.segment_len() as u64, block_size);
            let mut bytes = zeros(usize::try_from(next - at).unwrap_or(usize::MAX))?;
            open.read_at(at, &mut bytes)?;
            let rule = if next < end { TailRule::Blocks } else { rule };
            let Some(compressor) = self.compressors.of(self.current.coding)? else { break };
            let segment = compressor.compress(&bytes, rule, at)?;
            let hash = match &segment.tail {
                Tail::Fragment(fragment) => xxh64(fragment, 0),
                _ => 0,
            };
            self.add_compressed(segment, hash)?;
            at = next;
        }
        self.release_compressors();
        open.check_unchanged()
    }

    /// Frees the compressors, which take tens of MiB for large pclusters and are rarely needed here.
    fn release_compressors(&mut self) {
        if self.options.has_large_pclusters() {
            self.compressors = Compressors::new(self.options);
        }
    }

    /// Stores the pclusters of a segment that the image does not contain yet.
    fn put_extents(&mut self, segment: &CompressedSegment) -> Result<()> {
        let fragment = segment.extents.last().is_some_and(|extent| extent.kind == ExtentKind::Fragment);
        let extents = &segment.extents[..segment.extents.len() - usize::from(fragment)];
        let block_size = self.options.block_size();
        let base = self.image.len() / block_size;
        let Some(known) = &mut self.known_pclusters else {
            self.image.append(&segment.stored)?;
            let moved = extents.iter().map(|extent| CompressedExtent { block: base + extent.block, ..*extent });
            self.current.extents.extend(moved);
            return Ok(());
        };
        let verdicts = known.verdicts(extents, &segment.stored, &mut self.image, block_size, self.current.size)?;
        let mut blocks = Vec::with_capacity(extents.len());
        let mut rest = segment.stored.as_slice();
        for (extent, verdict) in extents.iter().zip(&verdicts) {
            let len = usize::try_from(extent.stored_len).unwrap_or(usize::MAX);
            // Inline data takes no space here.
            let (bytes, after) = rest.split_at(len.min(rest.len()));
            rest = after;
            blocks.push(match verdict {
                Verdict::Known(block) => *block,
                Verdict::Store => {
                    let block = self.image.len() / block_size;
                    self.image.append(bytes)?;
                    block
                }
            });
        }
        known.learn(extents, &segment.stored, &verdicts, &blocks);
        let moved = extents.iter().zip(blocks).map(|(extent, block)| CompressedExtent { block, ..*extent });
        self.current.extents.extend(moved);
        Ok(())
    }

    /// Puts the last part of a file into the packed inode, unless the data is present elsewhere.
    fn add_fragment(&mut self, bytes: &[u8], hash: u64) -> Result<()> {
        let Some(packed) = &mut self.packed else { return Ok(()) };
        if let Some(known) = packed.known_end(bytes, hash)? {
            // The fragment then begins with an lcluster, so the extent before it must reach the end of its own
            // lcluster.
            let start: u64 = self.current.extents.iter().map(|extent| u64::from(extent.len)).sum();
            let within = usize::try_from(start % self.options.block_size()).unwrap_or(0);
            let before = bytes.len() - known.len;
            let rest = match before {
                0 => 0,
                _ => (within + before).next_multiple_of(self.options.block_len()) - within,
            };
            if let Some(len) = bytes.len().checked_sub(rest).filter(|len| *len > 0)
                && self.add_before_end(&bytes[..rest], len)?
            {
                self.put_fragment(known.offset + (rest - before) as u64, len);
                return Ok(());
            }
        }
        if let Some(packed) = &mut self.packed {
            let offset = packed.add(bytes, hash, self.current.group)?;
            self.put_fragment(offset, bytes.len());
        }
        Ok(())
    }

    /// Stores the data before a known end of this length, if that saves space.
    fn add_before_end(&mut self, bytes: &[u8], known_len: usize) -> Result<bool> {
        if !bytes.is_empty() {
            if known_len < self.options.block_len() * KNOWN_END_FACTOR {
                return Ok(false);
            }
            let Some(compressor) = self.compressors.of(self.current.coding)? else { return Ok(false) };
            let segment = compressor.compress(bytes, TailRule::Blocks, 0)?;
            self.release_compressors();
            if segment.stored.len().saturating_mul(KNOWN_END_FACTOR) > known_len {
                return Ok(false);
            }
            self.add_compressed(segment, 0)?;
        }
        if let Some(packed) = &mut self.packed {
            packed.count_duplicate(known_len);
        }
        Ok(true)
    }

    fn put_fragment(&mut self, offset: u64, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let block = self.image.len() / self.options.block_size();
        self.current.extents.push(CompressedExtent { len, stored_len: 0, block, kind: ExtentKind::Fragment });
        self.current.fragment_offset = Some(offset);
    }

    /// Appends to the packed inode's content; returns the offset.
    pub(crate) fn append_packed(&mut self, bytes: &[u8]) -> Result<u64> {
        self.packed.as_mut().map_or(Ok(0), |packed| packed.append(bytes))
    }

    /// Stores a file uncompressed because compression did not shrink it.
    fn copy_flat(&mut self, size: u64, content: &Content) -> Result<DataLocation> {
        self.current.start = self.image.len();
        let open = content.open()?;
        let mut buffer = zeros(COPY_LEN)?;
        let mut offset = 0;
        while offset < size {
            let len = usize::try_from(size - offset).unwrap_or(usize::MAX).min(COPY_LEN);
            open.read_at(offset, &mut buffer[..len])?;
            offset += len as u64;
            self.add_flat(&buffer[..len], offset == size)?;
        }
        open.check_unchanged()?;
        let Current { start, inline, .. } = std::mem::take(&mut self.current);
        let start_block = (self.image.len() > start).then_some(start / self.options.block_size());
        Ok(DataLocation::flat(start_block, self.inlines.put(&inline)?))
    }
}
