//! The superblock, the algorithm configurations and the device table (docs/format/erofs.md, Superblock).

use floe_image::Timestamp;

use super::{LongPrefix, high_u16, low_u32, xattr::long_prefix_bytes};
use crate::{
    algorithm::AlgorithmConfiguration,
    format::{self, DeviceSlot, SuperBlock, SuperBlockExtension},
};

/// An extra device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The identification of the device; cut to 64 bytes.
    pub tag: Vec<u8>,
    /// The number of blocks.
    pub blocks: u64,
    /// The device's first block in the unified address space; 0 if it is not mapped there.
    pub unified_block: u64,
}

/// The fields of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuperBlockRecord {
    /// The `FEATURE_COMPAT_` bits except those of the checksum and of fingerprints.
    pub feature_compat: u32,
    /// The `FEATURE_INCOMPAT_` bits, including those for the configurations and the device table if there are any.
    pub feature_incompat: u32,
    /// log2 of the block size.
    pub block_size_log2: u8,
    /// The nid of the root; without 48BIT at most 65,535.
    pub root_nid: u64,
    /// The number of inodes.
    pub inode_count: u64,
    /// The base of compact inodes' timestamps.
    pub epoch: Timestamp,
    /// The build time in seconds after `epoch`.
    pub build_time: u32,
    /// The number of blocks.
    pub blocks: u64,
    /// The first block of the metadata area.
    pub metadata_block: u32,
    /// The first block of the shared xattrs.
    pub xattr_block: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume label.
    pub volume_name: [u8; 16],
    /// The configurations in the order of the algorithm numbers.
    pub configurations: Vec<AlgorithmConfiguration>,
    /// The extra devices.
    pub devices: Vec<Device>,
    /// The long xattr prefixes, at most 255; they follow the device table.
    pub long_prefixes: Vec<LongPrefix>,
    /// The number of the long prefix of the fingerprint xattr, if files have one.
    pub fingerprint_prefix: Option<u8>,
    /// The nid of the packed inode; 0 if there is none.
    pub packed_nid: u64,
    /// The nid of the metabox inode, if the image has the METABOX feature.
    pub metabox_nid: Option<u64>,
    /// Whether to write a checksum.
    pub checksum: bool,
}

/// The end of the superblock, the configurations, the device table and the long prefixes, in bytes from the beginning
/// of the image.
pub fn superblock_len(record: &SuperBlockRecord) -> u64 {
    long_prefixes_start(record) + len_u64(long_prefix_bytes(&record.long_prefixes).len())
}

/// The beginning of the image up to [`superblock_len`], with the checksum of the superblock's block.
pub fn superblock_bytes(record: &SuperBlockRecord) -> Vec<u8> {
    let wide = record.feature_incompat & format::FEATURE_INCOMPAT_48BIT != 0;
    let has_configurations = record.feature_incompat & format::FEATURE_INCOMPAT_COMPR_CFGS != 0;
    let u1 = if has_configurations {
        record.configurations.iter().fold(0, |bits, configuration| bits | 1 << configuration.algorithm)
    } else {
        let lz4 = record.configurations.first().filter(|first| first.algorithm == format::COMPRESSION_LZ4);
        lz4.map_or(0, |lz4| u16::try_from(lz4.window_bytes).unwrap_or(u16::MAX))
    };
    let mut raw = SuperBlock {
        magic: format::SUPER_MAGIC_V1,
        checksum: 0,
        feature_compat: record.feature_compat,
        blkszbits: record.block_size_log2,
        sb_extslots: u8::try_from(extension_len(record) / SuperBlockExtension::SIZE).unwrap_or(0),
        rb: if wide { high_u16(record.blocks) } else { u16::try_from(record.root_nid).unwrap_or(u16::MAX) },
        inos: record.inode_count,
        epoch: record.epoch.seconds.cast_unsigned(),
        fixed_nsec: record.epoch.nanoseconds,
        blocks_lo: low_u32(record.blocks),
        meta_blkaddr: record.metadata_block,
        xattr_blkaddr: record.xattr_block,
        uuid: record.uuid,
        volume_name: record.volume_name,
        feature_incompat: record.feature_incompat,
        u1,
        extra_devices: u16::try_from(record.devices.len()).unwrap_or(u16::MAX),
        devt_slotoff: 0,
        dirblkbits: 0,
        xattr_prefix_count: u8::try_from(record.long_prefixes.len()).unwrap_or(u8::MAX),
        xattr_prefix_start: if record.long_prefixes.is_empty() { 0 } else { low_u32(long_prefixes_start(record) / 4) },
        packed_nid: record.packed_nid,
        ishare_xattr_prefix_id: record.fingerprint_prefix.unwrap_or(0),
        build_time: record.build_time,
        rootnid_8b: if wide { record.root_nid } else { 0 },
        ..SuperBlock::default()
    };
    if !record.devices.is_empty() {
        let slot = device_table_start(record) / len_u64(DeviceSlot::SIZE);
        raw.devt_slotoff = u16::try_from(slot).unwrap_or(u16::MAX);
    }
    if record.fingerprint_prefix.is_some() {
        raw.feature_compat |= format::FEATURE_COMPAT_ISHARE_XATTRS;
    }
    if record.checksum {
        raw.feature_compat |= format::FEATURE_COMPAT_SB_CHKSUM;
    }
    let mut tail = Vec::new();
    if let Some(metabox_nid) = record.metabox_nid {
        tail.extend(SuperBlockExtension { metabox_nid, reserved: 0 }.to_bytes());
    }
    if has_configurations {
        for configuration in &record.configurations {
            let bytes = configuration.record();
            tail.extend(u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes());
            tail.extend(bytes);
        }
    }
    if !record.devices.is_empty() {
        let start = device_table_start(record) - format::SUPER_OFFSET - len_u64(SuperBlock::SIZE);
        tail.resize(usize::try_from(start).unwrap_or(0), 0);
        tail.extend(record.devices.iter().flat_map(device_slot));
    }
    if !record.long_prefixes.is_empty() {
        let start = long_prefixes_start(record) - format::SUPER_OFFSET - len_u64(SuperBlock::SIZE);
        tail.resize(usize::try_from(start).unwrap_or(0), 0);
        tail.extend(long_prefix_bytes(&record.long_prefixes));
    }
    let with = |raw: &SuperBlock| [raw.to_bytes().as_slice(), &tail].concat();
    if record.checksum {
        let mut summed = with(&raw);
        summed.resize(checksummed_len(record.block_size_log2), 0);
        // The format omits the final inversion of crc32c.
        raw.checksum = !crc32c::crc32c(&summed);
    }
    let mut bytes = vec![0; usize::try_from(format::SUPER_OFFSET).unwrap_or(0)];
    bytes.extend(with(&raw));
    bytes
}

/// How many bytes from the superblock's beginning the checksum covers. Unwritten bytes among them are zero.
fn checksummed_len(block_size_log2: u8) -> usize {
    let block_size = 1u64 << block_size_log2;
    let len = if block_size > format::SUPER_OFFSET { block_size - format::SUPER_OFFSET } else { block_size };
    usize::try_from(len).unwrap_or(0)
}

/// The length of the superblock's extension.
fn extension_len(record: &SuperBlockRecord) -> usize {
    record.metabox_nid.map_or(0, |_| SuperBlockExtension::SIZE)
}

fn device_table_start(record: &SuperBlockRecord) -> u64 {
    let has_configurations = record.feature_incompat & format::FEATURE_INCOMPAT_COMPR_CFGS != 0;
    let configurations = record.configurations.iter().filter(|_| has_configurations);
    let len: usize = configurations.map(|configuration| configuration.record().len() + 2).sum();
    let end = format::SUPER_OFFSET + len_u64(SuperBlock::SIZE + extension_len(record) + len);
    if record.devices.is_empty() { end } else { end.next_multiple_of(len_u64(DeviceSlot::SIZE)) }
}

fn long_prefixes_start(record: &SuperBlockRecord) -> u64 {
    let devices_len = len_u64(DeviceSlot::SIZE) * len_u64(record.devices.len());
    (device_table_start(record) + devices_len).next_multiple_of(4)
}

fn device_slot(device: &Device) -> [u8; DeviceSlot::SIZE] {
    let mut tag = [0; 64];
    for (byte, given) in tag.iter_mut().zip(&device.tag) {
        *byte = *given;
    }
    DeviceSlot {
        tag,
        blocks_lo: low_u32(device.blocks),
        uniaddr_lo: low_u32(device.unified_block),
        blocks_hi: high_u16(device.blocks),
        uniaddr_hi: high_u16(device.unified_block),
        reserved: [0; 52],
    }
    .to_bytes()
}

fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
