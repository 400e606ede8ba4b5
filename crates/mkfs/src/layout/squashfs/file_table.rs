//! Where the image has the blocks of each file.

use floe_squashfs::format::{BLOCK_UNCOMPRESSED, FragmentEntry};

use crate::{
    compress::{blocks::StoredBlocks, piece::PieceDigest, piece_digests::PieceDigests},
    content::duplicates::Duplicates,
    error::{Error, Result},
    files::image_file::ImageFile,
    layout::type_usage::FileUsage,
    tree::content::Content,
};

/// The place of each file, and the fragment blocks.
pub(super) struct FileTable {
    /// In tree order.
    places: Vec<FilePlace>,
    /// The files that have blocks of their own.
    blocks: Vec<BlocksPlace>,
    /// The entries of the fragment table.
    fragments: Vec<u8>,
    fragment_count: u32,
    pieces: PieceDigests,
    content_bytes: u64,
}

/// Where the image has the content of a file.
enum FilePlace {
    /// Nowhere: it is empty, or not a file.
    None,
    /// In a fragment.
    Fragment(FragmentPlace),
    /// In blocks of its own: the index in the list of such files.
    Blocks(usize),
    /// Where it has the content of this file.
    SameAs(usize),
}

/// A place in a fragment block.
#[derive(Clone, Copy)]
pub(super) struct FragmentPlace {
    pub(super) index: u32,
    pub(super) offset: u32,
}

/// The blocks of a file.
#[derive(Default)]
pub(super) struct BlocksPlace {
    /// The position of the first block.
    pub(super) start: u64,
    pub(super) runs: Vec<BlockRun>,
    /// How many bytes are in holes.
    pub(super) hole_bytes: u64,
    pub(super) fragment: Option<FragmentPlace>,
    /// The length of the end in a fragment.
    packed_bytes: u64,
}

/// Blocks that follow each other.
pub(super) enum BlockRun {
    /// Their size words.
    Words(Vec<u32>),
    /// This many holes.
    Holes(u64),
}

impl FileTable {
    /// The table of a tree in which some files have the content of earlier ones.
    pub(super) fn new(duplicates: &Duplicates) -> Self {
        let place = |place| duplicates.of(place).map_or(FilePlace::None, FilePlace::SameAs);
        Self {
            places: (0..duplicates.len()).map(place).collect(),
            blocks: Vec::new(),
            fragments: Vec::new(),
            fragment_count: 0,
            pieces: PieceDigests::default(),
            content_bytes: 0,
        }
    }

    /// Adds the next blocks, and appends them to the image.
    pub(super) fn add(&mut self, blocks: StoredBlocks, image: &mut ImageFile) -> Result<()> {
        match blocks {
            StoredBlocks::Data { digest, words, bytes, hole_bytes } => {
                let place = self.blocks_of(digest.inode);
                if place.start == 0 && !bytes.is_empty() {
                    place.start = image.len();
                }
                place.hole_bytes += hole_bytes;
                match place.runs.last_mut() {
                    Some(BlockRun::Words(known)) => known.extend(words),
                    _ => place.runs.push(BlockRun::Words(words)),
                }
                image.append(&bytes)?;
                self.content_bytes += digest.len as u64 - hole_bytes;
                self.pieces.push(digest);
            }
            StoredBlocks::Hole { digest, block_count } => {
                let place = self.blocks_of(digest.inode);
                place.hole_bytes += digest.len as u64;
                place.runs.push(BlockRun::Holes(block_count));
                self.pieces.push(digest);
            }
            StoredBlocks::Fragment { tails, word, bytes } => self.add_fragment(tails, word, &bytes, image)?,
        }
        Ok(())
    }

    fn add_fragment(&mut self, tails: Vec<PieceDigest>, word: u32, bytes: &[u8], image: &mut ImageFile) -> Result<()> {
        let index = self.fragment_count;
        let entry = FragmentEntry { start_block: image.len(), size: word, unused: 0 };
        self.fragments.extend(entry.to_bytes());
        // The last number stands for no fragment.
        let count = index.checked_add(1).filter(|count| *count < u32::MAX);
        self.fragment_count = count.ok_or_else(|| Error::Layout("there are too many fragment blocks".into()))?;
        let mut offset = 0;
        for tail in &tails {
            let fragment = FragmentPlace { index, offset };
            if tail.offset == 0 {
                self.places[tail.inode] = FilePlace::Fragment(fragment);
            } else {
                let place = self.blocks_of(tail.inode);
                (place.fragment, place.packed_bytes) = (Some(fragment), tail.len as u64);
            }
            offset += u32::try_from(tail.len).unwrap_or(u32::MAX);
            self.content_bytes += tail.len as u64;
        }
        tails.into_iter().for_each(|tail| self.pieces.push(tail));
        image.append(bytes)
    }

    /// The fragment and the blocks of a file.
    pub(super) fn of(&self, place: usize) -> (Option<FragmentPlace>, Option<&BlocksPlace>) {
        match &self.places[place] {
            FilePlace::None => (None, None),
            FilePlace::Fragment(fragment) => (Some(*fragment), None),
            FilePlace::Blocks(index) => (self.blocks[*index].fragment, Some(&self.blocks[*index])),
            FilePlace::SameAs(earlier) if *earlier < place => self.of(*earlier),
            FilePlace::SameAs(_) => (None, None),
        }
    }

    /// What the file at this index takes.
    pub(super) fn usage(&self, place: usize, content: Option<&Content>) -> FileUsage {
        let Some(content) = content else { return FileUsage::default() };
        let mut usage = FileUsage::default();
        match &self.places[place] {
            FilePlace::None => {}
            FilePlace::Fragment(_) => usage.packed_bytes = content.size(),
            FilePlace::SameAs(_) => usage.shared_bytes = content.size(),
            FilePlace::Blocks(index) => {
                let blocks = &self.blocks[*index];
                usage.hole_bytes = blocks.hole_bytes;
                let words = blocks.runs.iter().filter_map(|run| match run {
                    BlockRun::Words(words) => Some(words),
                    BlockRun::Holes(_) => None,
                });
                let stored_len = |word: &u32| u64::from(word & !BLOCK_UNCOMPRESSED);
                usage.stored_bytes = words.flatten().map(stored_len).sum();
                if blocks.fragment.is_some() {
                    usage.packed_bytes = blocks.packed_bytes;
                }
            }
        }
        usage
    }

    /// The entries of the fragment table.
    pub(super) fn fragments(&self) -> &[u8] {
        &self.fragments
    }

    /// The number of fragment blocks.
    pub(super) fn fragment_count(&self) -> u32 {
        self.fragment_count
    }

    /// The number of files that share the content of an earlier one.
    pub(super) fn duplicate_count(&self) -> u64 {
        self.places.iter().filter(|place| matches!(place, FilePlace::SameAs(_))).count() as u64
    }

    /// How many bytes of files the image has, before compression.
    pub(super) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// The digests of all parts of files.
    pub(super) fn into_pieces(self) -> PieceDigests {
        self.pieces
    }

    /// The blocks of a file, which has none yet or some.
    fn blocks_of(&mut self, place: usize) -> &mut BlocksPlace {
        let index = match self.places[place] {
            FilePlace::Blocks(index) => index,
            _ => {
                self.blocks.push(BlocksPlace::default());
                self.blocks.len() - 1
            }
        };
        self.places[place] = FilePlace::Blocks(index);
        &mut self.blocks[index]
    }
}
