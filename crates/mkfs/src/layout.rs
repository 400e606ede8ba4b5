//! Lays out an image: the data of files first, then the metadata that locates it, then the superblock. The modules
//! outside of `squashfs` lay out EROFS images.

mod assembly;
mod data_area;
mod data_location;
mod extent_pool;
mod inline_data;
mod known_data;
mod metadata;
mod packed;
mod planned_inode;
pub(crate) mod squashfs;
mod superblock;
pub(crate) mod type_usage;
mod xattr_table;

use data_area::DataArea;
use data_location::DataLocation;
use floe_erofs::write::{launch_list, launch_profile, superblock_bytes};
use metadata::{MetaboxInodes, MetadataPlan};
use squashfs::{SquashfsSummary, xattrs};
use superblock::{Described, ImageTimes, head_len};
use type_usage::{SeenBlocks, TypeUsage};
use xattr_table::XattrTable;

use crate::{
    compress::{piece::PieceOutput, piece_digests::PieceDigests},
    content::{ContentPlan, Launch},
    error::{Error, Result},
    files::image_file::ImageFile,
    options::{Metabox, Options},
    progress::{Phase, Progress, report},
    tree::{
        OrderedNode, Tree,
        content::{Content, referral::UNIFIED_BLOCK},
    },
};

/// An EROFS image while it is laid out.
pub(crate) struct ErofsLayout<'a> {
    options: &'a Options,
    times: ImageTimes,
    xattrs: XattrTable,
    data: DataArea<'a>,
    /// The offset of the data in the image.
    data_start: u64,
    /// The offsets of directories in the packed inode, in tree order; empty if they are not in it.
    directories: Vec<u64>,
    packed: Option<SpecialInode>,
    /// The inodes in the metabox, and the metabox.
    metabox_inodes: Option<(MetaboxInodes, SpecialInode)>,
}

/// An image that is complete, apart from its name. Sizes are in bytes.
pub(crate) struct CompleteLayout {
    pub(crate) image: ImageFile,
    /// The blob device, if any.
    pub(crate) blob: Option<ImageFile>,
    pub(crate) uuid: [u8; 16],
    pub(crate) xattrs: StoredXattrs,
    /// Digests of the pieces of files, in the order of storage.
    pub(crate) pieces: PieceDigests,
    pub(crate) inode_count: u64,
    pub(crate) data_bytes: u64,
    pub(crate) metadata_bytes: u64,
    pub(crate) packed_bytes: u64,
    /// The part of the content that was found as duplicates, apart from whole files.
    pub(crate) duplicate_bytes: u64,
    /// What the types of files take, if the options ask for that.
    pub(crate) types: Vec<TypeUsage>,
    /// More about a SquashFS image.
    pub(crate) squashfs: Option<SquashfsSummary>,
}

/// The xattrs that an image has.
pub(crate) enum StoredXattrs {
    Erofs(XattrTable),
    Squashfs {
        /// The number of xattrs that the format cannot represent.
        left_out: u64,
    },
}

impl StoredXattrs {
    /// The number of xattrs that the format cannot represent.
    pub(crate) fn left_out(&self) -> u64 {
        match self {
            Self::Erofs(table) => table.left_out(),
            Self::Squashfs { left_out } => *left_out,
        }
    }

    /// Whether readers show an xattr.
    pub(crate) fn shows(&self, name: &[u8], value: &[u8]) -> bool {
        match self {
            Self::Erofs(table) => table.shows(name, value),
            Self::Squashfs { .. } => xattrs::keeps(name, value),
        }
    }
}

/// An inode that does not belong to the tree: the packed inode or the metabox.
pub(crate) struct SpecialInode {
    pub(crate) location: DataLocation,
    /// The size in bytes.
    pub(crate) size: u64,
}

impl<'a> ErofsLayout<'a> {
    /// Creates the image, with room for its superblock.
    pub(crate) fn create(
        tree: &Tree,
        order: &[OrderedNode],
        plan: &ContentPlan<'_>,
        options: &'a Options,
    ) -> Result<Self> {
        let xattrs = XattrTable::new(tree, order, &options.xattrs)?;
        let times = ImageTimes::new(tree, order, options);
        let mut image = ImageFile::create(&options.output, options.layout.offset, &options.temporaries)?;
        image.append(&vec![0; usize::try_from(head_len(options, times, &xattrs, tree.devices())).unwrap_or(0)])?;
        image.pad(options.block_size())?;
        let data_start = image.len();
        let mut data = DataArea::new(image, plan, options)?;
        for (place, ordered) in order.iter().enumerate() {
            if let Some(Content::Referred(referral)) = tree.content(ordered) {
                data.refer(place, referral)?;
            }
        }
        Ok(Self {
            options,
            times,
            xattrs,
            data,
            data_start,
            directories: Vec::new(),
            packed: None,
            metabox_inodes: None,
        })
    }

    /// Adds the next piece of the files.
    pub(crate) fn add(&mut self, piece: PieceOutput<'_>) -> Result<()> {
        self.data.add(piece)
    }

    /// Adds what follows the files: targets of symbolic links, the packed inode, the metabox.
    pub(crate) fn add_rest(&mut self, tree: &Tree, order: &[OrderedNode], progress: &mut dyn Progress) -> Result<()> {
        self.data.add_links(tree, order)?;
        let metabox = self.options.layout.metabox;
        if self.options.layout.packs_directories {
            let contents = self.metadata_plan(tree, order).directory_contents(metabox != Metabox::None)?;
            for content in contents {
                self.directories.push(if content.is_empty() { 0 } else { self.data.pack(&content)? });
            }
        }
        self.packed = self.data.add_packed(progress)?;
        if let Metabox::Inode(coding) = metabox {
            let mut metabox_inodes = self.metadata_plan(tree, order).metabox_inodes(self.data.image_len())?;
            self.data.add_directories(&std::mem::take(&mut metabox_inodes.directories))?;
            let inode = self.data.add_metabox(&metabox_inodes.bytes, coding, progress)?;
            self.metabox_inodes = Some((metabox_inodes, inode));
        }
        Ok(())
    }

    /// Completes the image with its metadata, the list of a launch, and its superblock.
    pub(crate) fn finish(
        self,
        tree: &Tree,
        order: &[OrderedNode],
        launch: Option<&Launch<'_>>,
        progress: &mut dyn Progress,
    ) -> Result<CompleteLayout> {
        let Self { options, times, xattrs, data, data_start, directories, packed, metabox_inodes } = self;
        let (mut image, data) = data.finish();
        let plan = MetadataPlan {
            tree,
            order,
            files: &data.files,
            extents: &data.extents,
            inlines: &data.inlines,
            directories: &directories,
            xattrs: &xattrs,
            options,
            rules: times.inode_rules(options),
        };
        let metadata_start = image.len();
        let xattr_block = block_number(&image, options)?;
        image.append(xattrs.shared_bytes())?;
        image.pad(options.block_size())?;
        let metadata_block = block_number(&image, options)?;
        let metadata = match metabox_inodes {
            None => plan.write(packed.as_ref(), &mut image)?,
            Some((metabox_inodes, metabox)) => {
                plan.write_with_metabox(metabox_inodes, packed.as_ref(), &metabox, &mut image)?
            }
        };
        let metadata_len = image.len() - metadata_start;
        report(progress, Phase::Metadata, metadata_len, metadata_len)?;

        image.pad(options.block_size() * u64::from(options.layout.blocks_multiple))?;
        if image.len() / options.block_size() > UNIFIED_BLOCK && !tree.devices().is_empty() {
            return Err(Error::Layout("the image is too large for one with a base: use larger blocks".into()));
        }
        let described = Described {
            options,
            times,
            xattrs: &xattrs,
            blocks: image.len() / options.block_size(),
            blob_blocks: data.blob.as_ref().map(|blob| blob.len() / options.block_size()),
            referred: tree.devices(),
            xattr_block,
            metadata_block,
            metadata: &metadata,
            has_xattrs: order.iter().any(|ordered| !tree.node(ordered.node).xattrs.is_empty()),
            has_chunks: data.files.iter().any(|file| matches!(file, DataLocation::Chunked(_))),
            data_digest: data.digest,
        };
        let superblock = described.superblock();
        if let Some(launch) = launch {
            // The list follows the last block. Other readers ignore these bytes.
            image.append(&launch_list(&launch.ranges(&metadata.nids)))?;
            image.append(&launch_profile(launch.profile.to_text().as_bytes()))?;
        }
        image.pad(options.block_size())?;
        image.put_head(&superblock_bytes(&superblock))?;
        let mut seen = SeenBlocks::default();
        let usage = |place: usize| data.usage(place, tree.content(&order[place]), options.block_size(), &mut seen);
        let types = if options.lists_types { TypeUsage::of_tree(tree, order, usage) } else { Vec::new() };
        Ok(CompleteLayout {
            types,
            uuid: superblock.uuid,
            xattrs: StoredXattrs::Erofs(xattrs),
            pieces: data.pieces,
            inode_count: metadata.inode_count,
            data_bytes: metadata_start - data_start,
            metadata_bytes: image.len() - metadata_start,
            packed_bytes: packed.map_or(0, |packed| packed.size),
            duplicate_bytes: data.duplicate_bytes,
            squashfs: None,
            image,
            blob: data.blob,
        })
    }

    fn metadata_plan<'p>(&'p self, tree: &'p Tree, order: &'p [OrderedNode]) -> MetadataPlan<'p> {
        MetadataPlan {
            tree,
            order,
            files: &self.data.files,
            extents: self.data.extents(),
            inlines: self.data.inlines(),
            directories: &self.directories,
            xattrs: &self.xattrs,
            options: self.options,
            rules: self.times.inode_rules(self.options),
        }
    }
}

fn block_number(image: &ImageFile, options: &Options) -> Result<u32> {
    let too_large = "the image has more than 4294967295 blocks: use larger blocks or the 48-bit layout";
    u32::try_from(image.len() / options.block_size()).map_err(|_| Error::Layout(too_large.into()))
}
