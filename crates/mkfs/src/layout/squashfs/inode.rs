//! Inodes and directories. The entries of a directory are written before it, because it refers to them.

use std::iter;

use floe_image::FileType;
use floe_squashfs::format::{
    self, BaseInode, DevInode, DirInode, IpcInode, LDevInode, LDirInode, LIpcInode, LRegInode, RegInode, SymlinkInode,
};

use super::{
    directory::{ListedEntry, Listing, write_listing},
    file_table::{BlockRun, FileTable},
    metadata::{MetadataBlocks, MetadataWriter},
    tables::IdTable,
    xattrs::XattrSets,
};
use crate::{
    error::{Error, Result, shown},
    options::{Options, SquashfsOptions},
    tree::{Body, OrderedNode, Places, Tree, content::Content},
};

/// An extended type is this much higher than the basic one.
const EXTENDED: u16 = format::LDIR_TYPE - format::DIR_TYPE;
/// The longest target of a symbolic link in bytes, as in the kernel.
const TARGET_LEN_MAX: usize = 4095;
/// How many size words of holes are written at once.
const HOLES_PART: u64 = 1024;

/// The inode table and the directory table while they are written.
pub(super) struct InodeTables<'a> {
    tree: &'a Tree,
    order: &'a [OrderedNode],
    /// The index of each node in `order`.
    places: Places,
    files: &'a FileTable,
    xattrs: &'a XattrSets,
    options: &'a Options,
    inodes: MetadataWriter,
    directories: MetadataWriter,
    /// The reference of each inode, in tree order, once it is written.
    references: Vec<Option<u64>>,
}

/// The complete tables.
pub(super) struct WrittenTables {
    pub(super) inodes: MetadataBlocks,
    pub(super) directories: MetadataBlocks,
    /// The reference of each inode; the number of an inode is its index plus 1.
    pub(super) references: Vec<u64>,
}

/// A step of a walk through the directories.
enum Step {
    Enter(usize),
    Leave(usize),
}

impl<'a> InodeTables<'a> {
    pub(super) fn new(
        tree: &'a Tree,
        order: &'a [OrderedNode],
        files: &'a FileTable,
        xattrs: &'a XattrSets,
        options: &'a Options,
        squashfs: &SquashfsOptions,
    ) -> Result<Self> {
        let writer = || MetadataWriter::new(squashfs, squashfs.uncompressed.inodes);
        let (inodes, directories) = (writer()?, writer()?);
        let (places, references) = (tree.places(order), vec![None; order.len()]);
        Ok(Self { tree, order, places, files, xattrs, options, inodes, directories, references })
    }

    /// Writes all inodes, each directory after everything below it.
    pub(super) fn write(mut self, ids: &mut IdTable) -> Result<WrittenTables> {
        let mut steps = vec![Step::Enter(0)];
        while let Some(step) = steps.pop() {
            match step {
                Step::Enter(place) => {
                    steps.push(Step::Leave(place));
                    let below = self.tree.entries(self.order[place].node).map(|(_, node)| self.places.of(node));
                    let below = below.filter(|place| matches!(self.body(*place), Body::Directory(_)));
                    let first_below = steps.len();
                    steps.extend(below.map(Step::Enter));
                    steps[first_below..].reverse();
                }
                Step::Leave(place) => self.write_directory(place, ids)?,
            }
        }
        let missing = || Error::Layout("an inode has no directory".into());
        Ok(WrittenTables {
            inodes: self.inodes.finish()?,
            directories: self.directories.finish()?,
            references: self.references.into_iter().collect::<Option<_>>().ok_or_else(missing)?,
        })
    }

    fn body(&self, place: usize) -> &'a Body {
        &self.tree.node(self.order[place].node).body
    }

    /// Writes the inodes in a directory that are not written yet, its listing, and its inode.
    fn write_directory(&mut self, place: usize, ids: &mut IdTable) -> Result<()> {
        let tree = self.tree;
        let mut entries = Vec::new();
        for (name, node) in tree.entries(self.order[place].node) {
            let child = self.places.of(node);
            let reference = match self.references[child] {
                Some(reference) => reference,
                None => self.write_other(child, ids)?,
            };
            let kind = basic_type(tree.node(node).file_type());
            entries.push(ListedEntry { name, reference, number: number(child), kind });
        }
        let listing = write_listing(&mut self.directories, &entries)?;
        self.write_directory_inode(place, &listing, ids)
    }

    fn write_directory_inode(&mut self, place: usize, listing: &Listing, ids: &mut IdTable) -> Result<()> {
        let nlink = self.order[place].link_count;
        // The parent of the root is a number that no inode has.
        let parent_inode =
            if place == 0 { number(self.order.len()) } else { number(self.places.of(self.order[place].parent)) };
        let (index_count, index) = &listing.index;
        let xattr = self.xattrs.number(place);
        let Listing { start_block, offset, size, .. } = *listing;
        let basic_size = u16::try_from(size).ok().filter(|_| *index_count == 0 && xattr == format::ABSENT_XATTRS);
        self.begin(place, basic_size.is_none(), ids)?;
        self.inodes.write(&match basic_size {
            Some(file_size) => DirInode { start_block, nlink, file_size, offset, parent_inode }.to_bytes(),
            None => {
                let (file_size, i_count) = (size, *index_count);
                LDirInode { nlink, file_size, start_block, parent_inode, i_count, offset, xattr }.to_bytes()
            }
        })?;
        self.inodes.write(index)
    }

    /// Writes an inode that is not a directory's; returns its reference.
    fn write_other(&mut self, place: usize, ids: &mut IdTable) -> Result<u64> {
        let nlink = self.order[place].link_count;
        let xattr = self.xattrs.number(place);
        let has_xattrs = xattr != format::ABSENT_XATTRS;
        match self.body(place) {
            Body::File(content) => self.write_file(place, content, ids),
            Body::Symlink(target) => {
                let size = u32::try_from(target.len()).ok().filter(|_| target.len() <= TARGET_LEN_MAX);
                let Some(symlink_size) = size else {
                    let path = shown(&self.tree.path(self.order, self.order[place].node));
                    return Err(Error::Layout(format!("{path}: its target is longer than {TARGET_LEN_MAX} bytes")));
                };
                let reference = self.begin(place, has_xattrs, ids)?;
                self.inodes.write(&SymlinkInode { nlink, symlink_size }.to_bytes())?;
                self.inodes.write(target)?;
                if has_xattrs {
                    self.inodes.write(&xattr.to_le_bytes())?;
                }
                Ok(reference)
            }
            Body::Special(FileType::BlockDevice | FileType::CharacterDevice, device) => {
                let reference = self.begin(place, has_xattrs, ids)?;
                let rdev = device.encoded();
                self.inodes.write(&if has_xattrs {
                    LDevInode { nlink, rdev, xattr }.to_bytes()
                } else {
                    DevInode { nlink, rdev }.to_bytes()
                })?;
                Ok(reference)
            }
            Body::Special(..) | Body::Directory(_) => {
                let reference = self.begin(place, has_xattrs, ids)?;
                let basic = || IpcInode { nlink }.to_bytes();
                self.inodes.write(&if has_xattrs { LIpcInode { nlink, xattr }.to_bytes() } else { basic() })?;
                Ok(reference)
            }
        }
    }

    fn write_file(&mut self, place: usize, content: &Content, ids: &mut IdTable) -> Result<u64> {
        let files = self.files;
        let (fragment, blocks) = files.of(place);
        let nlink = self.order[place].link_count;
        let xattr = self.xattrs.number(place);
        let (start_block, sparse) = blocks.map_or((0, 0), |blocks| (blocks.start, blocks.hole_bytes));
        let (fragment, offset) =
            fragment.map_or((format::ABSENT_FRAGMENT, 0), |fragment| (fragment.index, fragment.offset));
        let file_size = content.size();
        let basic = match (u32::try_from(start_block), u32::try_from(file_size)) {
            (Ok(start_block), Ok(file_size)) if nlink == 1 && sparse == 0 && xattr == format::ABSENT_XATTRS => {
                Some(RegInode { start_block, fragment, offset, file_size })
            }
            _ => None,
        };
        let reference = self.begin(place, basic.is_none(), ids)?;
        self.inodes.write(&match basic {
            Some(basic) => basic.to_bytes(),
            None => LRegInode { start_block, file_size, sparse, nlink, fragment, offset, xattr }.to_bytes(),
        })?;
        for run in blocks.map_or(&[][..], |blocks| &blocks.runs) {
            match run {
                BlockRun::Words(words) => {
                    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    self.inodes.write(&words)?;
                }
                BlockRun::Holes(count) => {
                    let parts = iter::repeat_n(HOLES_PART, usize::try_from(count / HOLES_PART).unwrap_or(usize::MAX));
                    for part in parts.chain([count % HOLES_PART]) {
                        let words = vec![0; usize::try_from(part).unwrap_or(0) * size_of::<u32>()];
                        self.inodes.write(&words)?;
                    }
                }
            }
        }
        Ok(reference)
    }

    /// Writes the beginning of an inode; returns its reference.
    fn begin(&mut self, place: usize, is_extended: bool, ids: &mut IdTable) -> Result<u64> {
        let node = self.tree.node(self.order[place].node);
        let (uid, gid) = self.options.ownership.apply(node.metadata.uid, node.metadata.gid);
        let (uid, guid) = ids.indexes(uid, gid)?;
        let modified = self.options.stored_time(node.metadata.modified).seconds;
        let reference = self.inodes.reference();
        // Directories have 32 bits for the position of a block with inodes.
        if reference >> 16 > u64::from(u32::MAX) {
            return Err(Error::Layout("the inodes are too long for SquashFS".into()));
        }
        self.references[place] = Some(reference);
        let base = BaseInode {
            inode_type: basic_type(node.file_type()) + if is_extended { EXTENDED } else { 0 },
            mode: node.metadata.permissions,
            uid,
            guid,
            mtime: u32::try_from(modified).unwrap_or(0),
            inode_number: number(place),
        };
        self.inodes.write(&base.to_bytes())?;
        Ok(reference)
    }
}

/// The number of the inode at this place in tree order.
fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1)
}

fn basic_type(file_type: FileType) -> u16 {
    match file_type {
        FileType::Directory => format::DIR_TYPE,
        FileType::Regular => format::REG_TYPE,
        FileType::Symlink => format::SYMLINK_TYPE,
        FileType::BlockDevice => format::BLKDEV_TYPE,
        FileType::CharacterDevice => format::CHRDEV_TYPE,
        FileType::Fifo => format::FIFO_TYPE,
        FileType::Socket => format::SOCKET_TYPE,
    }
}
