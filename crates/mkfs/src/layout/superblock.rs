//! The superblock of an image, from the options and from everything else in the image.

use std::collections::BTreeMap;

use floe_erofs::{
    AlgorithmConfiguration, format,
    write::{Device, InodeRules, SuperBlockRecord, superblock_bytes, superblock_len},
};
use floe_image::Timestamp;
use sha2::{Digest, Sha256};

use super::{metadata::MetadataArea, xattr_table::XattrTable};
use crate::{
    options::{Metabox, Options, Times},
    tree::{OrderedNode, ReferredDevice, Tree, content::referral::UNIFIED_BLOCK},
};

/// The times of an image.
#[derive(Clone, Copy)]
pub(crate) struct ImageTimes {
    /// The time of compact inodes, or the base of their times.
    pub(crate) epoch: Timestamp,
    /// The build time in seconds after the epoch.
    build_time: u32,
}

/// What a superblock describes.
pub(crate) struct Described<'a> {
    pub(crate) options: &'a Options,
    pub(crate) times: ImageTimes,
    pub(crate) xattrs: &'a XattrTable,
    /// The number of blocks of the image, and of the blob device if there is one.
    pub(crate) blocks: u64,
    pub(crate) blob_blocks: Option<u64>,
    /// The sources that are extra devices.
    pub(crate) referred: &'a [ReferredDevice],
    /// The block of the shared xattrs.
    pub(crate) xattr_block: u32,
    /// The block at which the metadata area starts.
    pub(crate) metadata_block: u32,
    pub(crate) metadata: &'a MetadataArea,
    /// Whether any inode has xattrs.
    pub(crate) has_xattrs: bool,
    /// Whether any file is stored in chunks.
    pub(crate) has_chunks: bool,
    /// A digest of the data.
    pub(crate) data_digest: [u8; 32],
}

impl ImageTimes {
    /// The times of an image of this tree.
    pub(crate) fn new(tree: &Tree, order: &[OrderedNode], options: &Options) -> Self {
        let own = || order.iter().map(|ordered| tree.node(ordered.node).metadata.modified);
        let built = match options.times {
            Times::Own => own().max().unwrap_or_default(),
            Times::OwnBuiltAt(seconds) | Times::All(seconds) | Times::AtMost(seconds) => {
                Timestamp { seconds, nanoseconds: 0 }
            }
        };
        if !options.wide {
            return Self { epoch: built, build_time: 0 };
        }
        let first = own().map(|own| options.times.apply(own).seconds).min().unwrap_or(built.seconds);
        let seconds = first.clamp(built.seconds.saturating_sub(i64::from(u32::MAX)), built.seconds);
        let build_time = u32::try_from(built.seconds - seconds).unwrap_or(u32::MAX);
        Self { epoch: Timestamp { seconds, nanoseconds: 0 }, build_time }
    }

    /// The rules by which inodes are written.
    pub(crate) fn inode_rules(&self, options: &Options) -> InodeRules {
        InodeRules { epoch: self.epoch, wide: options.wide, form: options.inode_form }
    }
}

/// The length of the superblock and of what follows it, in bytes from the beginning of the image. It does not depend on
/// the content of the image.
pub(crate) fn head_len(options: &Options, times: ImageTimes, xattrs: &XattrTable, referred: &[ReferredDevice]) -> u64 {
    let metabox_nid = (options.layout.metabox != Metabox::None).then_some(0);
    let described = Described {
        options,
        times,
        xattrs,
        blocks: 0,
        blob_blocks: options.blob_device.as_ref().map(|_| 0),
        referred,
        xattr_block: 0,
        metadata_block: 0,
        metadata: &MetadataArea { metabox_nid, ..MetadataArea::default() },
        has_xattrs: false,
        has_chunks: false,
        data_digest: [0; 32],
    };
    superblock_len(&described.superblock())
}

impl Described<'_> {
    /// The superblock.
    pub(crate) fn superblock(&self) -> SuperBlockRecord {
        let Self { options, metadata, .. } = self;
        let mut volume_name = [0; 16];
        volume_name[..options.volume_name.len()].copy_from_slice(&options.volume_name);
        let path = options.blob_device.as_ref();
        let tag = path.and_then(|path| path.file_name()).map(|name| name.as_encoded_bytes().to_vec());
        let blob = |blocks| Device { tag: tag.unwrap_or_default(), blocks, unified_block: 0 };
        let referred = self.referred.iter().map(|device| Device {
            tag: device.tag.clone(),
            blocks: device.len.div_ceil(options.block_size()),
            unified_block: if device.configurations.is_empty() { 0 } else { UNIFIED_BLOCK },
        });
        let mut record = SuperBlockRecord {
            feature_compat: self.feature_compat(),
            feature_incompat: self.feature_incompat(),
            block_size_log2: options.block_size_log2,
            root_nid: metadata.root_nid,
            inode_count: metadata.inode_count,
            epoch: self.times.epoch,
            build_time: self.times.build_time,
            blocks: self.blocks,
            metadata_block: self.metadata_block,
            xattr_block: self.xattr_block,
            uuid: [0; 16],
            volume_name,
            configurations: self.configurations(),
            devices: self.blob_blocks.map(blob).into_iter().chain(referred).collect(),
            long_prefixes: self.xattrs.long_prefixes().to_vec(),
            fingerprint_prefix: options.xattrs.fingerprint_prefix(),
            packed_nid: metadata.packed_nid,
            metabox_nid: metadata.metabox_nid,
            checksum: options.layout.checksum,
        };
        record.uuid = options.uuid.unwrap_or_else(|| content_uuid(&record, &self.data_digest, &metadata.digest));
        record
    }

    /// The configurations of all pclusters: those of the image, and those on extra devices.
    fn configurations(&self) -> Vec<AlgorithmConfiguration> {
        let on_devices = self.referred.iter().flat_map(|device| device.configurations.iter().copied());
        let mut joined = BTreeMap::new();
        for configuration in self.options.configurations().into_iter().chain(on_devices) {
            let known = joined.entry(configuration.algorithm).or_insert(configuration);
            *known = known.covering(configuration);
        }
        joined.into_values().collect()
    }

    fn feature_compat(&self) -> u32 {
        let Self { metadata, xattrs, .. } = self;
        let has_special_inodes = metadata.packed_nid != 0 || metadata.metabox_nid.is_some();
        format::FEATURE_COMPAT_MTIME
            | bit(format::FEATURE_COMPAT_XATTR_FILTER, self.options.xattrs.filter && self.has_xattrs)
            | bit(format::FEATURE_COMPAT_PLAIN_XATTR_PFX, !xattrs.long_prefixes().is_empty() && has_special_inodes)
    }

    fn feature_incompat(&self) -> u32 {
        let Self { options, metadata, .. } = self;
        let configurations = self.configurations();
        let has_partial = self.referred.iter().any(|device| device.has_partial_pclusters);
        let is_big = |configuration: &AlgorithmConfiguration| configuration.pcluster_blocks_max > 1;
        let is_other = |configuration: &AlgorithmConfiguration| configuration.algorithm != format::COMPRESSION_LZ4;
        let has_configurations = options.is_big() || configurations.iter().any(|one| is_other(one) || is_big(one));
        bit(format::FEATURE_INCOMPAT_ZERO_PADDING, !configurations.is_empty())
            | bit(format::FEATURE_INCOMPAT_COMPR_CFGS, has_configurations)
            | bit(format::FEATURE_INCOMPAT_48BIT, options.wide)
            | bit(format::FEATURE_INCOMPAT_CHUNKED_FILE, options.chunk_bytes.is_some() || self.has_chunks)
            | bit(format::FEATURE_INCOMPAT_DEVICE_TABLE, options.blob_device.is_some() || !self.referred.is_empty())
            | bit(format::FEATURE_INCOMPAT_ZTAILPACKING, metadata.has_inline_pclusters)
            | bit(format::FEATURE_INCOMPAT_FRAGMENTS, metadata.packed_nid != 0)
            | bit(format::FEATURE_INCOMPAT_METABOX, metadata.metabox_nid.is_some())
            | bit(format::FEATURE_INCOMPAT_DEDUPE, has_partial || options.dedupe && !options.codings().is_empty())
            | bit(format::FEATURE_INCOMPAT_XATTR_PREFIXES, !self.xattrs.long_prefixes().is_empty())
    }
}

/// A feature bit, if the image has the feature.
fn bit(feature: u32, is_present: bool) -> u32 {
    if is_present { feature } else { 0 }
}

/// A UUID (version 8, custom) derived from the content of the image.
fn content_uuid(record: &SuperBlockRecord, data: &[u8; 32], metadata: &[u8; 32]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    hasher.update(superblock_bytes(record));
    hasher.update(data);
    hasher.update(metadata);
    let digest: [u8; 32] = hasher.finalize().into();
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
