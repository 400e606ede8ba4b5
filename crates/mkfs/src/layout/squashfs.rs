//! Lays out a SquashFS image: the blocks of files, then the tables, then the superblock.

mod directory;
mod file_table;
mod inode;
mod metadata;
mod superblock;
mod tables;
pub(crate) mod xattrs;

use std::collections::BTreeSet;

use file_table::FileTable;
use floe_image::FileType;
use floe_squashfs::format;
use inode::InodeTables;
use metadata::MetadataWriter;
use superblock::{SuperblockFacts, built_seconds, head, superblock};
use tables::{IdTable, append_table};
use xattrs::XattrSets;

use super::{CompleteLayout, StoredXattrs, type_usage::TypeUsage};
use crate::{
    compress::blocks::StoredBlocks,
    content::{BlockFile, ContentPlan},
    error::{Error, Result},
    files::image_file::ImageFile,
    options::{Options, SquashfsOptions},
    progress::{Phase, Progress, report},
    tree::{OrderedNode, Tree},
};

/// The length of the image is rounded up to a multiple of this many bytes.
const PADDING: u64 = 4096;
/// The maximum number of blocks of a file: its block list has four bytes for each.
const FILE_BLOCKS_MAX: u64 = 1 << 28;

/// A SquashFS image while it is laid out.
pub(crate) struct SquashfsLayout<'a> {
    options: &'a Options,
    squashfs: &'a SquashfsOptions,
    image: ImageFile,
    files: FileTable,
    /// The length of the superblock and the compressor options.
    head_len: u64,
}

/// Numbers about a SquashFS image. Sizes are in bytes; the decoded size of a table comes after its stored size.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SquashfsSummary {
    /// The inode table.
    pub inode_table: (u64, u64),
    /// The directory table.
    pub directory_table: (u64, u64),
    /// The attributes and the table of their sets.
    pub xattr_table: (u64, u64),
    /// The length of the file system without padding.
    pub bytes_used: u64,
    /// The length that it would have without compression.
    pub uncompressed_bytes: u64,
    /// The number of fragment blocks.
    pub fragments: u32,
    /// The number of files that share the content of an earlier one.
    pub duplicates: u64,
    /// The number of symbolic links.
    pub symlinks: u64,
    /// The number of devices.
    pub devices: u64,
    /// The number of named pipes.
    pub fifos: u64,
    /// The number of sockets.
    pub sockets: u64,
    /// The number of names besides the first one of each file.
    pub hard_links: u64,
    /// The number of ids: owners and groups together.
    pub ids: usize,
    /// The owners of inodes.
    pub uids: BTreeSet<u32>,
    /// The groups of inodes.
    pub gids: BTreeSet<u32>,
    /// The number of attribute sets.
    pub xattr_sets: u32,
}

impl<'a> SquashfsLayout<'a> {
    /// Creates the image, with room for its superblock, and with the options of the compressor.
    pub(crate) fn create(
        files: &[BlockFile<'_>],
        plan: &ContentPlan<'_>,
        options: &'a Options,
        squashfs: &'a SquashfsOptions,
    ) -> Result<Self> {
        let block_len = squashfs.block_len() as u64;
        if let Some(file) = files.iter().find(|file| file.content.size() / block_len >= FILE_BLOCKS_MAX) {
            let reason = format!("it has more than {FILE_BLOCKS_MAX} blocks of {block_len} bytes: use larger blocks");
            return Err(Error::unfit(file.content.path(), reason));
        }
        let mut image = ImageFile::create(&options.output, options.layout.offset, &options.temporaries)?;
        image.append(&head(squashfs))?;
        let head_len = image.len();
        Ok(Self { options, squashfs, image, files: FileTable::new(&plan.duplicates), head_len })
    }

    /// Adds the next blocks of files.
    pub(crate) fn add(&mut self, blocks: StoredBlocks) -> Result<()> {
        self.files.add(blocks, &mut self.image)
    }

    /// Completes the image with its tables and its superblock.
    pub(crate) fn finish(
        self,
        tree: &Tree,
        order: &[OrderedNode],
        progress: &mut dyn Progress,
    ) -> Result<CompleteLayout> {
        let Self { options, squashfs, mut image, files, head_len } = self;
        let uncompressed = squashfs.uncompressed;
        let too_many = |_| Error::Layout("SquashFS has at most 4294967294 inodes".into());
        let inode_count = u32::try_from(order.len() + 1).map_err(too_many)? - 1;
        let mut ids = IdTable::default();
        let xattrs = XattrSets::new(tree, order, squashfs)?;
        let tables = InodeTables::new(tree, order, &files, &xattrs, options, squashfs)?.write(&mut ids)?;

        let metadata_start = image.len();
        let mut facts = SuperblockFacts { inode_count, inode_table_start: image.len(), ..SuperblockFacts::default() };
        facts.root = tables.references[0];
        image.append(&tables.inodes.stored)?;
        facts.directory_table_start = image.len();
        image.append(&tables.directories.stored)?;
        facts.fragment_count = files.fragment_count();
        facts.fragment_table_start = match files.fragments() {
            [] => format::ABSENT_TABLE,
            entries => {
                let writer = MetadataWriter::new(squashfs, uncompressed.fragments)?;
                append_table(&mut image, writer, format::FragmentEntry::SIZE, entries, &[])?
            }
        };
        facts.export_table_start = format::ABSENT_TABLE;
        if squashfs.exports {
            let entries: Vec<u8> = tables.references.iter().flat_map(|reference| reference.to_le_bytes()).collect();
            let writer = MetadataWriter::new(squashfs, uncompressed.inodes)?;
            facts.export_table_start = append_table(&mut image, writer, size_of::<u64>(), &entries, &[])?;
        }
        let writer = MetadataWriter::new(squashfs, uncompressed.inodes || uncompressed.ids)?;
        facts.id_table_start = append_table(&mut image, writer, size_of::<u32>(), &ids.to_bytes(), &[])?;
        facts.id_count = ids.count();
        let xattr_start = image.len();
        facts.xattr_id_table_start = xattrs.append_to(&mut image, squashfs)?;
        let xattr_stored = image.len() - xattr_start;
        facts.bytes_used = image.len();
        let metadata_len = image.len() - metadata_start;
        report(progress, Phase::Metadata, metadata_len, metadata_len)?;

        if squashfs.pads {
            image.pad(PADDING)?;
        }
        let mkfs_time = built_seconds(tree, order, options, squashfs);
        image.put_head(&superblock(&facts, mkfs_time, options, squashfs).to_bytes())?;
        let tables_len = tables.inodes.stored.len() as u64 + tables.directories.stored.len() as u64;
        let decoded_tables_len = tables.inodes.decoded_len + tables.directories.decoded_len;
        let type_of = |ordered: &OrderedNode| tree.node(ordered.node).file_type();
        let count =
            |types: &[FileType]| order.iter().filter(|ordered| types.contains(&type_of(ordered))).count() as u64;
        let others = order.iter().filter(|ordered| type_of(ordered) != FileType::Directory);
        let summary = SquashfsSummary {
            inode_table: (tables.inodes.stored.len() as u64, tables.inodes.decoded_len),
            directory_table: (tables.directories.stored.len() as u64, tables.directories.decoded_len),
            xattr_table: (xattr_stored, xattrs.decoded_len()),
            bytes_used: facts.bytes_used,
            uncompressed_bytes: head_len
                + files.content_bytes()
                + decoded_tables_len
                + (metadata_len - tables_len - xattr_stored)
                + xattrs.decoded_len(),
            fragments: facts.fragment_count,
            duplicates: files.duplicate_count(),
            symlinks: count(&[FileType::Symlink]),
            devices: count(&[FileType::BlockDevice, FileType::CharacterDevice]),
            fifos: count(&[FileType::Fifo]),
            sockets: count(&[FileType::Socket]),
            hard_links: others.map(|ordered| u64::from(ordered.link_count.saturating_sub(1))).sum(),
            ids: usize::from(ids.count()),
            uids: ids.uids,
            gids: ids.gids,
            xattr_sets: xattrs.count(),
        };
        let usage = |place: usize| files.usage(place, tree.content(&order[place]));
        let types = if options.lists_types { TypeUsage::of_tree(tree, order, usage) } else { Vec::new() };
        Ok(CompleteLayout {
            types,
            blob: None,
            uuid: [0; 16],
            xattrs: StoredXattrs::Squashfs { left_out: xattrs.left_out() },
            pieces: files.into_pieces(),
            inode_count: u64::from(inode_count),
            data_bytes: metadata_start - head_len,
            metadata_bytes: image.len() - metadata_start,
            packed_bytes: 0,
            duplicate_bytes: 0,
            squashfs: Some(summary),
            image,
        })
    }
}
