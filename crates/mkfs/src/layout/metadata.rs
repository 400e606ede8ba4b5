//! Lays out the metadata: the positions of inodes and their contents.

use std::num::NonZeroU64;

use floe_erofs::write::{
    ChunkMap, CompressedMap, DirectoryEntry, InodeData, InodeRecord, InodeRules, MapForm, directory_bytes,
    directory_len, whole_fragment_map,
};
use floe_image::FileType;
use sha2::{Digest, Sha256};

use super::{
    SpecialInode,
    data_location::DataLocation,
    extent_pool::ExtentPool,
    inline_data::{InlineData, InlineStore},
    planned_inode::{InodeMap, InodePlaces, PlannedInode},
    xattr_table::XattrTable,
};
use crate::{
    content::storage_method::inline_len_max,
    error::{Error, Result, shown},
    files::image_file::ImageFile,
    options::Options,
    tree::{Body, NodeId, OrderedNode, Places, Tree},
};

/// The result of writing the metadata area.
#[derive(Default)]
pub(crate) struct MetadataArea {
    /// A digest of all its bytes.
    pub(crate) digest: [u8; 32],
    pub(crate) root_nid: u64,
    /// 0 if there is no packed inode.
    pub(crate) packed_nid: u64,
    pub(crate) metabox_nid: Option<u64>,
    pub(crate) inode_count: u64,
    /// The nid of each inode, in tree order.
    pub(crate) nids: Vec<u64>,
    /// Whether a pcluster is inline.
    pub(crate) has_inline_pclusters: bool,
}

/// Inodes for the metabox.
pub(crate) struct MetaboxInodes {
    /// The content of the metabox.
    pub(crate) bytes: Vec<u8>,
    /// The directory blocks, which are not in the metabox.
    pub(crate) directories: Vec<u8>,
    digest: [u8; 32],
    /// The nid of each inode, in tree order.
    nids: Vec<u64>,
    has_inline_pclusters: bool,
}

/// The input of the metadata layout.
pub(crate) struct MetadataPlan<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) order: &'a [OrderedNode],
    /// Indexed as `order`.
    pub(crate) files: &'a [DataLocation],
    pub(crate) extents: &'a ExtentPool,
    pub(crate) inlines: &'a InlineStore,
    /// The offsets of directories in the packed inode, in tree order; empty if unknown.
    pub(crate) directories: &'a [u64],
    pub(crate) xattrs: &'a XattrTable,
    pub(crate) options: &'a Options,
    pub(crate) rules: InodeRules,
}

impl<'a> MetadataPlan<'a> {
    /// Lays out the area and appends it to the image, which must end with a full block.
    pub(crate) fn write(&self, packed: Option<&SpecialInode>, image: &mut ImageFile) -> Result<MetadataArea> {
        let block_size = self.options.block_size();
        let special = |packed| Ok(self.plan_special(packed, self.order.len()));
        let places = InodePlaces::new(self.plan_all().chain(packed.map(special)), &self.rules, block_size)?;
        let start = image.len();
        let directories_start = start + places.area_len.next_multiple_of(block_size);
        let mut output = AreaWriter { len: 0, put: |bytes: &[u8]| image.append(bytes), hasher: Sha256::new() };
        let specials = packed.map(|packed| self.plan_special(packed, self.order.len()));
        let directories = self.put_inodes(&places, specials.as_slice(), directories_start, &mut output)?;
        output.put_at(directories_start - start, &directories)?;
        Ok(MetadataArea {
            digest: output.hasher.finalize().into(),
            root_nid: places.nids[0],
            packed_nid: packed.and(places.nids.last()).copied().unwrap_or(0),
            metabox_nid: None,
            inode_count: places.nids.len() as u64,
            has_inline_pclusters: places.has_inline_pclusters,
            nids: places.nids,
        })
    }

    /// Lays out the content of the metabox, and the directory blocks for `directories_start` in the image.
    pub(crate) fn metabox_inodes(&self, directories_start: u64) -> Result<MetaboxInodes> {
        let places = InodePlaces::new(self.plan_all(), &self.rules, self.options.block_size())?.boxed();
        let mut bytes = Vec::new();
        let put = |added: &[u8]| {
            bytes.extend_from_slice(added);
            Ok(())
        };
        let mut output = AreaWriter { len: 0, put, hasher: Sha256::new() };
        let directories = self.put_inodes(&places, &[], directories_start, &mut output)?;
        output.hasher.update(&directories);
        let digest = output.hasher.finalize().into();
        let has_inline_pclusters = places.has_inline_pclusters;
        Ok(MetaboxInodes { bytes, directories, digest, nids: places.nids, has_inline_pclusters })
    }

    /// Lays out the area of the inodes that must not be in the metabox, and appends it to the image.
    pub(crate) fn write_with_metabox(
        &self,
        metabox_inodes: MetaboxInodes,
        packed: Option<&SpecialInode>,
        metabox: &SpecialInode,
        image: &mut ImageFile,
    ) -> Result<MetadataArea> {
        let specials = || {
            let specials = [Some(metabox), packed].into_iter().flatten().zip(self.order.len()..);
            specials.map(|(special, place)| self.plan_special(special, place))
        };
        let places = InodePlaces::new(specials().map(Ok), &self.rules, self.options.block_size())?;
        let mut hasher = Sha256::new();
        hasher.update(metabox_inodes.digest);
        let mut output = AreaWriter { len: 0, put: |bytes: &[u8]| image.append(bytes), hasher };
        for (number, inode) in specials().enumerate() {
            self.put_inode(&inode, places.position(number), &[], &mut output)?;
        }
        let mut special_nids = places.nids.iter().copied();
        Ok(MetadataArea {
            digest: output.hasher.finalize().into(),
            root_nid: metabox_inodes.nids[0],
            metabox_nid: special_nids.next(),
            packed_nid: packed.and(special_nids.next()).unwrap_or(0),
            inode_count: (metabox_inodes.nids.len() + places.nids.len()) as u64,
            nids: metabox_inodes.nids,
            has_inline_pclusters: metabox_inodes.has_inline_pclusters || places.has_inline_pclusters,
        })
    }

    /// The content of each directory in tree order, empty for other nodes, laid out before the directories' offsets in
    /// the packed inode are known. Inodes in the metabox have nids of their own.
    pub(crate) fn directory_contents(&self, is_boxed: bool) -> Result<Vec<Vec<u8>>> {
        let placed = InodePlaces::new(self.plan_all(), &self.rules, self.options.block_size())?;
        let placed = if is_boxed { placed.boxed() } else { placed };
        let places = self.tree.places(self.order);
        let content =
            |ordered| directory_bytes(&self.entries(ordered, &placed.nids, &places), self.options.block_size());
        let contents =
            self.order.iter().map(|ordered| if self.is_directory(ordered) { content(ordered) } else { Vec::new() });
        Ok(contents.collect())
    }

    /// Plans the inodes of the tree, without positions.
    fn plan_all(&self) -> impl Iterator<Item = Result<PlannedInode<'_>>> {
        self.order.iter().enumerate().map(|(place, ordered)| self.plan(place, ordered))
    }

    fn is_directory(&self, ordered: &OrderedNode) -> bool {
        matches!(self.tree.node(ordered.node).body, Body::Directory(_))
    }

    /// Writes the inodes of the tree, and `specials` after them, at their positions; returns the directory blocks, which will
    /// be at `directories_start` in the image.
    fn put_inodes<Put: FnMut(&[u8]) -> Result<()>>(
        &self,
        placed: &InodePlaces,
        specials: &[PlannedInode<'_>],
        directories_start: u64,
        output: &mut AreaWriter<Put>,
    ) -> Result<Vec<u8>> {
        let block_size = self.options.block_size();
        let places = self.tree.places(self.order);
        let mut directories = vec![0; usize::try_from(placed.directory_blocks * block_size).unwrap_or(0)];
        let mut by_position: Vec<u32> = (0..).take(placed.nids.len()).collect();
        by_position.sort_unstable_by_key(|place| placed.position(*place as usize));
        for place in by_position.into_iter().map(|place| place as usize) {
            let position = placed.position(place);
            let Some(ordered) = self.order.get(place) else {
                self.put_inode(&specials[place - self.order.len()], position, &[], output)?;
                continue;
            };
            let mut inode = self.plan(place, ordered)?;
            let mut tail = Vec::new();
            if self.is_directory(ordered) && inode.directory_len != (0, 0) {
                let (blocks_len, _) = inode.directory_len;
                let mut content = directory_bytes(&self.entries(ordered, &placed.nids, &places), block_size);
                tail = content.split_off(content.len().min(usize::try_from(blocks_len).unwrap_or(usize::MAX)));
                if let Some(block) = placed.directory_block(place) {
                    inode.set_start_block(directories_start / block_size + block);
                    let start = usize::try_from(block * block_size).unwrap_or(usize::MAX);
                    directories[start..start + content.len()].copy_from_slice(&content);
                }
            }
            self.put_inode(&inode, position, &tail, output)?;
        }
        Ok(directories)
    }

    fn put_inode<Put: FnMut(&[u8]) -> Result<()>>(
        &self,
        inode: &PlannedInode<'_>,
        mut position: u64,
        directory_tail: &[u8],
        output: &mut AreaWriter<Put>,
    ) -> Result<()> {
        let inline = self.inlines.get(inode.inline)?;
        for part in inode.parts(&self.rules, [&inline, directory_tail]) {
            output.put_at(position, &part)?;
            position += part.len() as u64;
        }
        Ok(())
    }

    fn plan(&self, place: usize, ordered: &OrderedNode) -> Result<PlannedInode<'_>> {
        let node = self.tree.node(ordered.node);
        let (uid, gid) = self.options.ownership.apply(node.metadata.uid, node.metadata.gid);
        let mut xattr_body = self.xattrs.body(&node.xattrs);
        if let (0, Some(body)) = (place, &mut xattr_body) {
            // Zeros are xattr entries without a name. Tools can replace them later.
            body.resize(body.len().max(self.options.layout.root_xattr_len()), 0);
        }
        let mut planned = PlannedInode {
            record: InodeRecord {
                file_type: node.file_type(),
                permissions: node.metadata.permissions,
                uid,
                gid,
                link_count: ordered.link_count,
                size: 0,
                modified: self.options.times.apply(node.metadata.modified),
                number: inode_number(place),
                data: InodeData::Device(0),
            },
            xattr_body: xattr_body.ok_or_else(|| self.too_many_xattrs(ordered))?,
            map: InodeMap::None,
            inline: InlineData::NONE,
            directory_len: (0, 0),
        };
        match &node.body {
            Body::Directory(_) => self.plan_directory(place, &mut planned),
            Body::File(content) => {
                planned.record.size = content.size();
                let location = match &self.files[place] {
                    DataLocation::SameAs(earlier) => &self.files[*earlier],
                    location => location,
                };
                self.plan_file(location, &mut planned);
            }
            Body::Symlink(target) => {
                planned.record.size = target.len() as u64;
                self.plan_file(&self.files[place], &mut planned);
            }
            Body::Special(_, number) => planned.record.data = InodeData::Device(number.encoded()),
        }
        Ok(planned)
    }

    fn too_many_xattrs(&self, ordered: &OrderedNode) -> Error {
        let path = self.tree.path(self.order, ordered.node);
        let path = if path.is_empty() { "the root".to_owned() } else { shown(&path) };
        Error::Layout(format!("{path}: it has too many extended attributes"))
    }

    fn plan_special<'s>(&'s self, special: &'s SpecialInode, place: usize) -> PlannedInode<'s> {
        let mut planned = PlannedInode {
            record: InodeRecord {
                file_type: FileType::Regular,
                permissions: 0,
                uid: 0,
                gid: 0,
                link_count: 1,
                size: special.size,
                modified: self.rules.epoch,
                number: inode_number(place),
                data: InodeData::Device(0),
            },
            xattr_body: Vec::new(),
            map: InodeMap::None,
            inline: InlineData::NONE,
            directory_len: (0, 0),
        };
        self.plan_file(&special.location, &mut planned);
        planned
    }

    fn plan_directory(&self, place: usize, planned: &mut PlannedInode<'_>) {
        let block_size = self.options.block_size();
        let mut lens: Vec<(&[u8], usize)> =
            self.tree.entries(self.order[place].node).map(|(name, _)| (name, name.len())).collect();
        lens.extend([(b".".as_slice(), 1), (b"..".as_slice(), 2)]);
        lens.sort_unstable();
        let len = directory_len(lens.into_iter().map(|(_, len)| len), block_size);
        let tail_len = len % block_size;
        let inline = tail_len > 0 && tail_len <= inline_len_max(self.options.block_len()) as u64;
        planned.record.size = len;
        if self.options.layout.packs_directories {
            let offset = self.directories.get(place).copied().unwrap_or(0);
            planned.map = InodeMap::Index(whole_fragment_map(offset));
            planned.record.data = InodeData::Compressed { blocks: 0, compact: false };
            return;
        }
        planned.directory_len = if inline { (len - tail_len, tail_len) } else { (len, 0) };
        planned.record.data = InodeData::Flat { start_block: None, inline };
    }

    fn plan_file<'s>(&'s self, location: &'s DataLocation, planned: &mut PlannedInode<'s>) {
        match location {
            DataLocation::Flat { start_block, inline } => {
                planned.inline = *inline;
                let start_block = start_block.map(NonZeroU64::get);
                planned.record.data = InodeData::Flat { start_block, inline: !inline.is_empty() };
            }
            DataLocation::Fragment { offset } => {
                planned.map = InodeMap::Index(whole_fragment_map(*offset));
                planned.record.data = InodeData::Compressed { blocks: 0, compact: false };
            }
            DataLocation::Compressed(file) => {
                let block_size = self.options.block_size();
                let (extents, inline) = (self.extents.of(file.extents), file.inline());
                let map = CompressedMap {
                    extents,
                    algorithm: file.algorithm,
                    block_size_log2: self.options.block_size_log2,
                    // Pclusters of an extra device may be larger than those of the image.
                    big: self.options.is_big()
                        || extents.iter().any(|extent| u64::from(extent.stored_len) > block_size),
                    inline_len: u16::try_from(inline.len()).unwrap_or(u16::MAX),
                    fragment_offset: file.fragment_offset(),
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
            DataLocation::Chunked(chunks) => {
                let map = ChunkMap::new(chunks, self.options.chunk_indexes);
                planned.record.data = InodeData::Chunked { format: map.format() };
                planned.map = InodeMap::Chunks(map);
            }
            // Cannot happen: such a reference always leads to a file that is stored itself.
            DataLocation::SameAs(_) => {}
        }
    }

    fn map_form(&self, map: &CompressedMap<'_>) -> MapForm {
        if self.options.compact_index && map.fits_compact() {
            return MapForm::Compact;
        }
        let wide_extent = map.extents.iter().any(|extent| extent.block > u64::from(u32::MAX));
        if self.options.wide && map.inline_len == 0 && wide_extent { MapForm::Extents } else { MapForm::Full }
    }

    fn entries(&self, ordered: &OrderedNode, nids: &[u64], places: &Places) -> Vec<DirectoryEntry<'a>> {
        let entry = |name: &'a [u8], node: NodeId| DirectoryEntry {
            name,
            nid: nids[places.of(node)],
            file_type: self.tree.node(node).file_type(),
        };
        let mut entries: Vec<DirectoryEntry<'a>> =
            self.tree.entries(ordered.node).map(|(name, node)| entry(name, node)).collect();
        entries.push(entry(b".", ordered.node));
        entries.push(entry(b"..", ordered.parent));
        entries.sort_unstable_by_key(|entry| entry.name);
        entries
    }
}

/// Writes an area sequentially.
struct AreaWriter<Put> {
    len: u64,
    put: Put,
    hasher: Sha256,
}

impl<Put: FnMut(&[u8]) -> Result<()>> AreaWriter<Put> {
    /// Writes bytes at a position at or after the current end, with zeros in between.
    fn put_at(&mut self, position: u64, bytes: &[u8]) -> Result<()> {
        let gap = position.saturating_sub(self.len);
        for bytes in [&vec![0; usize::try_from(gap).unwrap_or(0)], bytes] {
            self.hasher.update(bytes);
            (self.put)(bytes)?;
            self.len += bytes.len() as u64;
        }
        Ok(())
    }
}

fn inode_number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX - 1) + 1
}
