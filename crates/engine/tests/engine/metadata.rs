//! Metadata that many small or overlapping blocks hold.

use std::sync::Arc;

use floe_engine::{Blocking, EngineOptions, Volume, VolumeOptions};
use floe_image::{DecodedLen, DeviceId, Encoding, ImageSource, StoredBlock, StoredLen};
use floe_testkit::MemorySource;

fn volume(image: Vec<u8>) -> Arc<Volume> {
    let sources: Vec<Arc<dyn ImageSource>> = vec![Arc::new(MemorySource::new(image))];
    Volume::alone(sources, &EngineOptions::default(), &VolumeOptions::default()).expect("an engine")
}

#[test]
fn tiny_blocks_count_for_the_memory_that_they_take() {
    const COUNT: u64 = 200_000;
    // Each block takes three bytes: its length, with the mark of stored bytes, and one byte.
    let image: Vec<u8> = (0..COUNT).flat_map(|number| [1, 0x80, number as u8]).collect();
    let volume = volume(image);
    let reader = volume.block_reader(Blocking::Allowed);
    for number in 0..COUNT {
        let block = StoredBlock {
            device: DeviceId(0),
            offset: number * 3,
            stored_len: StoredLen::Prefixed,
            decoded_len: DecodedLen::AtMost(8192),
            encoding: Encoding::Stored,
        };
        assert_eq!(*reader.decoded(&block).expect("a sound block").bytes, [number as u8]);
    }
    let counters = volume.counters().decoded_metadata;
    assert!(counters.evictions > 0 && counters.weight <= counters.weight_max, "{counters:?}");
}

#[test]
fn the_longest_part_of_a_block_is_kept() {
    const LEN: u32 = 1 << 20;
    let image: Vec<u8> = (0..LEN).map(|index| (index >> 3) as u8).collect();
    let volume = volume(image.clone());
    let reader = volume.block_reader(Blocking::Allowed);
    for len in [50, LEN, 4096, LEN - 1, 50, LEN] {
        let block = StoredBlock {
            device: DeviceId(0),
            offset: 0,
            stored_len: StoredLen::Known(LEN),
            decoded_len: DecodedLen::AtLeast(len),
            encoding: Encoding::Stored,
        };
        assert_eq!(*reader.decoded(&block).expect("a sound block").bytes, image[..len as usize]);
    }
    assert_eq!(volume.counters().decoded_metadata.misses, 2, "it is decoded for 50 bytes, and for all");
}
