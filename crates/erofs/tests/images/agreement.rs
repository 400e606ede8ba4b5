//! The check reports each fault for which a read fails. The images are built byte by byte.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use floe_erofs::{
    Erofs,
    format::{self, Dirent, InodeCompact, LclusterIndex, Lz4Cfgs, MapHeader, SuperBlock, XattrEntry, XattrIbodyHeader},
};
use floe_image::{BlockReader, ByteRange, Extent, FileSystem, FileType, Nid};
use floe_testkit::{DirectReader, check_rows};

use crate::check::findings;

const BLOCK: usize = 4096;
/// The inode of the file, at the beginning of block 3.
const FILE: Nid = Nid(384);
/// The packed inode, in the middle of the same block.
const PACKED: Nid = Nid(448);

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn dirents(names: &[(&str, u64, u8)]) -> Vec<u8> {
    let (mut records, mut text) = (Vec::new(), Vec::new());
    for (name, nid, file_type) in names {
        let nameoff = u16::try_from(names.len() * Dirent::SIZE + text.len()).expect("small");
        records.extend(Dirent { nid: *nid, nameoff, file_type: *file_type, reserved: 0 }.to_bytes());
        text.extend(name.as_bytes());
    }
    [records, text].concat()
}

/// An image whose root has one entry `name`, the inode at the beginning of block 3; `content` is stored from there on.
fn image(name: (&str, u8), content: &[u8]) -> Vec<u8> {
    let end = (3 * BLOCK + content.len()).next_multiple_of(BLOCK);
    let mut image = vec![0; end];
    let superblock = SuperBlock {
        magic: format::SUPER_MAGIC_V1,
        feature_incompat: format::FEATURE_INCOMPAT_COMPR_CFGS | format::FEATURE_INCOMPAT_FRAGMENTS,
        u1: 1 << format::COMPRESSION_LZ4,
        blkszbits: 12,
        rb: 128,
        inos: 2,
        blocks_lo: u32::try_from(end / BLOCK).expect("small"),
        ..SuperBlock::default()
    };
    put(&mut image, 1024, &superblock.to_bytes());
    put(&mut image, 1152, &[&14_u16.to_le_bytes()[..], &Lz4Cfgs::default().to_bytes()].concat());
    let entries = dirents(&[(".", 128, format::FT_DIR), ("..", 128, format::FT_DIR), (name.0, FILE.0, name.1)]);
    let i_nb = if name.1 == format::FT_DIR { 3 } else { 2 };
    let i_size = u32::try_from(entries.len()).expect("small");
    let root = InodeCompact { i_mode: 0o040_755, i_nb, i_size, i_u: 2, ..InodeCompact::default() };
    put(&mut image, BLOCK, &root.to_bytes());
    put(&mut image, 2 * BLOCK, &entries);
    put(&mut image, 3 * BLOCK, content);
    image
}

fn with_file(content: &[u8]) -> Vec<u8> {
    image(("f", format::FT_REG_FILE), content)
}

/// A regular file with a full index of these records: its inode, the map header, and the index.
fn indexed(i_size: u32, header: MapHeader, records: &[LclusterIndex]) -> Vec<u8> {
    let inode = InodeCompact {
        i_format: format::INODE_COMPRESSED_FULL << format::I_DATALAYOUT_BIT,
        i_mode: 0o100_644,
        i_nb: 1,
        i_size,
        ..InodeCompact::default()
    };
    let records: Vec<u8> = records.iter().flat_map(LclusterIndex::to_bytes).collect();
    [&inode.to_bytes()[..], &header.to_bytes(), &[0; 8], &records].concat()
}

fn head(di_advise: u16) -> LclusterIndex {
    LclusterIndex { di_advise, di_clusterofs: 0, di_u: 4 }
}

fn non_head(to_head: u16, to_next: u16) -> LclusterIndex {
    let di_u = u32::from(to_next) << 16 | u32::from(to_head);
    LclusterIndex { di_advise: format::LCLUSTER_TYPE_NONHEAD, di_clusterofs: 0, di_u }
}

/// A hole of 16 MiB in lclusters of 64 KiB.
fn long_hole() -> Vec<u8> {
    const COUNT: u16 = 256;
    let records: Vec<LclusterIndex> = [head(format::LCLUSTER_TYPE_HEAD1 | format::LI_HOLE)]
        .into_iter()
        .chain((1..COUNT).map(|n| non_head(n, COUNT - n)))
        .collect();
    with_file(&indexed(16 << 20, MapHeader { h_clusterbits: 4, ..MapHeader::default() }, &records))
}

/// A file of 100 uncompressed bytes after its index, in an image that ends before them.
fn inline_past_the_end() -> Vec<u8> {
    let header = MapHeader { h_u: 100 << 16, h_advise: format::ADVISE_INLINE_PCLUSTER, ..MapHeader::default() };
    let content = indexed(100, header, &[head(format::LCLUSTER_TYPE_PLAIN)]);
    let mut image = with_file(&content);
    image.truncate(3 * BLOCK + content.len() + 50);
    image
}

/// A file whose data is in the packed inode, and a packed inode that is a named pipe.
fn packed_in_a_pipe() -> Vec<u8> {
    let header = MapHeader { h_clusterbits: 1 << format::FRAGMENT_INODE_BIT, ..MapHeader::default() };
    let mut content = indexed(100, header, &[]);
    content.resize(2048, 0);
    let packed = InodeCompact { i_mode: 0o010_600, i_nb: 1, i_size: 4096, i_u: 1, ..InodeCompact::default() };
    content.extend(packed.to_bytes());
    let mut image = with_file(&content);
    let mut superblock = SuperBlock::from_prefix(&image[1024..]).expect("it is there");
    superblock.packed_nid = PACKED.0;
    put(&mut image, 1024, &superblock.to_bytes());
    image
}

/// A file with 260 attributes. Their names have 251 bytes besides the prefix.
fn many_names() -> Vec<u8> {
    let mut xattrs = XattrIbodyHeader::default().to_bytes().to_vec();
    for number in 0..260 {
        let e_name_len = 251;
        xattrs.extend(XattrEntry { e_name_len, e_name_index: format::XATTR_INDEX_USER, e_value_size: 1 }.to_bytes());
        xattrs.extend(format!("{number:0>251}v").as_bytes());
    }
    let i_xattr_icount = u16::try_from((xattrs.len() - 12) / 4 + 1).expect("small");
    let inode = InodeCompact { i_xattr_icount, i_mode: 0o100_644, i_nb: 1, ..InodeCompact::default() };
    with_file(&[&inode.to_bytes()[..], &xattrs].concat())
}

/// 4,097 nested directories.
fn nested() -> Vec<u8> {
    const COUNT: u64 = 4097;
    /// The number of inodes in a block. Each has 96 bytes with its entries.
    const PER_BLOCK: u64 = 42;
    let nid = |number: u64| FILE.0 + number / PER_BLOCK * 128 + number % PER_BLOCK * 3;
    let mut content = vec![0; usize::try_from(COUNT.div_ceil(PER_BLOCK)).expect("small") * BLOCK];
    for number in 0..COUNT {
        let own = (".", nid(number), format::FT_DIR);
        let parent = ("..", number.checked_sub(1).map_or(128, nid), format::FT_DIR);
        let child = ("d", nid(number + 1), format::FT_DIR);
        let is_last = number + 1 == COUNT;
        let entries = if is_last { dirents(&[own, parent]) } else { dirents(&[own, parent, child]) };
        let inode = InodeCompact {
            i_format: format::INODE_FLAT_INLINE << format::I_DATALAYOUT_BIT,
            i_mode: 0o040_755,
            i_nb: if is_last { 2 } else { 3 },
            i_size: u32::try_from(entries.len()).expect("small"),
            ..InodeCompact::default()
        };
        let at = usize::try_from((nid(number) - FILE.0) * 32).expect("small");
        put(&mut content, at, &[&inode.to_bytes()[..], &entries].concat());
    }
    image(("d", format::FT_DIR), &content)
}

fn open(image: Vec<u8>) -> (Arc<DirectReader>, Erofs) {
    let reader = Arc::new(DirectReader::of(image));
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).expect("it is opened");
    (reader, erofs)
}

/// The first error of reading the file: its attributes, and its content from each MiB on.
fn read(erofs: &Erofs) -> Option<String> {
    let attr = erofs.attr(FILE).expect("it is read");
    let map = |mib: u64| erofs.map(FILE, ByteRange::between(mib << 20, attr.size), &mut Vec::new());
    let content = || (0..attr.size.div_ceil(1 << 20)).try_for_each(map);
    let outcome =
        erofs.xattr_names(FILE).and_then(|_| if attr.file_type == FileType::Regular { content() } else { Ok(()) });
    outcome.err().map(|error| error.to_string())
}

#[test]
fn faults_that_reads_refuse_are_findings() {
    let rows = [
        ("pcluster decodes to more than 12 MiB", long_hole()),
        ("metadata past the end of the image", inline_past_the_end()),
        ("is not a file, a directory or a symbolic link", packed_in_a_pipe()),
        ("xattr names exceed 64 KiB", many_names()),
    ];
    check_rows(
        &rows,
        |(rule, _)| (*rule).to_owned(),
        |(rule, image)| {
            let (reader, erofs) = open(image.clone());
            let found: Vec<String> = findings(&reader).iter().map(ToString::to_string).collect();
            let mut faults = Vec::new();
            if read(&erofs).is_none_or(|error| !error.contains(rule)) {
                faults.push(format!("the file is read: {:?}", read(&erofs)));
            }
            if !found.iter().any(|finding| finding.starts_with("error: ") && finding.contains(rule)) {
                faults.push(format!("findings: {found:?}"));
            }
            faults
        },
    );
}

#[test]
fn directories_that_no_walk_enters_are_a_finding() {
    let (reader, erofs) = open(nested());
    let found: Vec<String> = findings(&reader).iter().map(ToString::to_string).collect();
    let depth = std::iter::successors(Some(erofs.root()), |nid| erofs.lookup(*nid, b"d").expect("it is read")).count();
    assert_eq!(depth, 4098);
    let deep: Vec<&String> =
        found.iter().filter(|finding| finding.contains("directories more than 4096 deep")).collect();
    assert_eq!(deep.len(), 1, "{found:?}");
}

#[test]
fn an_extent_without_big_pclusters_has_one_block_from_wherever_it_is_read() {
    // Only the first algorithm may have big pclusters, and the extent uses the second.
    let header = MapHeader { h_advise: format::ADVISE_BIG_PCLUSTER_1, ..MapHeader::default() };
    let records = [head(format::LCLUSTER_TYPE_HEAD2), non_head(format::LI_D0_CBLKCNT | 2, 1)];
    let (_, erofs) = open(with_file(&indexed(8192, header, &records)));
    let extents = |range| {
        let mut extents: Vec<Extent> = Vec::new();
        erofs.map(FILE, range, &mut extents).expect("it is read");
        extents
    };
    assert_eq!(extents(ByteRange::new(0, 8192)), extents(ByteRange::new(4096, 4096)));
}

/// Collects all sections that files under `folder` cite.
fn citations(folder: &Path, cited: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("it is listed") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            citations(&path, cited);
            continue;
        }
        let text = fs::read_to_string(&path).expect("it is text").replace("\n//! ", " ").replace("\n/// ", " ");
        for part in text.split("docs/format/erofs.md, ").skip(1) {
            let end = part.find([')', '.']).expect("a citation ends");
            cited.insert(part[..end].to_owned());
        }
    }
}

#[test]
fn every_cited_section_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cited = BTreeSet::new();
    citations(&root.join("src"), &mut cited);
    assert!(cited.len() > 10, "{cited:?}");
    let text = fs::read_to_string(root.join("../../docs/format/erofs.md")).expect("it is there");
    let sections: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    let missing: Vec<&String> = cited.difference(&sections).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
