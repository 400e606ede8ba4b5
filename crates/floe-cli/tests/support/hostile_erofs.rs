//! EROFS images that claim more than they hold.

use floe_erofs::format::{self, Dirent, InodeCompact, InodeExtended, SuperBlock};

const BLOCK: usize = 4096;

/// The root's inode; the first two slots of the metadata are left free.
const ROOT: u64 = 2;

/// An image with metadata from block 1 on, followed by data.
pub(crate) struct Erofs {
    image: Vec<u8>,
    data_start: usize,
}

/// A name, an inode and a type.
type Entry = (String, u64, u8);

impl Erofs {
    /// An image with room for inodes up to number `nid_max`.
    fn new(nid_max: u64) -> Self {
        let data_start = BLOCK + ((nid_max as usize + 3) * 32).next_multiple_of(BLOCK);
        Self { image: vec![0; data_start], data_start }
    }

    fn put(&mut self, nid: u64, bytes: &[u8]) {
        let at = BLOCK + nid as usize * 32;
        assert!(at + bytes.len() <= self.data_start, "inode {nid} is in the data");
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends data, and returns its first block.
    fn append(&mut self, bytes: &[u8]) -> u32 {
        let block = self.image.len() / BLOCK;
        self.image.extend_from_slice(bytes);
        self.image.resize(self.image.len().next_multiple_of(BLOCK), 0);
        block as u32
    }

    /// The inode of a directory whose content begins with a block.
    fn directory(&mut self, nid: u64, block: u32, size: usize, link_count: u16) {
        let inode = InodeCompact {
            i_mode: 0o040_755,
            i_nb: link_count,
            i_size: size as u32,
            i_u: block,
            ..InodeCompact::default()
        };
        self.put(nid, &inode.to_bytes());
    }

    fn root(&mut self, mut entries: Vec<Entry>) {
        let directory_count = entries.iter().filter(|(_, _, kind)| *kind == format::FT_DIR).count();
        entries.extend([".", ".."].map(|name| (name.to_owned(), ROOT, format::FT_DIR)));
        let content = listing(entries);
        let block = self.append(&content);
        self.directory(ROOT, block, content.len(), 2 + directory_count as u16);
    }

    fn finish(mut self, inode_count: u64) -> Vec<u8> {
        let superblock = SuperBlock {
            magic: format::SUPER_MAGIC_V1,
            blkszbits: 12,
            rb: ROOT as u16,
            inos: inode_count,
            blocks_lo: (self.image.len() / BLOCK) as u32,
            meta_blkaddr: 1,
            ..SuperBlock::default()
        };
        self.image[1024..1152].copy_from_slice(&superblock.to_bytes());
        self.image
    }
}

/// The blocks of a directory.
fn listing(mut entries: Vec<Entry>) -> Vec<u8> {
    entries.sort();
    let (mut content, mut rest) = (Vec::new(), entries.as_slice());
    while !rest.is_empty() {
        let mut len = 0;
        let fits = |(name, _, _): &&Entry| {
            len += Dirent::SIZE + name.len();
            len <= BLOCK
        };
        let count = rest.iter().take_while(fits).count();
        let (block, left) = rest.split_at(count);
        let mut nameoff = count * Dirent::SIZE;
        for (name, nid, file_type) in block {
            let dirent = Dirent { nid: *nid, nameoff: nameoff as u16, file_type: *file_type, reserved: 0 };
            content.extend(dirent.to_bytes());
            nameoff += name.len();
        }
        block.iter().for_each(|(name, _, _)| content.extend(name.as_bytes()));
        content.resize(content.len().next_multiple_of(BLOCK), 0);
        rest = left;
    }
    content
}

/// A file that is one hole of `size` bytes.
pub(crate) fn with_hole(size: u64) -> Vec<u8> {
    let mut erofs = Erofs::new(8);
    let file = InodeExtended {
        i_format: 1,
        i_mode: 0o100_644,
        i_nb: u16::MAX,
        i_u: u32::MAX,
        i_size: size,
        i_nlink: 1,
        ..InodeExtended::default()
    };
    erofs.put(4, &file.to_bytes());
    erofs.root(vec![("sparse".to_owned(), 4, format::FT_REG_FILE)]);
    erofs.finish(2)
}

/// A directory of `count` empty files that claim a link count of two.
pub(crate) fn with_wrong_link_counts(count: u64) -> Vec<u8> {
    let mut erofs = Erofs::new(ROOT + count);
    let file = InodeCompact { i_mode: 0o100_644, i_nb: 2, ..InodeCompact::default() };
    let names = (1..=count).map(|number| {
        erofs.put(ROOT + number, &file.to_bytes());
        (format!("{number:06}"), ROOT + number, format::FT_REG_FILE)
    });
    let names = names.collect();
    erofs.root(names);
    erofs.finish(count + 1)
}

/// `count` files that each begin at another of `block_count` blocks of data, and all reach to the last.
pub(crate) fn with_overlapping_files(count: u64, block_count: u32) -> Vec<u8> {
    let mut erofs = Erofs::new(ROOT + count);
    let first = erofs.append(&vec![7; block_count as usize * BLOCK]);
    let mut names = Vec::new();
    for number in 1..=count {
        let skipped = number as u32 % (block_count / 2);
        // The first files of the image reach over all of the data.
        let skipped = if number == 1 { 0 } else { skipped };
        let file = InodeCompact {
            i_mode: 0o100_644,
            i_nb: 1,
            i_size: (block_count - skipped) * BLOCK as u32,
            i_u: first + skipped,
            ..InodeCompact::default()
        };
        erofs.put(ROOT + number, &file.to_bytes());
        names.push((format!("{number:06}"), ROOT + number, format::FT_REG_FILE));
    }
    erofs.root(names);
    erofs.finish(count + 1)
}

/// A chain of `depth` directories with names of `name_len` bytes. Each also has `width` names of one empty file, which come
/// after the name of the next directory.
pub(crate) fn with_deep_tree(depth: u64, width: u32, name_len: usize) -> Vec<u8> {
    let file_nid = ROOT + depth + 1;
    let mut erofs = Erofs::new(file_nid);
    let file = InodeCompact { i_mode: 0o100_644, i_nb: u16::MAX, ..InodeCompact::default() };
    erofs.put(file_nid, &file.to_bytes());
    let name = "a".repeat(name_len);
    for nid in ROOT + 1..=ROOT + depth {
        let mut names: Vec<Entry> =
            (0..width).map(|number| (format!("b{number:06}"), file_nid, format::FT_REG_FILE)).collect();
        names.extend([(".".to_owned(), nid, format::FT_DIR), ("..".to_owned(), nid - 1, format::FT_DIR)]);
        let has_next = nid < ROOT + depth;
        names.extend(has_next.then(|| (name.clone(), nid + 1, format::FT_DIR)));
        let content = listing(names);
        let block = erofs.append(&content);
        erofs.directory(nid, block, content.len(), 2 + u16::from(has_next));
    }
    erofs.root(vec![(name, ROOT + 1, format::FT_DIR)]);
    erofs.finish(depth + 2)
}

/// `count` directories with the same `name_count` names of one empty file.
pub(crate) fn with_shared_directories(count: u64, name_count: u32) -> Vec<u8> {
    let mut erofs = Erofs::new(ROOT + count + 1);
    let file = InodeCompact { i_mode: 0o100_644, i_nb: u16::MAX, ..InodeCompact::default() };
    let file_nid = ROOT + count + 1;
    erofs.put(file_nid, &file.to_bytes());
    let mut names: Vec<Entry> =
        (0..name_count).map(|number| (format!("{number:06}"), file_nid, format::FT_REG_FILE)).collect();
    names.extend([".", ".."].map(|name| (name.to_owned(), ROOT, format::FT_DIR)));
    let content = listing(names);
    let block = erofs.append(&content);
    let mut directories = Vec::new();
    for number in 1..=count {
        erofs.directory(ROOT + number, block, content.len(), 2);
        directories.push((format!("{number:06}"), ROOT + number, format::FT_DIR));
    }
    erofs.root(directories);
    erofs.finish(count + 2)
}
