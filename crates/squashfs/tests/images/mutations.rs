//! Images with arbitrary changed bytes never make the reader panic, hang or contradict itself.

use std::{sync::LazyLock, time::Duration};

use floe_squashfs::{Squashfs, check, dump};
use floe_testkit::{corpus::Corpus, thread_cpu_time};
use proptest::prelude::*;

use crate::memo_reader::MemoReader;

/// Small images with uncompressed metadata, so that changes reach the parsers.
static IMAGES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let corpus = Corpus::fixtures();
    let names = ["sqfs-cbase-noI", "sqfs-cbase-zstd-noI", "sqfs-tiny"];
    names.map(|name| corpus.bytes(&corpus.image(name).image)).into()
});

/// A generous limit for all requests on an image of 40 KiB, in CPU time.
const CPU_TIME_MAX: Duration = Duration::from_secs(20);

fn ask_everything(bytes: Vec<u8>) {
    let began = thread_cpu_time();
    let reader = MemoReader::of(bytes);
    if let Ok(squashfs) = Squashfs::open(reader.clone()) {
        let errors = crate::read_all::errors(&reader, &squashfs);
        let summary = check::run(&squashfs, &mut |_| {}, &mut |_| {}, &|| false);
        assert!(summary.inode_count <= u64::from(squashfs.superblock().inode_count) * 256 + 100_000);
        if errors.iter().any(|error| error.contains(crate::read_all::LISTED_AND_NOT_FOUND)) {
            assert!(summary.error_count > 0, "a check finds why: {errors:?}");
        }
        let _ = dump::describe_image(&squashfs).to_string();
        let _ = dump::count(&squashfs).map(|statistics| statistics.to_string());
    }
    assert!(thread_cpu_time() - began < CPU_TIME_MAX, "{:?}", thread_cpu_time() - began);
}

/// The start of the metadata, where changes matter most.
fn metadata_start(image: &[u8]) -> usize {
    let start = image[64..72].try_into().map(u64::from_le_bytes).expect("eight bytes");
    usize::try_from(start).expect("within the image")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes(which in 0..3_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![0_u8, 1, 2, 3, 7, 0x7f, 0x80, 0xff, b'/'])), 1..6)) {
        let mut image = IMAGES[which].clone();
        let start = metadata_start(&image);
        for (index, byte) in changes {
            let at = start + index.index(image.len() - start);
            image[at] = byte;
        }
        ask_everything(image);
    }

    #[test]
    fn changed_superblocks(which in 0..3_usize, offset in 4..96_usize, bytes in prop::collection::vec(any::<u8>(), 1..8)) {
        let mut image = IMAGES[which].clone();
        let end = (offset + bytes.len()).min(96);
        image[offset..end].copy_from_slice(&bytes[..end - offset]);
        ask_everything(image);
    }

    #[test]
    fn noise_in_place_of_metadata(which in 0..3_usize, start in any::<prop::sample::Index>(), bytes in prop::collection::vec(any::<u8>(), 1..400)) {
        let mut image = IMAGES[which].clone();
        let first = metadata_start(&image);
        let at = first + start.index(image.len() - first);
        let end = (at + bytes.len()).min(image.len());
        image[at..end].copy_from_slice(&bytes[..end - at]);
        ask_everything(image);
    }

    #[test]
    fn nothing_but_noise(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let mut image = bytes;
        if let Some(head) = image.get_mut(..4) {
            head.copy_from_slice(b"hsqs");
        }
        ask_everything(image);
    }
}
