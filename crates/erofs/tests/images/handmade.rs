//! Images built byte by byte, for features that no released mkfs.erofs writes.

use std::{ops::ControlFlow, sync::Arc};

use floe_erofs::{
    Erofs,
    dump::{self, ExtentPlace},
    format::{
        self, DeviceSlot, Dirent, Extent, InodeCompact, Lz4Cfgs, MapHeader, SuperBlock, SuperBlockExtension,
        XattrEntry, XattrIbodyHeader,
    },
    write::{DirectoryEntry, directory_bytes},
};
use floe_image::{
    BlockReader, ByteRange, DeviceId, DirectoryCursor, ExtentData, FileSystem, FileType, ImageSource, Nid, SeekTarget,
};
use floe_testkit::{
    CountingSource, DirectReader, MemorySource,
    corpus::Corpus,
    skip::{self, Need},
};

const BLOCK: usize = 4096;
const IN_METABOX: u64 = 1 << format::DIRENT_NID_METABOX_BIT;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// An image with an uncompressed metabox: a shared xattr at byte 0 and a file at byte 64 of it.
fn with_metabox() -> Vec<u8> {
    let mut image = vec![0; 3 * BLOCK];
    let superblock = SuperBlock {
        magic: format::SUPER_MAGIC_V1,
        feature_compat: format::FEATURE_COMPAT_SHARED_EA_IN_METABOX,
        feature_incompat: format::FEATURE_INCOMPAT_METABOX,
        blkszbits: 12,
        sb_extslots: 1,
        rb: 42,
        inos: 3,
        blocks_lo: 3,
        epoch: 1_700_000_000,
        ..SuperBlock::default()
    };
    put(&mut image, 1024, &superblock.to_bytes());
    put(&mut image, 1152, &SuperBlockExtension { metabox_nid: 40, reserved: 0 }.to_bytes());
    let size = u32::try_from(BLOCK).expect("small");
    let metabox = InodeCompact { i_mode: 0o100_600, i_nb: 1, i_size: size, i_u: 1, ..InodeCompact::default() };
    put(&mut image, 40 * 32, &metabox.to_bytes());
    let names = [(".", 42, format::FT_DIR), ("..", 42, format::FT_DIR), ("f", IN_METABOX | 2, format::FT_REG_FILE)];
    let root =
        InodeCompact { i_xattr_icount: 2, i_mode: 0o040_755, i_nb: 2, i_size: 40, i_u: 2, ..InodeCompact::default() };
    put(&mut image, 42 * 32, &root.to_bytes());
    put(&mut image, 43 * 32, &XattrIbodyHeader { h_shared_count: 1, ..XattrIbodyHeader::default() }.to_bytes());
    let mut nameoff = 36;
    for (index, (name, nid, file_type)) in names.into_iter().enumerate() {
        let dirent = Dirent { nid, nameoff, file_type, reserved: 0 };
        put(&mut image, 2 * BLOCK + index * Dirent::SIZE, &dirent.to_bytes());
        put(&mut image, 2 * BLOCK + usize::from(nameoff), name.as_bytes());
        nameoff += u16::try_from(name.len()).expect("short");
    }
    let entry = XattrEntry { e_name_len: 4, e_name_index: format::XATTR_INDEX_USER, e_value_size: 5 };
    put(&mut image, BLOCK, &[&entry.to_bytes()[..], b"notehello"].concat());
    let inline = format::INODE_FLAT_INLINE << format::I_DATALAYOUT_BIT;
    let file = InodeCompact {
        i_format: inline,
        i_mode: 0o100_644,
        i_nb: 1,
        i_size: 11,
        i_mtime: 5,
        ..InodeCompact::default()
    };
    put(&mut image, BLOCK + 64, &[&file.to_bytes()[..], b"inline data"].concat());
    image
}

#[test]
fn shared_xattrs_and_inodes_in_the_metabox_are_read() {
    let reader = Arc::new(DirectReader::of(with_metabox()));
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
    assert_eq!(erofs.xattr_names(erofs.root()).expect("they are read"), [b"user.note"]);
    assert_eq!(erofs.xattr(erofs.root(), b"user.note").expect("it is read").as_deref(), Some(&b"hello"[..]));
    let file = erofs.lookup(erofs.root(), b"f").expect("it is read").expect("it is there");
    assert_eq!(file, Nid(IN_METABOX | 2));
    let attr = erofs.attr(file).expect("it is read");
    assert_eq!((attr.inode_number, attr.size, attr.modified.seconds), (1 << 31 | 2, 11, 1_700_000_005));
    let data = reader.read_file(&erofs, file, ByteRange::new(3, 100)).expect("it is read");
    assert_eq!(data, b"ine data");
    let mut numbers = Vec::new();
    erofs
        .read_dir(erofs.root(), DirectoryCursor::default(), &mut |dirent| {
            numbers.push(dirent.inode_number);
            ControlFlow::Continue(())
        })
        .expect("it is read");
    assert_eq!(numbers, [42, 42, 1 << 31 | 2]);
}

/// The position of the full index of the first compressed file with at least two extents, and its first extent.
fn indexed_file(erofs: &Erofs) -> (Nid, usize, ByteRange) {
    let mut found = None;
    dump::entries(erofs, &mut |entry| {
        let report = entry.expect("it is read").report;
        let is_indexed = report.layout == format::INODE_COMPRESSED_FULL && report.attr.file_type == FileType::Regular;
        if is_indexed && report.attr.size > 65_536 {
            let body_end = report.position + report.inode_len + report.xattr_len;
            let index = usize::try_from(body_end.next_multiple_of(8) + 16).expect("small");
            dump::extents(erofs, report.attr.nid, &mut |extent| {
                if matches!(extent.place, ExtentPlace::Stored { algorithm: Some(_), .. }) {
                    found = Some((report.attr.nid, index, extent.range));
                }
                ControlFlow::Break(())
            })
            .expect("they are read");
        }
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found.expect("there is such a file")
}

#[test]
fn pclusters_may_be_holes() {
    if !skip::ready(&[Need::Corpus]) {
        return;
    }
    let corpus = Corpus::locate().expect("it is there");
    let bytes = corpus.bytes(&corpus.image("erofs-lz4-16k-legacy").image);
    let open = |bytes: Vec<u8>| {
        let reader = Arc::new(DirectReader::of(bytes));
        (Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened"), reader)
    };
    let (erofs, reader) = open(bytes.clone());
    let (nid, index, first) = indexed_file(&erofs);
    let whole = ByteRange::new(0, erofs.attr(nid).expect("it is read").size);
    let mut expected = reader.read_file(&erofs, nid, whole).expect("it is read");
    let hole_end = usize::try_from(first.end()).expect("small");
    expected[..hole_end].fill(0);
    // Bit 14 of the head's advise, and a block count of 0 after the head.
    for (at, set) in [(index + 1, 0x40), (index + 8 + 4, 0)] {
        let mut changed = bytes.clone();
        changed[at] = if set == 0 { 0 } else { changed[at] | set };
        // The index is outside the superblock's block, which the checksum covers.
        assert!(at >= BLOCK);
        let (erofs, reader) = open(changed);
        assert_eq!(erofs.seek(nid, 5, SeekTarget::Hole).expect("it is read"), Some(5));
        assert_eq!(erofs.seek(nid, 5, SeekTarget::Data).expect("it is read"), Some(first.end()));
        assert!(reader.read_file(&erofs, nid, whole).expect("it is read") == expected, "byte {at}");
    }
}

/// An image with a file of `size` bytes, inode 136, whose map consists of `records`. The word before them is zero.
fn with_extents(size: u32, header: MapHeader, records: &[u8]) -> Vec<u8> {
    let at = BLOCK + 8 * 32;
    let mut image = vec![0; (at + 48 + records.len()).next_multiple_of(BLOCK)];
    let superblock = SuperBlock {
        magic: format::SUPER_MAGIC_V1,
        feature_incompat: format::FEATURE_INCOMPAT_COMPR_CFGS | format::FEATURE_INCOMPAT_48BIT,
        u1: 1 << format::COMPRESSION_LZ4,
        blkszbits: 12,
        rootnid_8b: 128,
        inos: 2,
        blocks_lo: 4,
        ..SuperBlock::default()
    };
    put(&mut image, 1024, &superblock.to_bytes());
    put(&mut image, 1152, &[&14_u16.to_le_bytes()[..], &Lz4Cfgs::default().to_bytes()].concat());
    put(&mut image, BLOCK, &InodeCompact { i_mode: 0o040_755, i_nb: 2, ..InodeCompact::default() }.to_bytes());
    let file = InodeCompact {
        i_format: format::INODE_COMPRESSED_FULL << format::I_DATALAYOUT_BIT,
        i_mode: 0o100_644,
        i_nb: 1,
        i_size: size,
        ..InodeCompact::default()
    };
    put(&mut image, at, &[&file.to_bytes()[..], &header.to_bytes()].concat());
    put(&mut image, at + 48, records);
    image
}

#[test]
fn extents_out_of_order_are_refused() {
    // The search for the first byte meets only the first two records.
    for (beginnings, is_sound) in [([0, 8192, 4096], false), ([0, 8192, 16_384], true), ([0, 8192, 16_385], false)] {
        let records = beginnings.map(|lstart_lo| {
            let plen = 1 << format::EXTENT_PLEN_FMT_BIT | 4096;
            Extent { plen, pstart_lo: 8192, lstart_lo, ..Extent::default() }.to_bytes()[..16].to_vec()
        });
        let header = MapHeader {
            h_u: 3,
            h_advise: format::ADVISE_EXTENTS | 2 << format::ADVISE_EXTRECSZ_BIT,
            ..MapHeader::default()
        };
        let image = with_extents(16_384, header, &records.concat());
        let erofs = Erofs::open(Arc::new(DirectReader::of(image)) as Arc<dyn BlockReader>).expect("it is opened");
        let mut extents = Vec::new();
        erofs.map(Nid(136), ByteRange::new(0, 8192), &mut extents).expect("one extent");
        assert_eq!(extents.len(), 1);
        for range in [ByteRange::new(8192, 4096), ByteRange::new(0, 16_384)] {
            let error = erofs.map(Nid(136), range, &mut extents).err().map(|error| error.to_string());
            assert_eq!(error.is_none(), is_sound, "{beginnings:?}: {error:?}");
            assert!(error.is_none_or(|error| error.contains("extents are not sorted")), "{beginnings:?}");
        }
    }
}

#[test]
fn a_walk_along_extents_reads_their_lengths_once() {
    const COUNT: u32 = 5000;
    let stored_len = |number: u32| 4097 + number % 7;
    let records: Vec<u8> = (0..COUNT).flat_map(|number| stored_len(number).to_le_bytes()).collect();
    let header = MapHeader { h_advise: format::ADVISE_EXTENTS, ..MapHeader::default() };
    let image = with_extents(COUNT * 4096, header, &records);
    let piece_count = (image.len() / BLOCK) as u64;
    let source = Arc::new(CountingSource::new(Arc::new(MemorySource::new(image))));
    let reader = DirectReader::new(vec![Arc::clone(&source) as Arc<dyn ImageSource>]);
    let erofs = Erofs::open(Arc::new(reader) as Arc<dyn BlockReader>).expect("it is opened");
    let mut extents = Vec::new();
    let before = source.read_count();
    erofs.map(Nid(136), ByteRange::new(0, u64::from(COUNT) * 4096), &mut extents).expect("it is mapped");
    let read_count = source.read_count() - before;
    // At the beginning of a piece, the record before it is read once more.
    assert!(read_count <= 3 * piece_count, "{read_count} reads of {piece_count} pieces");
    assert_eq!(extents.len(), COUNT as usize);
    for number in [0, 4999, 1, 1023, 1024, 1025, 3000, 2999] {
        let mut again = Vec::new();
        erofs.map(Nid(136), ByteRange::new(u64::from(number) * 4096, 1), &mut again).expect("it is mapped");
        let offset = (0..number).map(|number| u64::from(stored_len(number))).sum();
        let expected = ExtentData::Plain { device: DeviceId(0), offset };
        assert_eq!((extents[number as usize].data, again[0].data), (expected, expected), "{number}");
    }
}

/// An image with 250 directories that share one listing, which names all of them. If `has_slot`, its device table has
/// an extra device of one block.
fn with_shared_listing(has_slot: bool) -> Vec<u8> {
    const COUNT: u64 = 250;
    let names: Vec<String> = (0..COUNT).map(|number| format!("{number:03}")).collect();
    let mut entries: Vec<DirectoryEntry<'_>> =
        [".", ".."].map(|name| DirectoryEntry { name: name.as_bytes(), nid: 0, file_type: FileType::Directory }).into();
    entries.extend(names.iter().zip(0..).map(|(name, nid)| DirectoryEntry {
        name: name.as_bytes(),
        nid,
        file_type: FileType::Directory,
    }));
    let listing = directory_bytes(&entries, BLOCK as u64);
    let mut image = vec![0; 4 * BLOCK];
    let superblock = SuperBlock {
        magic: format::SUPER_MAGIC_V1,
        feature_incompat: u32::from(has_slot) * format::FEATURE_INCOMPAT_DEVICE_TABLE,
        blkszbits: 12,
        meta_blkaddr: 1,
        inos: COUNT,
        blocks_lo: 4,
        extra_devices: u16::from(has_slot),
        devt_slotoff: 16,
        ..SuperBlock::default()
    };
    put(&mut image, 1024, &superblock.to_bytes());
    put(&mut image, 2048, &DeviceSlot { blocks_lo: 1, uniaddr_lo: 1, ..DeviceSlot::default() }.to_bytes());
    let size = u32::try_from(listing.len()).expect("small");
    for number in 0..COUNT as usize {
        let inode = InodeCompact { i_mode: 0o040_755, i_nb: 2, i_size: size, i_u: 3, ..InodeCompact::default() };
        put(&mut image, BLOCK + number * 32, &inode.to_bytes());
    }
    put(&mut image, 3 * BLOCK, &listing);
    image
}

#[test]
fn a_walk_of_directories_that_share_a_listing_ends() {
    // Whether there is a device slot, and the lengths of the sources that are given in addition to the image.
    for (has_slot, devices) in [(false, &[][..]), (true, &[]), (true, &[BLOCK])] {
        let sources = std::iter::once(with_shared_listing(has_slot)).chain(devices.iter().map(|len| vec![0; *len]));
        let sources = sources.map(|bytes| Arc::new(MemorySource::new(bytes)) as Arc<dyn ImageSource>).collect();
        let erofs = Erofs::open(Arc::new(DirectReader::new(sources)) as Arc<dyn BlockReader>).expect("it is opened");
        let mut faults = Vec::new();
        dump::entries(&erofs, &mut |entry| {
            faults.extend(entry.err().map(|unreadable| unreadable.error.to_string()));
            ControlFlow::Continue(())
        });
        let is_told = matches!(&faults[..], [fault] if fault.contains("directories share their content"));
        assert!(is_told, "{has_slot}, {devices:?}: {faults:?}");
    }
}
