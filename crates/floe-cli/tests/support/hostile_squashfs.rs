//! SquashFS images that claim more than they hold. Their metadata is not compressed.

use floe_squashfs::format::{
    BaseInode, DirEntry, DirHeader, LDirInode, LRegInode, RegInode, SuperBlock, XattrEntry, XattrId, XattrIdTable,
    XattrVal,
};

const METADATA_BYTES: usize = 8192;
const STORED_METADATA_BYTES: usize = METADATA_BYTES + 2;
const ABSENT: u64 = u64::MAX;
/// The inode table follows the superblock.
const INODES_START: usize = SuperBlock::SIZE;
const DIRECTORY: u16 = 8;
const FILE: u16 = 2;
const LONG_FILE: u16 = 9;

/// The decoded bytes of a table.
#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
}

/// The number of an inode, and its offset in the decoded table.
#[derive(Clone, Copy)]
struct Place {
    number: u32,
    at: usize,
}

pub(crate) struct Squashfs {
    inodes: Table,
    listings: Table,
    /// The decoded bytes of the attributes, and of their sets.
    attributes: Table,
    sets: Table,
    inode_count: u32,
}

impl Table {
    fn reference(at: usize) -> (u32, u16) {
        let (block, offset) = (at / METADATA_BYTES * STORED_METADATA_BYTES, at % METADATA_BYTES);
        (block as u32, offset as u16)
    }

    /// The metadata blocks, and the offset of each if the first is at `start`.
    fn stored(&self, start: u64) -> (Vec<u8>, Vec<u64>) {
        let (mut stored, mut places) = (Vec::new(), Vec::new());
        for block in self.bytes.chunks(METADATA_BYTES) {
            places.push(start + stored.len() as u64);
            stored.extend((0x8000 | block.len() as u16).to_le_bytes());
            stored.extend(block);
        }
        (stored, places)
    }
}

impl Squashfs {
    fn new() -> Self {
        let [inodes, listings, attributes, sets] = <[Table; 4]>::default();
        Self { inodes, listings, attributes, sets, inode_count: 0 }
    }

    fn inode(&mut self, inode_type: u16, body: &[u8]) -> Place {
        self.inode_count += 1;
        let place = Place { number: self.inode_count, at: self.inodes.bytes.len() };
        let (mode, inode_number) = (0o755, place.number);
        let base = BaseInode { inode_type, mode, uid: 0, guid: 0, mtime: 0, inode_number };
        self.inodes.bytes.extend(base.to_bytes());
        self.inodes.bytes.extend(body);
        place
    }

    /// A directory whose listing is in these bytes of the table.
    fn directory(&mut self, (start, end): (usize, usize), parent_inode: u32, nlink: u32) -> Place {
        let (start_block, offset) = Table::reference(start);
        let file_size = (end - start) as u32 + 3;
        let inode = LDirInode { nlink, file_size, start_block, parent_inode, i_count: 0, offset, xattr: u32::MAX };
        self.inode(DIRECTORY, &inode.to_bytes())
    }

    /// Lists inodes under ascending names, and returns the place of the listing.
    fn list(&mut self, entries: &[(String, Place, u16)]) -> (usize, usize) {
        let start = self.listings.bytes.len();
        let mut rest = entries;
        while let Some((_, first, _)) = rest.first() {
            let (start_block, _) = Table::reference(first.at);
            let is_near = |(_, place, _): &&(String, Place, u16)| Table::reference(place.at).0 == start_block;
            let count = rest.iter().take(256).take_while(is_near).count();
            let header = DirHeader { count: count as u32 - 1, start_block, inode_number: first.number };
            self.listings.bytes.extend(header.to_bytes());
            for (name, place, kind) in &rest[..count] {
                let (inode_number, kind) = (place.number.wrapping_sub(first.number) as i16, *kind);
                let (offset, size) = (Table::reference(place.at).1, name.len() as u16 - 1);
                self.listings.bytes.extend(DirEntry { offset, inode_number, kind, size }.to_bytes());
                self.listings.bytes.extend(name.as_bytes());
            }
            rest = &rest[count..];
        }
        (start, self.listings.bytes.len())
    }

    fn finish(self, root: Place) -> Vec<u8> {
        let mut image = vec![0; INODES_START];
        let inode_table_start = INODES_START as u64;
        let (inodes, _) = self.inodes.stored(inode_table_start);
        image.extend(inodes);
        let directory_table_start = image.len() as u64;
        image.extend(self.listings.stored(directory_table_start).0);
        let ids = image.len() as u64;
        image.extend([&(0x8000_u16 | 4).to_le_bytes()[..], &0_u32.to_le_bytes()].concat());
        let id_table_start = image.len() as u64;
        image.extend(ids.to_le_bytes());
        let mut xattr_id_table_start = ABSENT;
        if !self.sets.bytes.is_empty() {
            let xattr_table_start = image.len() as u64;
            image.extend(self.attributes.stored(xattr_table_start).0);
            let (sets, places) = self.sets.stored(image.len() as u64);
            image.extend(sets);
            xattr_id_table_start = image.len() as u64;
            let xattr_ids = (self.sets.bytes.len() / 16) as u32;
            image.extend(XattrIdTable { xattr_table_start, xattr_ids, unused: 0 }.to_bytes());
            places.iter().for_each(|place| image.extend(place.to_le_bytes()));
        }
        let (block, offset) = Table::reference(root.at);
        let superblock = SuperBlock {
            s_magic: 0x7371_7368,
            inodes: self.inode_count,
            mkfs_time: 0,
            block_size: 1 << 17,
            fragments: 0,
            compression: 1,
            block_log: 17,
            flags: 0,
            no_ids: 1,
            s_major: 4,
            s_minor: 0,
            root_inode: u64::from(block) << 16 | u64::from(offset),
            bytes_used: image.len() as u64,
            id_table_start,
            xattr_id_table_start,
            inode_table_start,
            directory_table_start,
            fragment_table_start: ABSENT,
            lookup_table_start: ABSENT,
        };
        image[..INODES_START].copy_from_slice(&superblock.to_bytes());
        image
    }

    fn empty_file(&mut self) -> Place {
        let file = RegInode { start_block: 0, fragment: u32::MAX, offset: 0, file_size: 0 };
        self.inode(FILE, &file.to_bytes())
    }

    /// `count` directories with one listing of `name_count` names of one empty file.
    pub(crate) fn with_shared_listings(count: u32, name_count: u32) -> Vec<u8> {
        let mut squashfs = Self::new();
        let file = squashfs.empty_file();
        let names: Vec<_> = (0..name_count).map(|number| (format!("{number:06}"), file, FILE)).collect();
        let listing = squashfs.list(&names);
        let root_number = count + 2;
        let directories: Vec<_> =
            (0..count).map(|number| (format!("{number:06}"), squashfs.directory(listing, root_number, 2), 1)).collect();
        let listing = squashfs.list(&directories);
        let root = squashfs.directory(listing, root_number + 1, count + 2);
        squashfs.finish(root)
    }

    /// `wide` directories and a chain of `deep` directories, with an empty file in each.
    pub(crate) fn with_directories(wide: u32, deep: u32) -> Vec<u8> {
        let mut squashfs = Self::new();
        let file = squashfs.empty_file();
        let root_number = 1 + wide + deep + 1;
        let mut chain = None;
        for number in 1..=deep {
            let below = chain.map(|below| ("d".to_owned(), below, 1));
            let names: Vec<_> = below.into_iter().chain([("f".to_owned(), file, FILE)]).collect();
            let listing = squashfs.list(&names);
            let parent = if number == deep { root_number } else { squashfs.inode_count + 2 };
            chain = Some(squashfs.directory(listing, parent, 2 + u32::from(names.len() > 1)));
        }
        let mut names: Vec<_> = chain.map(|chain| ("d".to_owned(), chain, 1)).into_iter().collect();
        for number in 0..wide {
            let listing = squashfs.list(&[("f".to_owned(), file, FILE)]);
            names.push((format!("w{number:06}"), squashfs.directory(listing, root_number, 2), 1));
        }
        let listing = squashfs.list(&names);
        let root = squashfs.directory(listing, root_number + 1, 2 + names.len() as u32);
        squashfs.finish(root)
    }

    /// `count` empty files that claim a link count of two.
    pub(crate) fn with_wrong_link_counts(count: u32) -> Vec<u8> {
        let mut squashfs = Self::new();
        let file = LRegInode {
            start_block: 0,
            file_size: 0,
            sparse: 0,
            nlink: 2,
            fragment: u32::MAX,
            offset: 0,
            xattr: u32::MAX,
        };
        let names: Vec<_> = (0..count)
            .map(|number| (format!("{number:06}"), squashfs.inode(LONG_FILE, &file.to_bytes()), FILE))
            .collect();
        let listing = squashfs.list(&names);
        let root = squashfs.directory(listing, count + 2, 2);
        squashfs.finish(root)
    }

    /// A file of `block_count` blocks: the first one does not decode, the size of the last one is invalid, and all others are
    /// holes.
    pub(crate) fn with_faults_at_both_ends(block_count: u64) -> Vec<u8> {
        let mut squashfs = Self::new();
        let file = LRegInode {
            start_block: 0,
            file_size: block_count << 17,
            sparse: 0,
            nlink: 1,
            fragment: u32::MAX,
            offset: 0,
            xattr: u32::MAX,
        };
        let file = squashfs.inode(LONG_FILE, &file.to_bytes());
        for block in 0..block_count {
            let size = if block == 0 {
                90_u32
            } else if block + 1 == block_count {
                u32::MAX
            } else {
                0
            };
            squashfs.inodes.bytes.extend(size.to_le_bytes());
        }
        let listing = squashfs.list(&[("f".to_owned(), file, FILE)]);
        let root = squashfs.directory(listing, 3, 2);
        squashfs.finish(root)
    }

    /// A file with `count` attributes of one value that is stored once.
    pub(crate) fn with_attributes(count: u32, name_len: usize, value_len: u32) -> Vec<u8> {
        let mut squashfs = Self::new();
        let set = squashfs.set_of_one_value(count, name_len, value_len);
        squashfs.files_with(set, &["f".to_owned()])
    }

    /// `file_count` files with the same `count` attributes of one value.
    pub(crate) fn with_shared_attributes(file_count: u32, count: u32, value_len: u32) -> Vec<u8> {
        let mut squashfs = Self::new();
        let set = squashfs.set_of_one_value(count, 4, value_len);
        squashfs.files_with(set, &(0..file_count).map(|number| format!("{number:06}")).collect::<Vec<_>>())
    }

    fn set_of_one_value(&mut self, count: u32, name_len: usize, value_len: u32) -> XattrId {
        self.attributes.bytes.extend(XattrVal { vsize: value_len }.to_bytes());
        self.attributes.bytes.extend(vec![7; value_len as usize]);
        let (block, offset) = Table::reference(self.attributes.bytes.len());
        for number in 0..count {
            let name = format!("{number:0name_len$}");
            let entry = XattrEntry { kind: 0x100, size: name.len() as u16 };
            self.attributes.bytes.extend(entry.to_bytes());
            self.attributes.bytes.extend(name.as_bytes());
            self.attributes.bytes.extend(XattrVal { vsize: 8 }.to_bytes());
            self.attributes.bytes.extend(0_u64.to_le_bytes());
        }
        XattrId { xattr: u64::from(block) << 16 | u64::from(offset), count, size: 1 }
    }

    /// A file with an attribute for each type and value length. Their names are numbers of four digits.
    pub(crate) fn with_values(attributes: &[(u16, usize)]) -> Vec<u8> {
        let mut squashfs = Self::new();
        for (number, (kind, len)) in attributes.iter().enumerate() {
            squashfs.attributes.bytes.extend(XattrEntry { kind: *kind, size: 4 }.to_bytes());
            squashfs.attributes.bytes.extend(format!("{number:04}").as_bytes());
            squashfs.attributes.bytes.extend(XattrVal { vsize: *len as u32 }.to_bytes());
            squashfs.attributes.bytes.extend(vec![7; *len]);
        }
        squashfs.files_with(XattrId { xattr: 0, count: attributes.len() as u32, size: 1 }, &["f".to_owned()])
    }

    /// The image with files of these names, which must ascend. All have the attributes of a set.
    fn files_with(mut self, set: XattrId, names: &[String]) -> Vec<u8> {
        self.sets.bytes.extend(set.to_bytes());
        let file =
            LRegInode { start_block: 0, file_size: 0, sparse: 0, nlink: 1, fragment: u32::MAX, offset: 0, xattr: 0 };
        let names: Vec<_> =
            names.iter().map(|name| (name.clone(), self.inode(LONG_FILE, &file.to_bytes()), FILE)).collect();
        let listing = self.list(&names);
        let root = self.directory(listing, self.inode_count + 2, 2);
        self.finish(root)
    }

    /// Empty files with these names, which must ascend.
    pub(crate) fn with_names(names: &[String]) -> Vec<u8> {
        let mut squashfs = Self::new();
        let names: Vec<_> = names.iter().map(|name| (name.clone(), squashfs.empty_file(), FILE)).collect();
        let listing = squashfs.list(&names);
        let root = squashfs.directory(listing, squashfs.inode_count + 2, 2);
        squashfs.finish(root)
    }
}

/// Makes block `block` of the listings undecodable.
pub(crate) fn damage_listings(image: &mut [u8], block: usize) {
    let superblock = SuperBlock::from_prefix(image).expect("a superblock");
    let at = superblock.directory_table_start as usize + block * STORED_METADATA_BYTES;
    // Without the highest bit of its length, the block is compressed.
    image[at + 1] &= 0x7f;
}

/// Gives an unknown type to one of the `wide` directories of [`Squashfs::with_directories`] without deep ones.
pub(crate) fn damage_directory(image: &mut [u8], number: usize) {
    let first = BaseInode::SIZE + RegInode::SIZE;
    let (block, offset) = Table::reference(first + number * (BaseInode::SIZE + LDirInode::SIZE));
    let at = INODES_START + block as usize + 2 + usize::from(offset);
    image[at..at + 2].fill(0xff);
}
