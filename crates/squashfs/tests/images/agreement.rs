//! Every reference image reads as its manifest records, and the check reports each fault for which a read fails. The images of
//! the latter are built byte by byte.

use floe_image::{FileSystem, Nid, Result};
use floe_squashfs::{
    Squashfs,
    format::{
        self, BaseInode, DirEntry, DirHeader, IpcInode, LDirInode, SuperBlock, XattrEntry, XattrId, XattrIdTable,
        XattrVal,
    },
};
use floe_testkit::{
    check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, differences},
    walk,
};

use crate::{check::findings, memo_reader::MemoReader};

/// The parts of an image.
#[derive(Default)]
struct Parts {
    inodes: Vec<u8>,
    inode_count: u32,
    listings: Vec<u8>,
    /// The attributes of the only set, and their number.
    attributes: Vec<u8>,
    attribute_count: u32,
    /// The position of the root in `inodes`.
    root: usize,
}

/// The metadata blocks of a table, uncompressed.
fn metadata(bytes: &[u8]) -> Vec<u8> {
    let block = |bytes: &[u8]| {
        let word = 0x8000 | u16::try_from(bytes.len()).expect("a block");
        [&word.to_le_bytes(), bytes].concat()
    };
    bytes.chunks(8192).flat_map(block).collect()
}

/// The block and the offset of byte `position` of a table.
fn place(position: usize) -> (u32, u16) {
    let block = u32::try_from(position / 8192 * 8194).expect("small");
    (block, u16::try_from(position % 8192).expect("small"))
}

fn nid(position: usize) -> Nid {
    let (block, offset) = place(position);
    Nid(u64::from(block) << 16 | u64::from(offset))
}

impl Parts {
    /// Appends a directory with one entry or none: a name and the position and number of its inode.
    fn directory(&mut self, number: u32, parent: u32, child: Option<(&str, usize, u32)>, xattr: u32) {
        let (start_block, offset) = place(self.listings.len());
        let before = self.listings.len();
        if let Some((name, at, inode_number)) = child {
            let (start_block, offset) = place(at);
            let size = u16::try_from(name.len() - 1).expect("small");
            self.listings.extend(DirHeader { count: 0, start_block, inode_number }.to_bytes());
            self.listings.extend(DirEntry { offset, inode_number: 0, kind: format::DIR_TYPE, size }.to_bytes());
            self.listings.extend(name.as_bytes());
        }
        let file_size = u32::try_from(self.listings.len() - before).expect("small") + format::DIRECTORY_SIZE_EXTRA;
        let nlink = if child.is_some() { 3 } else { 2 };
        self.base(format::LDIR_TYPE, number);
        let directory = LDirInode { nlink, file_size, start_block, parent_inode: parent, i_count: 0, offset, xattr };
        self.inodes.extend(directory.to_bytes());
    }

    fn base(&mut self, inode_type: u16, inode_number: u32) {
        self.inode_count += 1;
        let base = BaseInode { inode_type, mode: 0o755, uid: 0, guid: 0, mtime: 0, inode_number };
        self.inodes.extend(base.to_bytes());
    }

    fn attribute(&mut self, kind: u16, name: &str, value: &[u8]) {
        let size = u16::try_from(name.len()).expect("small");
        self.attribute_count += 1;
        self.attributes.extend(XattrEntry { kind, size }.to_bytes());
        self.attributes.extend(name.as_bytes());
        self.attributes.extend(XattrVal { vsize: u32::try_from(value.len()).expect("small") }.to_bytes());
        self.attributes.extend(value);
    }

    fn image(&self) -> Vec<u8> {
        let mut superblock = SuperBlock {
            s_magic: format::MAGIC,
            inodes: self.inode_count,
            block_size: 131_072,
            compression: 1,
            block_log: 17,
            no_ids: 1,
            s_major: format::MAJOR,
            root_inode: nid(self.root).0,
            inode_table_start: 96,
            fragment_table_start: format::ABSENT_TABLE,
            lookup_table_start: format::ABSENT_TABLE,
            xattr_id_table_start: format::ABSENT_TABLE,
            ..SuperBlock::default()
        };
        let mut image = vec![0; 96];
        image.extend(metadata(&self.inodes));
        superblock.directory_table_start = image.len() as u64;
        image.extend(metadata(&self.listings));
        let ids = image.len() as u64;
        image.extend(metadata(&0_u32.to_le_bytes()));
        superblock.id_table_start = image.len() as u64;
        image.extend(ids.to_le_bytes());
        if self.attribute_count != 0 {
            let header = XattrIdTable { xattr_table_start: image.len() as u64, xattr_ids: 1, unused: 0 };
            image.extend(metadata(&self.attributes));
            let sets = image.len() as u64;
            let size = u32::try_from(self.attributes.len()).expect("small");
            image.extend(metadata(&XattrId { xattr: 0, count: self.attribute_count, size }.to_bytes()));
            superblock.xattr_id_table_start = image.len() as u64;
            image.extend(header.to_bytes());
            image.extend(sets.to_le_bytes());
        }
        superblock.bytes_used = image.len() as u64;
        image[..96].copy_from_slice(&superblock.to_bytes());
        image
    }
}

/// A root without entries.
fn empty() -> Parts {
    let mut parts = Parts::default();
    parts.directory(1, 2, None, 0);
    parts
}

/// 260 attributes whose names, with their prefix, have 255 bytes.
fn many_names() -> Parts {
    let mut parts = empty();
    (0..260).for_each(|number| parts.attribute(0, &format!("{number:0>250}"), b""));
    parts
}

/// 257 attributes with a prefix that is not shown and names of 65,535 bytes.
fn hidden_names() -> Parts {
    let mut parts = empty();
    (0..257).for_each(|number| parts.attribute(9, &format!("{number:0>65535}"), b""));
    parts
}

/// 257 attributes with the same value of 64 KiB.
fn long_values() -> Parts {
    let mut parts = empty();
    parts.attribute(0, "000", &[0; 65_536]);
    // The value begins after the entry and its name.
    let reference = nid(4 + 3).0.to_le_bytes();
    let kind = format::XATTR_VALUE_OUT_OF_LINE;
    (1..257).for_each(|number| parts.attribute(kind, &format!("{number:0>3}"), &reference));
    parts
}

/// The length of a directory inode.
const DIRECTORY_LEN: usize = BaseInode::SIZE + LDirInode::SIZE;

/// `count` nested directories below the root.
fn nested(count: u32) -> Parts {
    let mut parts = Parts::default();
    for number in 1..=count {
        let child = ("d", parts.inodes.len() + DIRECTORY_LEN, number + 1);
        parts.directory(number, number - 1, Some(child), format::ABSENT_XATTRS);
    }
    parts.directory(count + 1, count, None, format::ABSENT_XATTRS);
    parts
}

/// Two nested directories below the root, and inodes without a name that have the number of the outer one.
fn ambiguous_parent() -> Parts {
    let mut parts = nested(2);
    for _ in 0..50 {
        parts.base(format::FIFO_TYPE, 2);
        parts.inodes.extend(IpcInode { nlink: 1 }.to_bytes());
    }
    parts
}

type Read = fn(&Squashfs) -> Result<()>;

#[test]
fn faults_that_reads_refuse_are_findings() {
    let names: Read = |squashfs| squashfs.xattr_names(squashfs.root()).map(drop);
    let missing: Read = |squashfs| squashfs.xattr(squashfs.root(), b"user.missing").map(drop);
    let values: Read = |squashfs| squashfs.xattrs(squashfs.root(), &mut |_| std::ops::ControlFlow::Continue(()));
    let parent: Read = |squashfs| squashfs.lookup(nid(2 * DIRECTORY_LEN), b"..").map(drop);
    let rows = [
        ("attribute names exceed 64 KiB", "attribute names exceed 64 KiB", many_names(), names),
        ("attribute names exceed 64 KiB", "attribute names exceed 64 KiB", many_names(), missing),
        ("attribute values exceed 16 MiB", "attribute values exceed 16 MiB", hidden_names(), names),
        ("attribute values exceed 16 MiB", "attribute values exceed 16 MiB", hidden_names(), missing),
        ("attribute values exceed 16 MiB", "attribute values exceed 16 MiB", long_values(), values),
        ("directory whose parent number leads", "duplicate inode number", ambiguous_parent(), parent),
    ];
    check_rows(
        &rows,
        |(_, rule, ..)| (*rule).to_owned(),
        |(refused, rule, parts, read)| {
            let reader = MemoReader::of(parts.image());
            let squashfs = Squashfs::open(reader.clone()).expect("opened");
            let found: Vec<String> = findings(&reader, &squashfs).iter().map(ToString::to_string).collect();
            let told = read(&squashfs).err().map(|error| error.to_string());
            let mut faults = Vec::new();
            if told.as_ref().is_none_or(|error| !error.contains(refused)) {
                faults.push(format!("the read: {told:?}"));
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
    for (count, expected) in [(4095, 0), (4097, 1)] {
        let reader = MemoReader::of(nested(count).image());
        let squashfs = Squashfs::open(reader.clone()).expect("opened");
        let found: Vec<String> = findings(&reader, &squashfs).iter().map(ToString::to_string).collect();
        let is_deep = |finding: &&String| finding.contains("directories more than 4096 deep");
        assert_eq!(found.iter().filter(is_deep).count(), expected, "{found:?}");
        assert_eq!(found.len(), expected, "{found:?}");
    }
}

fn images(corpus: &Corpus) -> Vec<ImageRecord> {
    corpus.sample().into_iter().filter(|image| image.format == Format::Squashfs).collect()
}

#[test]
fn every_image_matches_its_manifest() {
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &images(&corpus),
        |image| image.name.clone(),
        |image| {
            let reader = MemoReader::of_image(&corpus, image);
            let squashfs = match Squashfs::open(reader.clone()) {
                Ok(squashfs) => squashfs,
                Err(error) => return vec![error.to_string()],
            };
            let read = |nid, range| reader.read_file(&squashfs, nid, range);
            // If the kernel cannot mount the image, the manifest describes directories that unsquashfs extracted.
            let comparison = Comparison { directory_shape_is_free: !image.kernel_is_truth(), ..Comparison::default() };
            match walk::image(&squashfs, &read) {
                Ok(found) => differences(&corpus.manifest(image), &found, &comparison),
                Err(error) => vec![error.to_string()],
            }
        },
    );
}
