//! The data area of an image: the content of files, and of the inodes that do not belong to the tree.

use std::os::unix::fs::FileExt;

use floe_erofs::write::{CompressedExtent, ExtentKind};
use sha2::{Digest, Sha256};

use super::{
    SpecialInode,
    assembly::Assembler,
    data_location::{CompressedFile, DataLocation},
    extent_pool::ExtentPool,
    inline_data::{InlineData, InlineStore},
    packed::Packed,
    type_usage::{FileUsage, SeenBlocks},
};
use crate::{
    compress::{compress, piece::PieceOutput, piece_digests::PieceDigests},
    content::{ContentPlan, FilesToStore, storage_method::inline_len_max},
    error::{Error, Result},
    files::{image_file::ImageFile, output_file::scratch_file},
    options::{Coding, Fragments, Options},
    progress::{Phase, Progress},
    tree::{
        Body, OrderedNode, Tree,
        content::{
            Content,
            referral::{Referral, ReferredData, UNIFIED_BLOCK},
        },
    },
};

/// The data area while it is written.
pub(crate) struct DataArea<'a> {
    assembler: Assembler<'a>,
    /// Where each file is, in tree order; [`DataLocation::EMPTY`] for other nodes.
    pub(crate) files: Vec<DataLocation>,
    digest: Sha256,
    pieces: PieceDigests,
    options: &'a Options,
}

/// The complete data area.
pub(crate) struct FinishedData {
    /// The blob device, if any.
    pub(crate) blob: Option<ImageFile>,
    /// Where each file is, in tree order.
    pub(crate) files: Vec<DataLocation>,
    pub(crate) extents: ExtentPool,
    pub(crate) inlines: InlineStore,
    /// A digest of all content.
    pub(crate) digest: [u8; 32],
    /// Digests of the pieces of files, in the order of storage.
    pub(crate) pieces: PieceDigests,
    /// How many bytes were found as duplicates.
    pub(crate) duplicate_bytes: u64,
}

impl<'a> DataArea<'a> {
    /// Begins the area at the end of `image`.
    pub(crate) fn new(image: ImageFile, plan: &ContentPlan<'_>, options: &'a Options) -> Result<Self> {
        let packed = if options.fragments == Fragments::None && !options.layout.packs_directories {
            None
        } else {
            Some(Packed::new(&options.output, options.fragment_run_len())?)
        };
        let blob = options.blob_device.as_deref().map(|path| ImageFile::create(path, 0, &options.temporaries));
        let blob = blob.transpose()?;
        let mut digest = Sha256::new();
        let mut files = vec![DataLocation::EMPTY; plan.duplicates.len()];
        for (place, earlier) in plan.duplicates.iter() {
            files[place] = DataLocation::SameAs(earlier);
            digest.update((place as u64).to_le_bytes());
            digest.update((earlier as u64).to_le_bytes());
        }
        let assembler = Assembler::new(image, blob, options, packed);
        Ok(Self { assembler, files, digest, pieces: PieceDigests::default(), options })
    }

    /// Adds a file that refers to an extra device.
    pub(crate) fn refer(&mut self, place: usize, referral: &Referral) -> Result<()> {
        let (size, block_size) = (referral.size, self.options.block_size());
        self.files[place] = match &referral.data {
            ReferredData::Runs { runs, tail } => {
                let tail = tail.as_ref().map(|(start, content)| self.add_last_block(*start, content)).transpose()?;
                DataLocation::of_runs(referral.device, runs, tail, size, block_size)
            }
            ReferredData::Pclusters { algorithm, extents } => {
                let unified =
                    |extent: &CompressedExtent| CompressedExtent { block: extent.block + UNIFIED_BLOCK, ..*extent };
                let extents: Vec<_> = extents.iter().map(unified).collect();
                let extents = self.assembler.extents.add(&extents)?;
                DataLocation::Compressed(CompressedFile::new(extents, *algorithm, InlineData::NONE, None))
            }
        };
        Ok(())
    }

    /// Stores the end of a file from `start` on; returns its block.
    fn add_last_block(&mut self, start: u64, content: &Content) -> Result<u64> {
        let image = &mut self.assembler.image;
        let block = image.len() / self.options.block_size();
        let mut bytes = vec![0; usize::try_from(content.size().saturating_sub(start)).unwrap_or(0)];
        let open = content.open()?;
        open.read_at(start, &mut bytes)?;
        open.check_unchanged()?;
        self.digest.update(&bytes);
        image.append(&bytes)?;
        image.pad(self.options.block_size())?;
        Ok(block)
    }

    /// Adds the next piece of the files.
    pub(crate) fn add(&mut self, piece: PieceOutput<'_>) -> Result<()> {
        piece.digest_into(&mut self.digest);
        self.pieces.push(piece.digest());
        let place = piece.file.place;
        if let Some(location) = self.assembler.add(piece, &self.files)? {
            self.files[place] = location;
        }
        Ok(())
    }

    /// Adds the targets of symbolic links, as far as they are too long to be inline.
    pub(crate) fn add_links(&mut self, tree: &Tree, order: &[OrderedNode]) -> Result<()> {
        let block_len = self.options.block_len();
        for (ordered, file) in order.iter().zip(&mut self.files) {
            let Body::Symlink(target) = &tree.node(ordered.node).body else { continue };
            let tail_len = target.len() % block_len;
            let inline = tail_len <= inline_len_max(block_len);
            let (blocks, tail) = target.split_at(if inline { target.len() - tail_len } else { target.len() });
            let image = &mut self.assembler.image;
            let start_block = (!blocks.is_empty()).then_some(image.len() / self.options.block_size());
            image.append(blocks)?;
            image.pad(self.options.block_size())?;
            *file = DataLocation::flat(start_block, self.assembler.inlines.put(tail)?);
        }
        Ok(())
    }

    /// Appends to the packed inode; returns the offset.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> Result<u64> {
        self.assembler.append_packed(bytes)
    }

    /// Adds the packed inode, if it has content, and updates the offsets of fragments in it.
    pub(crate) fn add_packed(&mut self, progress: &mut dyn Progress) -> Result<Option<SpecialInode>> {
        let Some((content, final_offsets)) = self.assembler.take_packed()? else { return Ok(None) };
        self.files.iter_mut().for_each(|file| file.move_fragment(|offset| final_offsets.offset(offset)));
        let usual = self.options.compression.map(|_| 0);
        let other = self.options.layout.packed_coding.and_then(|coding| self.options.coding_number(coding));
        self.add_special(&content, other.or(usual), Phase::Packed, progress).map(Some)
    }

    /// The extents of files.
    pub(crate) fn extents(&self) -> &ExtentPool {
        &self.assembler.extents
    }

    /// The data for behind the inodes.
    pub(crate) fn inlines(&self) -> &InlineStore {
        &self.assembler.inlines
    }

    /// The length of the image so far, in bytes.
    pub(crate) fn image_len(&self) -> u64 {
        self.assembler.image.len()
    }

    /// Adds the blocks of directories.
    pub(crate) fn add_directories(&mut self, blocks: &[u8]) -> Result<()> {
        self.assembler.image.append(blocks)?;
        self.assembler.image.pad(self.options.block_size())
    }

    /// Adds the metabox.
    pub(crate) fn add_metabox(
        &mut self,
        bytes: &[u8],
        coding: Option<Coding>,
        progress: &mut dyn Progress,
    ) -> Result<SpecialInode> {
        let (path, size) = (self.options.output.as_path(), bytes.len() as u64);
        let file = scratch_file(path)?;
        let failed =
            |error| Error::Output { path: path.to_path_buf(), action: "write a temporary file next to", error };
        file.write_all_at(bytes, 0).map_err(failed)?;
        let content = Content::of_temporary(file, path, size);
        let coding = coding.and_then(|coding| self.options.coding_number(coding));
        self.add_special(&content, coding, Phase::Metadata, progress)
    }

    /// Ends the area. Returns also the image, which ends with it.
    pub(crate) fn finish(self) -> (ImageFile, FinishedData) {
        let duplicate_bytes = self.assembler.duplicate_bytes();
        let Assembler { image, blob, extents, inlines, .. } = self.assembler;
        let digest = self.digest.finalize().into();
        let Self { files, pieces, .. } = self;
        (image, FinishedData { blob, files, extents, inlines, digest, pieces, duplicate_bytes })
    }

    fn add_special(
        &mut self,
        content: &Content,
        coding: Option<usize>,
        phase: Phase,
        progress: &mut dyn Progress,
    ) -> Result<SpecialInode> {
        let to_store = FilesToStore::special(content, coding, self.options, progress)?;
        let mut files = [DataLocation::EMPTY];
        self.assembler.begin_special();
        compress(&to_store, phase, self.options, progress, |piece| {
            piece.digest_into(&mut self.digest);
            if let Some(location) = self.assembler.add(piece, &files)? {
                files = [location];
            }
            Ok(())
        })?;
        let [location] = files;
        Ok(SpecialInode { location, size: content.size() })
    }
}

impl FinishedData {
    /// What the file at this index takes. Data of several files belongs to the first one that is asked for; the others share it.
    pub(crate) fn usage(
        &self,
        place: usize,
        content: Option<&Content>,
        block_size: u64,
        seen: &mut SeenBlocks,
    ) -> FileUsage {
        let Some(content) = content else { return FileUsage::default() };
        let (size, mut usage) = (content.size(), FileUsage::default());
        usage.hole_bytes = size.saturating_sub(content.stored_len());
        match &self.files[place] {
            _ if content.is_referred() => usage.shared_bytes = content.stored_len(),
            DataLocation::SameAs(_) => usage.shared_bytes = content.stored_len(),
            DataLocation::Fragment { .. } => (usage.packed_bytes, usage.hole_bytes) = (size, 0),
            DataLocation::Flat { inline, .. } => {
                usage.stored_bytes = (size - inline.len().min(size)).next_multiple_of(block_size) + inline.len();
            }
            DataLocation::Chunked(chunks) => {
                let chunk_bytes = chunks.chunk_blocks().saturating_mul(block_size);
                usage.hole_bytes = size;
                for (index, device, block) in chunks.stored() {
                    let len = chunk_bytes.min(size.saturating_sub(index.saturating_mul(chunk_bytes)));
                    usage.hole_bytes = usage.hole_bytes.saturating_sub(len);
                    if seen.is_first(device, block) {
                        usage.stored_bytes += len.next_multiple_of(block_size);
                    } else {
                        usage.shared_bytes += len;
                    }
                }
            }
            DataLocation::Compressed(file) => {
                usage.hole_bytes = 0;
                let inline = file.inline();
                usage.stored_bytes = inline.len();
                let extents = self.extents.of(file.extents);
                // The inode has the last extent.
                for extent in &extents[..extents.len() - usize::from(!inline.is_empty())] {
                    match extent.kind {
                        ExtentKind::Fragment => usage.packed_bytes += u64::from(extent.len),
                        _ if seen.is_first(0, extent.block) => usage.stored_bytes += u64::from(extent.stored_len),
                        _ => usage.shared_bytes += u64::from(extent.len),
                    }
                }
            }
        }
        usage
    }
}
