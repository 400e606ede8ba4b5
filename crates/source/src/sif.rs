//! SIF containers (Singularity, Apptainer), version 01.

use std::io;

use floe_image::ImageSource;

/// Offset of the magic number and the version, which follow the line that launches the container.
const MAGIC_OFFSET: usize = 32;
const MAGIC: &[u8; 13] = b"SIF_MAGIC\x0001\0";
const HEADER_LEN: usize = 128;

/// Length of a descriptor in bytes, and the limit of the descriptors that are read.
const DESCRIPTOR_LEN: usize = 585;
const DESCRIPTOR_COUNT_MAX: u64 = 256;

/// Object type of a partition, and partition type of the system to run.
const PARTITION: u32 = 0x4004;
const PRIMARY_SYSTEM: u32 = 2;

/// The offsets of the container's partitions in bytes, the primary system first; empty if the source is not a
/// container.
pub(crate) fn partitions(source: &dyn ImageSource) -> io::Result<Vec<u64>> {
    let mut header = [0; HEADER_LEN];
    if source.len() < header.len() as u64 {
        return Ok(Vec::new());
    }
    source.read_at(0, &mut header)?;
    if !header[MAGIC_OFFSET..].starts_with(MAGIC) {
        return Ok(Vec::new());
    }
    let (count, table) = (u64_at(&header, 88), u64_at(&header, 96));
    let (mut primary, mut others) = (Vec::new(), Vec::new());
    for index in 0..count.min(DESCRIPTOR_COUNT_MAX) {
        let mut descriptor = [0; DESCRIPTOR_LEN];
        let place = table.checked_add(index * DESCRIPTOR_LEN as u64);
        let Some(place) = place.filter(|place| place.saturating_add(DESCRIPTOR_LEN as u64) <= source.len()) else {
            break;
        };
        source.read_at(place, &mut descriptor)?;
        let (kind, is_used, partition_type) = (u32_at(&descriptor, 0), descriptor[4] != 0, u32_at(&descriptor, 205));
        if is_used && kind == PARTITION {
            let list = if partition_type == PRIMARY_SYSTEM { &mut primary } else { &mut others };
            list.push(u64_at(&descriptor, 17));
        }
    }
    primary.append(&mut others);
    Ok(primary)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(field)
}
