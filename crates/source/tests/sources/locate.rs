//! Finds file systems in files that have other content too.

use std::io::Write;

use floe_image::ImageSource;
use floe_source::{FileSource, ImageFormat, Location, SCAN_ALIGNMENT, SCAN_BYTES_MAX, locate};
use floe_testkit::{
    MemorySource,
    corpus::{Corpus, Format},
};
use proptest::prelude::*;

fn squashfs() -> Vec<u8> {
    let mut image = vec![0; 4096];
    image[..4].copy_from_slice(b"hsqs");
    image[12..16].copy_from_slice(&(1_u32 << 17).to_le_bytes());
    image[22..24].copy_from_slice(&17_u16.to_le_bytes());
    image[28..30].copy_from_slice(&4_u16.to_le_bytes());
    image[40..48].copy_from_slice(&3000_u64.to_le_bytes());
    image
}

fn erofs() -> Vec<u8> {
    let mut image = vec![0; 4096];
    image[1024..1028].copy_from_slice(&0xe0f5_e1e2_u32.to_le_bytes());
    image[1024 + 12] = 12;
    image
}

/// An ELF program whose last section ends at `end` according to its headers.
fn program(end: usize, is_64_bit: bool, is_big_endian: bool) -> Vec<u8> {
    let mut bytes = vec![0xcc; end];
    let mut put = |offset: usize, len: usize, value: u64| {
        let mut field = value.to_le_bytes();
        field[..len].reverse();
        let field = if is_big_endian { field } else { value.to_le_bytes() };
        bytes[offset..offset + len].copy_from_slice(&field[..len]);
    };
    put(0, 1, 0x7f);
    put(1, 1, u64::from(b'E'));
    put(2, 1, u64::from(b'L'));
    put(3, 1, u64::from(b'F'));
    put(4, 1, if is_64_bit { 2 } else { 1 });
    put(5, 1, if is_big_endian { 2 } else { 1 });
    let (table, entry_len) = (128, if is_64_bit { 64 } else { 40 });
    if is_64_bit {
        put(40, 8, table as u64);
        put(58, 2, entry_len as u64);
        put(60, 2, 2);
    } else {
        put(32, 4, table as u64);
        put(46, 2, entry_len as u64);
        put(48, 2, 2);
    }
    // A section with bytes, and a longer one that takes no space.
    for (index, kind, section_end) in [(0, 1, end), (1, 8, end + 100_000)] {
        let entry = table + index * entry_len;
        put(entry + 4, 4, kind);
        let (offset, len, width) = if is_64_bit { (24, 32, 8) } else { (16, 20, 4) };
        put(entry + offset, width, 300);
        put(entry + len, width, section_end as u64 - 300);
    }
    bytes
}

/// A container with partitions of these types and contents; type 0 gives an object that is not a partition.
fn sif(partitions: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    bytes[..30].copy_from_slice(b"#!/usr/bin/env run-singularity");
    bytes[32..45].copy_from_slice(b"SIF_MAGIC\x0001\0");
    bytes[88..96].copy_from_slice(&48_u64.to_le_bytes());
    bytes[96..104].copy_from_slice(&1000_u64.to_le_bytes());
    for (index, (kind, content)) in partitions.iter().enumerate() {
        let descriptor = 1000 + index * 585;
        let data_type: u32 = if *kind == 0 { 0x4001 } else { 0x4004 };
        let offset = bytes.len() as u64;
        bytes[descriptor..descriptor + 4].copy_from_slice(&data_type.to_le_bytes());
        bytes[descriptor + 4] = 1;
        bytes[descriptor + 17..descriptor + 25].copy_from_slice(&offset.to_le_bytes());
        bytes[descriptor + 205..descriptor + 209].copy_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(content);
    }
    bytes
}

fn check(bytes: Vec<u8>, expected: Option<(ImageFormat, u64)>) {
    let expected = expected.map(|(format, offset)| Location { format, offset });
    assert_eq!(locate(&MemorySource::new(bytes)).unwrap(), expected);
}

#[test]
fn at_the_beginning_a_magic_number_is_enough() {
    use ImageFormat::{Erofs, Squashfs};
    check(squashfs(), Some((Squashfs, 0)));
    check(erofs(), Some((Erofs, 0)));
    check(b"hsqs".to_vec(), Some((Squashfs, 0)));
    check(erofs()[..1028].to_vec(), Some((Erofs, 0)));
    check([&b"hsqs"[..], &erofs()[4..]].concat(), Some((Squashfs, 0)));
    check([&b"\x7fELF"[..], &erofs()[4..]].concat(), Some((Erofs, 0)));
    check([&b"HSQS"[..], &[0; 2000], &squashfs()[..96]].concat(), Some((Squashfs, 0)));
    check([&b"HSQS"[..], &[0; 2000], &[0; 96]].concat(), None);
    for len in [0, 1, 3, 95, 96, 1027] {
        check(erofs()[..len].to_vec(), None);
    }
}

#[test]
fn an_appimages_file_system_follows_its_program() {
    for (is_64_bit, is_big_endian) in [(true, false), (true, true), (false, false), (false, true)] {
        for end in [1000, 4097, 188_392] {
            for (image, format) in [(squashfs(), ImageFormat::Squashfs), (erofs(), ImageFormat::Erofs)] {
                let mut bytes = program(end, is_64_bit, is_big_endian);
                bytes.extend_from_slice(&image);
                check(bytes, Some((format, end as u64)));
            }
        }
    }
    // A program that ends elsewhere is scanned.
    let mut bytes = program(1000, true, false);
    bytes.resize(4096, 0xcc);
    bytes.extend_from_slice(&squashfs());
    check(bytes, Some((ImageFormat::Squashfs, 4096)));
    check(program(1000, true, false), None);
    check(b"\x7fELF\x02\x01".to_vec(), None);
}

#[test]
fn a_container_names_its_partitions() {
    use ImageFormat::{Erofs, Squashfs};
    let (squashfs, erofs) = (squashfs(), erofs());
    check(sif(&[(0, b"definition"), (2, &squashfs)]), Some((Squashfs, 8202)));
    check(sif(&[(0, &erofs), (3, &erofs), (2, &squashfs)]), Some((Squashfs, 8192 + 8192)));
    check(sif(&[(0, b"definition"), (1, &erofs)]), Some((Erofs, 8202)));
    check(sif(&[(2, b"encrypted")]), None);
    let mut broken = sif(&[(2, &squashfs)]);
    broken[88..104].fill(0xff);
    check(broken, Some((Squashfs, 8192)));
}

#[test]
fn other_files_are_scanned() {
    use ImageFormat::{Erofs, Squashfs};
    let at = |offset: usize, image: &[u8]| [&vec![0x11; offset], image].concat();
    for offset in [512, 4096, (1 << 20) - 512, 1 << 20, (1 << 20) + 512, (3 << 20) - 1024] {
        check(at(offset, &squashfs()), Some((Squashfs, offset as u64)));
        check(at(offset, &erofs()), Some((Erofs, offset as u64)));
        check(at(offset + 1, &squashfs()), None);
    }
    // A magic number that occurs by chance.
    check([at(512, b"hsqs"), at(508, &squashfs())].concat(), Some((Squashfs, 1024)));
    let mut cut = squashfs();
    cut.truncate(2999);
    check(at(512, &cut), None);
    check(at(512, &erofs()[..1024 + 127]), None);
    assert!(SCAN_BYTES_MAX.is_multiple_of(SCAN_ALIGNMENT));
}

#[test]
fn the_search_has_an_end() {
    for (offset, is_found) in [(SCAN_BYTES_MAX - 512, true), (SCAN_BYTES_MAX, false)] {
        let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.set_len(offset).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(offset)).unwrap();
        file.write_all(&squashfs()).unwrap();
        let source = FileSource::new(file, 0, None).unwrap();
        let expected = is_found.then_some(Location { format: ImageFormat::Squashfs, offset });
        assert_eq!(locate(&source).unwrap(), expected);
    }
}

#[test]
fn corpus_images_are_found_at_their_offsets() {
    let corpus = Corpus::locate_or_fixtures();
    for image in corpus.sample() {
        let bytes = corpus.bytes(&image.image);
        let format = match image.format {
            Format::Erofs => ImageFormat::Erofs,
            Format::Squashfs => ImageFormat::Squashfs,
        };
        let found = locate(&MemorySource::new(bytes)).unwrap();
        assert_eq!(found, Some(Location { format, offset: image.offset }), "{}", image.name);
    }
}

proptest! {
    #[test]
    fn any_bytes_give_a_location_or_none(
        start in prop_oneof![Just(program(600, true, false)), Just(program(600, false, true)), Just(sif(&[(2, b"x")])), Just(erofs())],
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..30), len in any::<prop::sample::Index>(),
    ) {
        let mut bytes = start;
        for (index, byte) in edits {
            let index = index.index(bytes.len().min(2000));
            bytes[index] = byte;
        }
        bytes.truncate(len.index(bytes.len() + 1));
        let source = MemorySource::new(bytes);
        if let Some(location) = locate(&source).unwrap() {
            prop_assert!(location.offset <= source.len());
        }
    }
}
