//! Laying out the metadata: where each inode is, and what stands there.

use std::borrow::Cow;

use floe_erofs::{
    format,
    write::{
        ChunkMap, CompressedMap, DirectoryEntry, InodeData, InodeRecord, InodeRules, MapForm, directory_bytes,
        directory_len, whole_fragment_map,
    },
};
use floe_image::FileType;
use sha2::{Digest, Sha256};

use crate::{
    allocation::{Allocator, Need},
    error::{Error, Result},
    image_file::ImageFile,
    options::Options,
    segment::inline_len_max,
    stored_file::StoredFile,
    tree::{Body, Node, Tree, Visit},
    xattrs::XattrTable,
};

/// An inode with all that stands behind it.
pub(crate) struct PlannedInode<'a> {
    record: InodeRecord,
    xattr_body: Vec<u8>,
    map: InodeMap<'a>,
    inline: &'a [u8],
    /// The length of a directory's content: what is in blocks, and what is inline.
    directory_len: (u64, u64),
    /// Where it is, in bytes from the beginning of the metadata area.
    place: u64,
}

impl PlannedInode<'_> {
    /// The number by which it is found.
    pub(crate) fn nid(&self) -> u64 {
        self.place / format::INODE_SLOT_SIZE
    }

    fn need(&self, rules: &InodeRules) -> Need {
        let inode_len = self.record.len(rules);
        let mut body_len = inode_len + self.xattr_body.len() as u64;
        if self.map.len() > 0 {
            body_len = body_len.next_multiple_of(self.map.alignment()) + self.map.len();
        }
        Need { inode_len, body_len, inline_len: self.inline.len() as u64 + self.directory_len.1 }
    }

    /// Its bytes in their order; what is inline in a directory comes from `directory_tail`.
    fn parts<'b>(&'b self, rules: &InodeRules, directory_tail: &'b [u8]) -> impl Iterator<Item = Cow<'b, [u8]>> {
        let mut head = self.record.to_bytes(rules, self.xattr_body.len());
        head.extend_from_slice(&self.xattr_body);
        if self.map.len() > 0 {
            head.resize(head.len().next_multiple_of(usize::try_from(self.map.alignment()).unwrap_or(1)), 0);
        }
        let (index, chunks) = match &self.map {
            InodeMap::None => (&[][..], None),
            InodeMap::Index(bytes) => (bytes.as_slice(), None),
            InodeMap::Chunks(map) => (&[][..], Some(map.parts())),
        };
        let chunks = chunks.into_iter().flatten().map(Cow::Owned);
        let tails = [self.inline, directory_tail].map(Cow::Borrowed);
        [Cow::Owned(head), Cow::Borrowed(index)].into_iter().chain(chunks).chain(tails)
    }
}

/// What says where the blocks of a file are.
enum InodeMap<'a> {
    /// The inode itself.
    None,
    /// The index of a compressed file.
    Index(Vec<u8>),
    /// The map of a chunked file, which is made as it is written, as it may be long.
    Chunks(ChunkMap<'a>),
}

impl InodeMap<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Index(bytes) => bytes.len() as u64,
            Self::Chunks(map) => map.len(),
        }
    }

    fn alignment(&self) -> u64 {
        match self {
            Self::None => 1,
            Self::Index(_) => 8,
            Self::Chunks(map) => map.alignment(),
        }
    }
}

/// What the metadata area holds.
pub(crate) struct MetadataArea {
    /// A digest of all its bytes.
    pub(crate) digest: [u8; 32],
    pub(crate) root_nid: u64,
    /// 0 where there is no packed inode.
    pub(crate) packed_nid: u64,
    pub(crate) inode_count: u64,
    /// The number of each inode, by place.
    pub(crate) nids: Vec<u64>,
    /// Whether a pcluster is inline.
    pub(crate) has_inline_pclusters: bool,
    /// Whether a file is in chunks.
    pub(crate) has_chunks: bool,
}

/// What the metadata is made from.
pub(crate) struct MetadataPlan<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) visits: &'a [Visit],
    /// By place in `visits`.
    pub(crate) files: &'a [StoredFile],
    pub(crate) packed: Option<&'a (StoredFile, u64)>,
    pub(crate) xattrs: &'a XattrTable,
    pub(crate) options: &'a Options,
    pub(crate) rules: InodeRules,
}

impl MetadataPlan<'_> {
    /// Lays out the area and writes it at the end of the image, which is that of a block.
    pub(crate) fn write(&self, image: &mut ImageFile) -> Result<MetadataArea> {
        let mut places = vec![0; self.tree.len()];
        for (place, visit) in self.visits.iter().enumerate() {
            places[visit.node.index()] = place;
        }
        let mut inodes = Vec::with_capacity(self.visits.len() + 1);
        for (place, visit) in self.visits.iter().enumerate() {
            inodes.push(self.plan(place, visit)?);
        }
        inodes.extend(self.packed.map(|packed| self.plan_packed(packed, inodes.len())));
        let block_size = self.options.block_size();
        let mut allocator = Allocator::new(block_size);
        for inode in &mut inodes {
            inode.place = allocator.allocate(inode.need(&self.rules));
        }
        let directories_start = image.len() + allocator.len().next_multiple_of(block_size);
        let directories_len = self.place_directories(&mut inodes, directories_start / block_size);
        let mut directories = vec![0; usize::try_from(directories_len).unwrap_or(0)];

        let mut output = AreaWriter { start: image.len(), image, hasher: Sha256::new() };
        let mut order: Vec<usize> = (0..inodes.len()).collect();
        order.sort_unstable_by_key(|place| inodes[*place].place);
        for place in order {
            let inode = &inodes[place];
            let mut tail = Vec::new();
            let visit = self.visits.get(place);
            if let Some(visit) = visit.filter(|visit| matches!(self.tree.node(visit.node).body, Body::Directory(_))) {
                let (blocks_len, _) = inode.directory_len;
                let mut content = directory_bytes(&self.entries(visit, &inodes, &places), block_size);
                tail = content.split_off(content.len().min(usize::try_from(blocks_len).unwrap_or(usize::MAX)));
                if let InodeData::Flat { start_block: Some(start_block), .. } = inode.record.data {
                    let start = usize::try_from(start_block * block_size - directories_start).unwrap_or(usize::MAX);
                    directories[start..start + content.len()].copy_from_slice(&content);
                }
            }
            let mut place = inode.place;
            for part in inode.parts(&self.rules, &tail) {
                output.put_at(place, &part)?;
                place += part.len() as u64;
            }
        }
        output.put_at(directories_start - output.start, &directories)?;
        let digest = output.hasher.finalize().into();
        let is_inline = |inode: &PlannedInode<'_>| {
            matches!(inode.record.data, InodeData::Compressed { .. }) && !inode.inline.is_empty()
        };
        Ok(MetadataArea {
            digest,
            root_nid: inodes[0].nid(),
            packed_nid: self.packed.and(inodes.last()).map_or(0, PlannedInode::nid),
            inode_count: inodes.len() as u64,
            nids: inodes.iter().map(PlannedInode::nid).collect(),
            has_inline_pclusters: inodes.iter().any(is_inline),
            has_chunks: inodes.iter().any(|inode| matches!(inode.map, InodeMap::Chunks(_))),
        })
    }

    /// Gives directories their blocks, from `start_block` on; gives the length of all of them in bytes.
    fn place_directories(&self, inodes: &mut [PlannedInode<'_>], start_block: u64) -> u64 {
        let block_size = self.options.block_size();
        let mut next_block = start_block;
        for inode in inodes {
            let (blocks_len, tail_len) = inode.directory_len;
            if blocks_len > 0 {
                inode.record.data = InodeData::Flat { start_block: Some(next_block), inline: tail_len > 0 };
                next_block += blocks_len.div_ceil(block_size);
            }
        }
        (next_block - start_block) * block_size
    }

    fn plan(&self, place: usize, visit: &Visit) -> Result<PlannedInode<'_>> {
        let node = self.tree.node(visit.node);
        let (uid, gid) = self.options.ownership.apply(node.metadata.uid, node.metadata.gid);
        let xattr_body = self.xattrs.body(&node.xattrs);
        let mut planned = PlannedInode {
            record: InodeRecord {
                file_type: node.file_type(),
                permissions: node.metadata.permissions,
                uid,
                gid,
                link_count: visit.link_count,
                size: 0,
                modified: self.options.times.apply(node.metadata.modified),
                number: inode_number(place),
                data: InodeData::Device(0),
            },
            xattr_body: xattr_body.ok_or_else(|| Error::Layout("an inode has too many extended attributes".into()))?,
            map: InodeMap::None,
            inline: &[],
            directory_len: (0, 0),
            place: 0,
        };
        match &node.body {
            Body::Directory(_) => self.plan_directory(node, visit, &mut planned),
            Body::File(content) => {
                planned.record.size = content.size();
                let stored = match &self.files[place] {
                    StoredFile::SameAs(earlier) => &self.files[*earlier],
                    stored => stored,
                };
                self.plan_file(stored, &mut planned);
            }
            Body::Symlink(target) => {
                planned.record.size = target.len() as u64;
                self.plan_file(&self.files[place], &mut planned);
            }
            Body::Special(_, number) => planned.record.data = InodeData::Device(number.encoded()),
        }
        Ok(planned)
    }

    fn plan_packed<'a>(&'a self, (stored, size): &'a (StoredFile, u64), place: usize) -> PlannedInode<'a> {
        let mut planned = PlannedInode {
            record: InodeRecord {
                file_type: FileType::Regular,
                permissions: 0,
                uid: 0,
                gid: 0,
                link_count: 1,
                size: *size,
                modified: self.rules.epoch,
                number: inode_number(place),
                data: InodeData::Device(0),
            },
            xattr_body: Vec::new(),
            map: InodeMap::None,
            inline: &[],
            directory_len: (0, 0),
            place: 0,
        };
        self.plan_file(stored, &mut planned);
        planned
    }

    fn plan_directory(&self, node: &Node, visit: &Visit, planned: &mut PlannedInode<'_>) {
        let block_size = self.options.block_size();
        let Body::Directory(entries) = &node.body else { return };
        let _ = visit;
        let mut lens: Vec<(&[u8], usize)> = entries.keys().map(|name| (name.as_ref(), name.len())).collect();
        lens.extend([(b".".as_slice(), 1), (b"..".as_slice(), 2)]);
        lens.sort_unstable();
        let len = directory_len(lens.into_iter().map(|(_, len)| len), block_size);
        let tail_len = len % block_size;
        let inline = tail_len > 0 && tail_len <= inline_len_max(self.options.block_len()) as u64;
        planned.record.size = len;
        planned.directory_len = if inline { (len - tail_len, tail_len) } else { (len, 0) };
        planned.record.data = InodeData::Flat { start_block: None, inline };
    }

    fn plan_file<'a>(&'a self, stored: &'a StoredFile, planned: &mut PlannedInode<'a>) {
        match stored {
            StoredFile::Flat { start_block, inline } => {
                planned.inline = inline;
                planned.record.data = InodeData::Flat { start_block: *start_block, inline: !inline.is_empty() };
            }
            StoredFile::Fragment { offset } => {
                planned.map = InodeMap::Index(whole_fragment_map(*offset));
                planned.record.data = InodeData::Compressed { blocks: 0, compact: false };
            }
            StoredFile::Compressed { algorithm, extents, inline, fragment_offset } => {
                let map = CompressedMap {
                    extents,
                    algorithm: *algorithm,
                    block_size_log2: self.options.block_size_log2,
                    big: self.options.is_big(),
                    inline_len: u16::try_from(inline.len()).unwrap_or(u16::MAX),
                    fragment_offset: *fragment_offset,
                };
                let stored_len: u64 = extents.iter().map(|extent| u64::from(extent.stored_len)).sum();
                let inline_blocks = u64::from(!inline.is_empty());
                let blocks = (stored_len >> self.options.block_size_log2) - inline_blocks;
                let form = self.map_form(&map);
                planned.record.data = InodeData::Compressed { blocks, compact: form == MapForm::Compact };
                let map_start = planned.record.len(&self.rules) + planned.xattr_body.len() as u64;
                planned.map = InodeMap::Index(map.to_bytes(form, map_start.next_multiple_of(8)));
                planned.inline = inline;
            }
            StoredFile::Chunked { chunks } => {
                let map = ChunkMap::new(chunks, self.options.chunk_indexes);
                planned.record.data = InodeData::Chunked { format: map.format() };
                planned.map = InodeMap::Chunks(map);
            }
            // Only a file that is stored itself is named there.
            StoredFile::SameAs(_) => {}
        }
    }

    fn map_form(&self, map: &CompressedMap<'_>) -> MapForm {
        if self.options.compact_index && map.fits_compact() {
            return MapForm::Compact;
        }
        let wide_extent = map.extents.iter().any(|extent| extent.block > u64::from(u32::MAX));
        if self.options.wide && map.inline_len == 0 && wide_extent { MapForm::Extents } else { MapForm::Full }
    }

    fn entries<'a>(&'a self, visit: &Visit, inodes: &[PlannedInode<'_>], places: &[usize]) -> Vec<DirectoryEntry<'a>> {
        let entry = |name: &'a [u8], node: crate::tree::NodeId| DirectoryEntry {
            name,
            nid: inodes[places[node.index()]].nid(),
            file_type: self.tree.node(node).file_type(),
        };
        let mut entries: Vec<DirectoryEntry<'a>> =
            self.tree.entries(visit.node).map(|(name, node)| entry(name, node)).collect();
        entries.push(entry(b".", visit.node));
        entries.push(entry(b"..", visit.parent));
        entries.sort_unstable_by_key(|entry| entry.name);
        entries
    }
}

/// Writes the area from its beginning to its end.
struct AreaWriter<'a> {
    start: u64,
    image: &'a mut ImageFile,
    hasher: Sha256,
}

impl AreaWriter<'_> {
    /// Puts bytes at a place that is not before what was put, with zeros in between.
    fn put_at(&mut self, place: u64, bytes: &[u8]) -> Result<()> {
        let gap = (self.start + place).saturating_sub(self.image.len());
        for bytes in [&vec![0; usize::try_from(gap).unwrap_or(0)], bytes] {
            self.hasher.update(bytes);
            self.image.append(bytes)?;
        }
        Ok(())
    }
}

fn inode_number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX - 1) + 1
}
