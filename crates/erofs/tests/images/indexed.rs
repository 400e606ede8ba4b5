//! Files with a full index, built record by record.

use std::{fs, io, sync::Arc};

use floe_erofs::{
    Erofs,
    format::{self, Dirent, InodeCompact, LclusterIndex, MapHeader, SuperBlock},
};
use floe_image::{BlockReader, ByteRange, FileSystem, Finding};
use floe_testkit::{
    DirectReader, KernelMount, Random, check_rows,
    corpus::{Format, Materialised},
    skip::{self, Need},
};

use crate::check::findings;

const BLOCK: usize = 4096;
const LCLUSTER: u32 = 4096;
const HEAD: u16 = format::LCLUSTER_TYPE_HEAD1;
const HOLE: u16 = format::LCLUSTER_TYPE_HEAD1 | format::LI_HOLE;
const PLAIN: u16 = format::LCLUSTER_TYPE_PLAIN;

/// The longest distance that an entry states, because the next bit marks block counts.
const DISTANCE_MAX: u32 = format::LI_D0_CBLKCNT as u32 - 1;

const ROOT: u16 = 2;
const PACKED: usize = 4;
const FILE: usize = 8;

/// An inode of the metadata, which begins in block 1.
fn put_inode(image: &mut [u8], nid: usize, inode: &InodeCompact) {
    let at = BLOCK + nid * 32;
    image[at..at + 32].copy_from_slice(&inode.to_bytes());
}

/// An image with the file `f`.
struct Indexed<'bytes> {
    size: u32,
    header: MapHeader,
    records: Vec<LclusterIndex>,
    /// The bytes after the index.
    inline: &'bytes [u8],
    /// The block to which plain records refer; empty if there is none.
    plain: &'bytes [u8],
    /// The content of the packed inode.
    packed: &'bytes [u8],
}

impl Indexed<'_> {
    fn image(&self) -> Vec<u8> {
        let at = BLOCK + (FILE + 1) * 32;
        let listing = (at + 16 + self.records.len() * LclusterIndex::SIZE + self.inline.len()).div_ceil(BLOCK);
        let record = |record: &LclusterIndex| match (record.di_advise, self.plain) {
            (PLAIN, [_, ..]) => LclusterIndex { di_u: listing as u32 + 1, ..*record },
            _ => *record,
        };
        let records: Vec<u8> = self.records.iter().flat_map(|entry| record(entry).to_bytes()).collect();
        let mut image = vec![0; at];
        image.extend([&self.header.to_bytes()[..], &[0; 8], &records, self.inline].concat());
        image.resize(listing * BLOCK, 0);
        let names = [(".", u64::from(ROOT), format::FT_DIR), ("..", u64::from(ROOT), format::FT_DIR)];
        let names = names.into_iter().chain([("f", FILE as u64, format::FT_REG_FILE)]);
        let mut nameoff = 3 * Dirent::SIZE as u16;
        let mut texts = Vec::new();
        for (name, nid, file_type) in names {
            image.extend(Dirent { nid, nameoff, file_type, reserved: 0 }.to_bytes());
            texts.extend(name.as_bytes());
            nameoff += name.len() as u16;
        }
        image.extend(&texts);
        image.resize((listing + 1) * BLOCK, 0);
        image.extend(self.plain);
        let packed = image.len() / BLOCK;
        image.extend(self.packed);
        image.resize(image.len().next_multiple_of(BLOCK), 0);
        let superblock = SuperBlock {
            magic: format::SUPER_MAGIC_V1,
            feature_incompat: format::FEATURE_INCOMPAT_FRAGMENTS
                | format::FEATURE_INCOMPAT_ZTAILPACKING
                | format::FEATURE_INCOMPAT_ZERO_PADDING,
            blkszbits: 12,
            rb: ROOT,
            inos: 3,
            blocks_lo: (image.len() / BLOCK) as u32,
            meta_blkaddr: 1,
            packed_nid: if self.packed.is_empty() { 0 } else { PACKED as u64 },
            ..SuperBlock::default()
        };
        image[1024..1152].copy_from_slice(&superblock.to_bytes());
        let inode = |i_mode, i_nb, i_size, block| InodeCompact {
            i_mode,
            i_nb,
            i_size,
            i_u: block as u32,
            ..InodeCompact::default()
        };
        put_inode(&mut image, usize::from(ROOT), &inode(0o040_755, 2, nameoff.into(), listing));
        put_inode(&mut image, PACKED, &inode(0o100_600, 1, self.packed.len() as u32, packed));
        let i_format = format::INODE_COMPRESSED_FULL << format::I_DATALAYOUT_BIT;
        put_inode(&mut image, FILE, &InodeCompact { i_format, ..inode(0o100_644, 1, self.size, 0) });
        image
    }

    /// The whole file in reads of `step` bytes, and the findings of a check.
    fn read(&self, step: u64) -> (Result<Vec<u8>, String>, Vec<String>) {
        let reader = Arc::new(DirectReader::of(self.image()));
        let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("opened");
        let file = erofs.lookup(erofs.root(), b"f").expect("found").expect("it is there");
        let mut content = Vec::new();
        // Backwards, so that each read begins inside an extent.
        for index in (0..u64::from(self.size).div_ceil(step)).rev() {
            match reader.read_file(&erofs, file, ByteRange::new(index * step, step)) {
                Ok(bytes) => content.push(bytes),
                Err(error) => return (Err(error.to_string()), Vec::new()),
            }
        }
        content.reverse();
        (Ok(content.concat()), findings(&reader).iter().map(Finding::to_string).collect())
    }
}

/// Records of an extent from `start` to `end`, whose head is in the lcluster of `start`.
fn extent(di_advise: u16, start: u32, end: u32, distance_max: u32) -> Vec<LclusterIndex> {
    let head = LclusterIndex { di_advise, di_clusterofs: (start % LCLUSTER) as u16, di_u: 0 };
    let (first, next) = (start / LCLUSTER, end.div_ceil(LCLUSTER));
    let inner = (first + 1..next).map(|number| LclusterIndex {
        di_advise: format::LCLUSTER_TYPE_NONHEAD,
        di_clusterofs: 0,
        di_u: (number - first).min(distance_max) | (next - number).min(distance_max) << 16,
    });
    std::iter::once(head).chain(inner).collect()
}

#[test]
fn inline_data_that_is_not_rotated_is_read_and_reported() {
    let inline = Random::new(5).noise(3000);
    let warning = "inline data of an interlaced file is not rotated";
    let rotated = [&inline[1808..], &inline[..1808]].concat();
    /// The length of a hole before the data, that of the data, whether the file is interlaced, and the data as it is read.
    type Row<'row> = (u32, usize, bool, &'row [u8]);
    let rows: [Row<'_>; 6] = [
        (0, 3000, false, &inline),
        // The part before the first block boundary is longer than the data, so the data cannot be rotated.
        (0, 3000, true, &inline),
        (7000, 500, true, &inline[..500]),
        (7000, 1191, true, &inline[..1191]),
        // It may be rotated; the kernel reads it so.
        (7000, 3000, true, &rotated),
        (7000, 3000, false, &inline),
    ];
    check_rows(
        &rows,
        |(hole, len, is_interlaced, _)| format!("{hole} {len} {is_interlaced}"),
        |(hole, len, is_interlaced, expected)| {
            let size = hole + *len as u32;
            let mut records = extent(HOLE, 0, *hole, DISTANCE_MAX);
            records.truncate((hole / LCLUSTER) as usize);
            records.extend(extent(PLAIN, *hole, size, DISTANCE_MAX));
            let rotation = if *is_interlaced { format::ADVISE_INTERLACED_PCLUSTER } else { 0 };
            let header = MapHeader {
                h_u: (*len as u32) << 16,
                h_advise: format::ADVISE_INLINE_PCLUSTER | rotation,
                ..MapHeader::default()
            };
            let file = Indexed { size, header, records, inline: &inline[..*len], plain: &[], packed: &[] };
            let (content, findings) = file.read(1000);
            let mut told = Vec::new();
            if content != Ok([&vec![0; *hole as usize][..], expected].concat()) {
                told.push(format!("other bytes: {}", content.err().unwrap_or_default()));
            }
            let is_told = match is_interlaced {
                true => matches!(&findings[..], [one] if one.starts_with("warning: ") && one.contains(warning)),
                false => findings.is_empty(),
            };
            if !is_told {
                told.push(format!("{findings:?}"));
            }
            told
        },
    );
}

#[test]
fn a_tail_fragment_may_exceed_the_limit_of_pclusters() {
    const OFFSET: u32 = 100;
    let plain = Random::new(7).noise(BLOCK);
    let packed = Random::new(6).noise((20 << 20) + OFFSET as usize);
    let size = LCLUSTER + (20 << 20);
    let fragment = format::ADVISE_FRAGMENT_PCLUSTER;
    let too_much = Err("decodes to more than 12 MiB");
    for (name, head, advise, distance_max, expected) in [
        ("fragment", HEAD, fragment, DISTANCE_MAX, Ok(())),
        // Shorter distances are valid, but would take too long.
        ("fragment with short distances", HEAD, fragment, 1, too_much),
        ("no fragment", HOLE, 0, DISTANCE_MAX, too_much),
    ] {
        let mut records = extent(PLAIN, 0, LCLUSTER, DISTANCE_MAX);
        records.extend(extent(head, LCLUSTER, size, distance_max));
        let header = MapHeader { h_u: OFFSET, h_advise: advise, ..MapHeader::default() };
        let file = Indexed { size, header, records, inline: &[], plain: &plain, packed: &packed };
        let (content, findings) = file.read(999_983);
        match expected {
            Ok(()) => {
                let content = content.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(content == [&plain[..], &packed[OFFSET as usize..]].concat(), "{name}");
                assert_eq!(findings, Vec::<String>::new(), "{name}");
                if let Some(in_kernel) = in_kernel(&file.image()) {
                    assert!(in_kernel.expect(name) == content, "{name}: the kernel reads other bytes");
                }
            }
            Err(rule) => {
                let error = content.expect_err(name);
                assert!(error.contains(rule), "{name}: {error}");
            }
        }
    }
}

#[test]
fn only_files_that_the_kernel_refuses_have_warnings() {
    let plain = Random::new(8).noise(BLOCK);
    let packed = Random::new(9).noise(4 * BLOCK);
    let fragment = MapHeader { h_advise: format::ADVISE_FRAGMENT_PCLUSTER, ..MapHeader::default() };
    let large = MapHeader { h_clusterbits: 1, ..MapHeader::default() };
    let past_end = |mut records: Vec<LclusterIndex>| {
        records.iter_mut().skip(1).for_each(|record| record.di_u += 100 << 16);
        records
    };
    let whole = |di_advise, size| extent(di_advise, 0, size, DISTANCE_MAX);
    /// The header, the records, the length and the rule of the warning.
    type Row<'row> = (&'row str, MapHeader, Vec<LclusterIndex>, u32, Option<&'row str>);
    let rows: [Row<'_>; 6] = [
        ("distances", fragment, whole(HEAD, 10_000), 10_000, None),
        ("distances past the end", fragment, past_end(whole(HEAD, 10_000)), 10_000, None),
        ("plain fragment", fragment, whole(PLAIN, 10_000), 10_000, Some("fragment is marked as uncompressed data")),
        ("plain in one block", MapHeader::default(), whole(PLAIN, 3000), 3000, None),
        ("plain in a larger lcluster", large, whole(PLAIN, 3000), 3000, Some("uncompressed data is shorter than")),
        ("plain after a hole", large, [whole(HOLE, 100), whole(PLAIN, 3000)].concat(), 9000, Some("is shorter than")),
    ];
    for (name, header, records, size, rule) in rows {
        let is_fragment = header == fragment;
        let plain = if is_fragment { &[][..] } else { &plain };
        let file = Indexed { size, header, records, inline: &[], plain, packed: &packed };
        let (content, findings) = file.read(1000);
        let content = content.unwrap_or_else(|error| panic!("{name}: {error}"));
        if is_fragment {
            assert!(content == packed[..size as usize], "{name}");
        }
        let is_told = findings
            .iter()
            .all(|found| rule.is_some_and(|rule| found.starts_with("warning: ") && found.contains(rule)));
        assert!(is_told && findings.len() == usize::from(rule.is_some()), "{name}: {findings:?}");
        if let Some(in_kernel) = in_kernel(&file.image()) {
            assert_eq!(in_kernel.is_ok(), rule.is_none(), "{name}: {:?}", in_kernel.err());
            assert!(
                in_kernel.is_err() || in_kernel.is_ok_and(|bytes| bytes == content),
                "{name}: the kernel reads other bytes"
            );
        }
    }
}

/// The file as the kernel reads it; `None` if it mounts no EROFS here.
fn in_kernel(image: &[u8]) -> Option<io::Result<Vec<u8>>> {
    if !skip::ready(&[Need::Root, Need::KernelErofs]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    fs::write(&path, image).expect("written");
    let mount = KernelMount::new(&Materialised::single(path, Format::Erofs));
    Some(fs::read(mount.expect("mounted").path().join("f")))
}
