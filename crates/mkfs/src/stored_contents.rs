//! Reads the sources after they were listed, and stores their content in the image.

use floe_erofs::{
    AlgorithmConfiguration, format,
    write::{Device, InodeRules, SuperBlockRecord, superblock_len},
};
use floe_image::Timestamp;

use crate::{
    content::Content,
    data::{Contents, DataStore, StoredData},
    duplicates::duplicates,
    error::Result,
    hints::coding_numbers,
    image_file::ImageFile,
    kinds::kinds,
    launch::Launch,
    layout::Metabox,
    metadata::{BoxedInodes, MetadataPlan},
    options::{Options, Times},
    progress::Progress,
    segment::inline_len_max,
    stored_file::{StoredFile, StoredInode},
    tree::{Body, Tree, Visit},
    xattrs::XattrTable,
};

/// The content of all files in the image, and the data around it.
pub(crate) struct StoredContents<'a> {
    pub(crate) xattrs: XattrTable,
    /// The index of an earlier file with the same content, in image order.
    pub(crate) same: Vec<Option<usize>>,
    pub(crate) image: ImageFile,
    pub(crate) record: SuperBlockRecord,
    pub(crate) rules: InodeRules,
    pub(crate) launch: Option<Launch<'a>>,
    /// The offset of the content in the image.
    pub(crate) data_start: u64,
    /// The storage of each file in image order; [`StoredFile::EMPTY`] for other nodes.
    pub(crate) files: Vec<StoredFile>,
    /// The offsets of directories in the packed inode, in image order; empty if they are not in it.
    pub(crate) directories: Vec<u64>,
    pub(crate) packed: Option<StoredInode>,
    /// The inodes in the metabox, and the storage of the metabox.
    pub(crate) boxed: Option<(BoxedInodes, StoredInode)>,
    pub(crate) stored: StoredData,
}

impl<'a> StoredContents<'a> {
    /// Reads the sources after they were listed, and stores their content.
    pub(crate) fn new(
        tree: &Tree,
        visits: &[Visit],
        options: &'a Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let xattrs = XattrTable::new(tree, visits, &options.xattrs)?;
        let contents: Vec<Option<&Content>> = visits.iter().map(|visit| tree.content(visit)).collect();
        let same =
            if options.shares_files() { duplicates(&contents, options, progress)? } else { vec![None; contents.len()] };

        let mut image = ImageFile::create(&options.output, options.layout.offset, &options.temporaries)?;
        let (epoch, build_time) = times(tree, visits, options)?;
        let mut record = superblock(options, epoch, build_time);
        // The nid of the inode is not known yet.
        let has_metabox = options.layout.metabox != Metabox::None;
        record.metabox_nid = has_metabox.then_some(0);
        // The head is written last; its length does not depend on its contents.
        record.devices.extend(options.blob_device.iter().map(|_| Device {
            tag: Vec::new(),
            blocks: 0,
            unified_block: 0,
        }));
        record.long_prefixes = xattrs.long_prefixes().to_vec();
        image.append(&vec![0; usize::try_from(superblock_len(&record)).unwrap_or(0)])?;
        image.pad(options.block_size())?;
        let data_start = image.len();
        let launch = options.profile.as_ref().map(|profile| Launch::new(profile, tree, visits));
        let ranks = launch.as_ref().map(|launch| launch.ranks(&same));
        let mut kinds = kinds(tree, visits);
        if let Some(ranks) = &ranks {
            // Files that a launch reads keep their order.
            let ranked = kinds.iter_mut().zip(ranks).filter(|(_, rank)| **rank != usize::MAX);
            ranked.for_each(|(kind, _)| *kind = 0);
        }
        let codings = coding_numbers(tree, visits, options)?;
        let to_store = Contents { files: &contents, same: &same, ranks: ranks.as_deref(), codings: &codings };
        let mut data = DataStore::new(&mut image, options, &kinds)?;
        let mut files = data.store_files(&to_store, progress)?;
        put_links(tree, visits, &mut files, options, data.image())?;

        let rules = InodeRules { epoch, wide: options.wide, form: options.inode_form };
        let plan = MetadataPlan { tree, visits, files: &files, directories: &[], xattrs: &xattrs, options, rules };
        let mut directories = Vec::new();
        if options.layout.packs_directories {
            for content in plan.directory_contents(has_metabox)? {
                directories.push(if content.is_empty() { 0 } else { data.pack(&content)? });
            }
        }
        let packed = data.store_packed(&mut files, progress)?;
        let boxed = match options.layout.metabox {
            Metabox::None => None,
            Metabox::Inode(coding) => {
                let (files, directories) = (&files, &directories);
                let plan = MetadataPlan { tree, visits, files, directories, xattrs: &xattrs, options, rules };
                let boxed = plan.write_boxed(data.image())?;
                let metabox = data.store_metabox(&boxed.bytes, coding, progress)?;
                Some((boxed, metabox))
            }
        };
        let stored = data.finish();
        Ok(Self { xattrs, same, image, record, rules, launch, data_start, files, directories, packed, boxed, stored })
    }
}

/// The epoch of compact inodes, and the build time in seconds after it.
fn times(tree: &Tree, visits: &[Visit], options: &Options) -> Result<(Timestamp, u32)> {
    let own = || visits.iter().map(|visit| tree.node(visit.node).metadata.modified);
    let built = match options.times {
        Times::Own => own().max().unwrap_or_default(),
        Times::OwnBuiltAt(seconds) | Times::All(seconds) | Times::AtMost(seconds) => {
            Timestamp { seconds, nanoseconds: 0 }
        }
    };
    if !options.wide {
        return Ok((built, 0));
    }
    let first = own().map(|own| options.times.apply(own).seconds).min().unwrap_or(built.seconds);
    let seconds = first.clamp(built.seconds.saturating_sub(i64::from(u32::MAX)), built.seconds);
    let build_time = u32::try_from(built.seconds - seconds).unwrap_or(u32::MAX);
    Ok((Timestamp { seconds, nanoseconds: 0 }, build_time))
}

fn superblock(options: &Options, epoch: Timestamp, build_time: u32) -> SuperBlockRecord {
    let mut volume_name = [0; 16];
    volume_name[..options.volume_name.len()].copy_from_slice(&options.volume_name);
    let mut feature_incompat = 0;
    let configurations = options.configurations();
    if !configurations.is_empty() {
        feature_incompat |= format::FEATURE_INCOMPAT_ZERO_PADDING;
    }
    let is_other = |configuration: &AlgorithmConfiguration| configuration.algorithm != format::COMPRESSION_LZ4;
    if options.is_big() || configurations.iter().any(is_other) {
        feature_incompat |= format::FEATURE_INCOMPAT_COMPR_CFGS;
    }
    if options.wide {
        feature_incompat |= format::FEATURE_INCOMPAT_48BIT;
    }
    SuperBlockRecord {
        feature_compat: format::FEATURE_COMPAT_MTIME,
        feature_incompat,
        block_size_log2: options.block_size_log2,
        root_nid: 0,
        inode_count: 0,
        epoch,
        build_time,
        blocks: 0,
        metadata_block: 0,
        xattr_block: 0,
        uuid: [0; 16],
        volume_name,
        configurations,
        devices: Vec::new(),
        long_prefixes: Vec::new(),
        packed_nid: 0,
        metabox_nid: None,
        checksum: options.layout.checksum,
    }
}

/// Stores the targets of symbolic links that are too long to be inline.
fn put_links(
    tree: &Tree,
    visits: &[Visit],
    files: &mut [StoredFile],
    options: &Options,
    image: &mut ImageFile,
) -> Result<()> {
    for (visit, file) in visits.iter().zip(files) {
        let Body::Symlink(target) = &tree.node(visit.node).body else { continue };
        let tail_len = target.len() % options.block_len();
        let inline = tail_len <= inline_len_max(options.block_len());
        let (blocks, tail) = target.split_at(if inline { target.len() - tail_len } else { target.len() });
        let start_block = (!blocks.is_empty()).then_some(image.len() / options.block_size());
        image.append(blocks)?;
        image.pad(options.block_size())?;
        *file = StoredFile::Flat { start_block, inline: tail.to_vec() };
    }
    Ok(())
}
