//! A file system in memory.

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use floe_image::{
    Attr, BlockReader, ByteRange, Capabilities, DecodedLen, DeviceId, DeviceNumber, DirectoryCursor, Dirent, Encoding,
    Error, Extent, ExtentData, FileSystem, FileSystemInfo, FileType, Nid, Place, Result, StoredBlock, StoredLen,
    Timestamp,
};

use super::Gate;

/// How inode numbers relate to nids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Numbering {
    /// Inode numbers equal nids: 0, 1, 2 … in order of creation, except for the root, which is 36.
    Nids,
    /// Inode numbers start at 1, the root is last, and nids are unrelated.
    Learnt,
}

/// A fault of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Its attributes break a rule.
    CorruptAttr,
    /// Reading its attributes panics.
    PanickingAttr,
    /// Its map breaks a rule.
    CorruptMap,
}

/// The number of calls of each method.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) attr: AtomicU64,
    pub(crate) lookup: AtomicU64,
    pub(crate) read_dir: AtomicU64,
    pub(crate) read_link: AtomicU64,
}

/// A file system in memory. Index 0 is the root.
pub(crate) struct TreeFileSystem {
    numbering: Numbering,
    nodes: Vec<Node>,
    image: Vec<u8>,
    pub(crate) calls: Calls,
    /// Whether the file system says that it may have extended attributes.
    pub(crate) has_xattrs: bool,
    /// A gate that lookups and attribute reads pass.
    pub(crate) gate: Option<Arc<Gate>>,
}

struct Node {
    attr: Attr,
    parent: usize,
    entries: Vec<(Vec<u8>, usize)>,
    target: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The extents of the data, including holes.
    data: Vec<Extent>,
    fault: Option<Fault>,
}

/// The nid of the root if nids are inode numbers.
const ROOT_NUMBER: u64 = 36;

impl TreeFileSystem {
    pub(crate) fn new(numbering: Numbering) -> Self {
        let mut tree = Self {
            numbering,
            nodes: Vec::new(),
            image: Vec::new(),
            calls: Calls::default(),
            has_xattrs: true,
            gate: None,
        };
        tree.push(0, FileType::Directory, 0o755);
        tree
    }

    pub(crate) fn directory(&mut self, path: &str) -> usize {
        self.add(path, FileType::Directory, 0o755)
    }

    pub(crate) fn file(&mut self, path: &str, content: &[u8]) -> usize {
        let index = self.add(path, FileType::Regular, 0o644);
        self.append(index, content);
        index
    }

    /// Appends stored bytes to a file.
    pub(crate) fn append(&mut self, index: usize, content: &[u8]) {
        let offset = self.image.len() as u64;
        self.image.extend_from_slice(content);
        let data = ExtentData::Plain { device: DeviceId(0), offset };
        self.push_extent(index, content.len() as u64, data);
    }

    /// Adds a file of stored blocks of `block_bytes` each. A read decodes whole blocks.
    pub(crate) fn file_in_blocks(&mut self, path: &str, content: &[u8], block_bytes: usize) {
        let index = self.add(path, FileType::Regular, 0o644);
        for block in content.chunks(block_bytes) {
            let (offset, len) = (self.image.len() as u64, block.len() as u32);
            self.image.extend_from_slice(block);
            let block = StoredBlock {
                device: DeviceId(0),
                offset,
                stored_len: StoredLen::Known(len),
                decoded_len: DecodedLen::Exact(len),
                encoding: Encoding::Stored,
            };
            self.push_extent(index, len.into(), ExtentData::Encoded { block, skip: 0 });
        }
    }

    /// Appends a hole to a file.
    pub(crate) fn append_hole(&mut self, index: usize, len: u64) {
        self.push_extent(index, len, ExtentData::Hole);
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> usize {
        let index = self.add(path, FileType::Symlink, 0o777);
        self.nodes[index].target = target.into();
        self.nodes[index].attr.size = target.len() as u64;
        index
    }

    pub(crate) fn special(&mut self, path: &str, file_type: FileType, device: DeviceNumber) -> usize {
        let index = self.add(path, file_type, 0o600);
        self.nodes[index].attr.device = device;
        index
    }

    pub(crate) fn link(&mut self, path: &str, index: usize) {
        let (parent, name) = self.split(path);
        self.nodes[parent].entries.push((name, index));
        self.nodes[index].attr.link_count += 1;
    }

    pub(crate) fn xattr(&mut self, index: usize, name: &str, value: &[u8]) {
        self.nodes[index].xattrs.push((name.into(), value.into()));
    }

    pub(crate) fn fault(&mut self, index: usize, fault: Fault) {
        self.nodes[index].fault = Some(fault);
    }

    pub(crate) fn attr_mut(&mut self, index: usize) -> &mut Attr {
        &mut self.nodes[index].attr
    }

    pub(crate) fn image(&self) -> Arc<[u8]> {
        self.image.as_slice().into()
    }

    /// The attributes of every path.
    pub(crate) fn walk(&self) -> Vec<(String, Attr)> {
        let mut found = vec![(String::new(), self.shown(0))];
        let mut next = 0;
        while let Some((path, attr)) = found.get(next).cloned() {
            next += 1;
            let index = self.index(attr.nid).expect("it was found");
            for (name, child) in &self.nodes[index].entries {
                let name = String::from_utf8_lossy(name);
                found.push((if path.is_empty() { name.into() } else { format!("{path}/{name}") }, self.shown(*child)));
            }
        }
        found
    }

    pub(crate) fn xattrs(&self, nid: Nid) -> &[(Vec<u8>, Vec<u8>)] {
        &self.nodes[self.index(nid).expect("an inode")].xattrs
    }

    pub(crate) fn target(&self, nid: Nid) -> &[u8] {
        &self.nodes[self.index(nid).expect("an inode")].target
    }

    fn add(&mut self, path: &str, file_type: FileType, permissions: u16) -> usize {
        let (parent, name) = self.split(path);
        let index = self.push(parent, file_type, permissions);
        if file_type == FileType::Directory {
            self.nodes[parent].attr.link_count += 1;
        }
        self.nodes[parent].entries.push((name, index));
        index
    }

    fn split(&self, path: &str) -> (usize, Vec<u8>) {
        let mut names: Vec<&str> = path.split('/').collect();
        let name = names.pop().expect("a name");
        let parent = names.iter().fold(0, |parent, name| {
            let entry = self.nodes[parent].entries.iter().find(|(other, _)| other == name.as_bytes());
            entry.expect("the parent comes first").1
        });
        (parent, name.into())
    }

    fn push(&mut self, parent: usize, file_type: FileType, permissions: u16) -> usize {
        let index = self.nodes.len();
        self.nodes.push(Node {
            attr: Attr {
                nid: self.nid_at(index),
                inode_number: 0,
                file_type,
                permissions,
                uid: 0,
                gid: 0,
                size: if file_type == FileType::Directory { 4096 } else { 0 },
                link_count: if file_type == FileType::Directory { 2 } else { 1 },
                modified: Timestamp { seconds: 1_700_000_000 + index as i64, nanoseconds: 123_456_789 },
                device: DeviceNumber::default(),
                blocks_512: 8,
            },
            parent,
            entries: Vec::new(),
            target: Vec::new(),
            xattrs: Vec::new(),
            data: Vec::new(),
            fault: None,
        });
        index
    }

    fn push_extent(&mut self, index: usize, len: u64, data: ExtentData) {
        let node = &mut self.nodes[index];
        node.data.push(Extent { range: ByteRange::new(node.attr.size, len), data });
        node.attr.size += len;
    }

    fn nid_at(&self, index: usize) -> Nid {
        Nid(match (self.numbering, index as u64) {
            (Numbering::Nids, 0) => ROOT_NUMBER,
            (Numbering::Nids, index) if index <= ROOT_NUMBER => index - 1,
            (Numbering::Nids, index) => index,
            (Numbering::Learnt, index) => (index << 16) | 0x60,
        })
    }

    fn index(&self, nid: Nid) -> Option<usize> {
        (0..self.nodes.len()).find(|index| self.nid_at(*index) == nid)
    }

    fn node(&self, nid: Nid) -> Result<(usize, &Node)> {
        let index = self.index(nid).ok_or(Error::corrupt("no such inode", Place::inode(nid)))?;
        Ok((index, &self.nodes[index]))
    }

    fn shown(&self, index: usize) -> Attr {
        let number = match (self.numbering, index) {
            (Numbering::Nids, index) => self.nid_at(index).0,
            (Numbering::Learnt, 0) => self.nodes.len() as u64,
            (Numbering::Learnt, index) => index as u64,
        };
        Attr { inode_number: number, ..self.nodes[index].attr }
    }

    fn pass(&self) -> Result<()> {
        let passed = self.gate.as_ref().map_or(Ok(()), |gate| gate.pass());
        passed.map_err(|error: io::Error| Error::io(DeviceId(0), 0, error))
    }
}

impl FileSystem for TreeFileSystem {
    fn with_reader(self: Arc<Self>, _: Arc<dyn BlockReader>) -> Arc<dyn FileSystem> {
        self
    }

    fn root(&self) -> Nid {
        self.nid_at(0)
    }

    fn info(&self) -> FileSystemInfo {
        FileSystemInfo {
            format: "tree",
            magic: 0x7265_6574,
            block_size: 4096,
            block_count: 1234,
            inode_count: self.nodes.len() as u64,
            name_bytes_max: 256,
            built: Timestamp::default(),
            uuid: None,
            label: Vec::new(),
            features: Vec::new(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { has_acls: true, has_label: true, limits_inodes: true }
    }

    fn attr(&self, nid: Nid) -> Result<Attr> {
        self.calls.attr.fetch_add(1, Relaxed);
        self.pass()?;
        let (index, node) = self.node(nid)?;
        match node.fault {
            Some(Fault::CorruptAttr) => Err(Error::corrupt("attributes", Place::inode(nid))),
            Some(Fault::PanickingAttr) => panic!("these attributes panic, as the test wants"),
            _ => Ok(self.shown(index)),
        }
    }

    fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<Nid>> {
        self.calls.lookup.fetch_add(1, Relaxed);
        self.pass()?;
        let (index, node) = self.node(directory)?;
        if node.attr.file_type != FileType::Directory {
            return Err(Error::WrongType { expected: "a directory", nid: directory });
        }
        Ok(match name {
            b"." => Some(directory),
            b".." => Some(self.nid_at(self.nodes[index].parent)),
            name => node.entries.iter().find(|(other, _)| other == name).map(|(_, index)| self.nid_at(*index)),
        })
    }

    fn read_dir(
        &self,
        directory: Nid,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.calls.read_dir.fetch_add(1, Relaxed);
        self.pass()?;
        let (index, node) = self.node(directory)?;
        let dots = [(b".".to_vec(), index), (b"..".to_vec(), node.parent)];
        for (position, (name, child)) in dots.iter().chain(&node.entries).enumerate().skip(cursor.0 as usize) {
            let attr = self.shown(*child);
            let entry = Dirent {
                name,
                nid: attr.nid,
                inode_number: attr.inode_number,
                file_type: attr.file_type,
                next: DirectoryCursor(position as u64 + 1),
            };
            if visit(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, nid: Nid) -> Result<Vec<u8>> {
        self.calls.read_link.fetch_add(1, Relaxed);
        Ok(self.node(nid)?.1.target.clone())
    }

    fn has_xattrs(&self) -> bool {
        self.has_xattrs
    }

    fn xattr(&self, nid: Nid, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let xattrs = &self.node(nid)?.1.xattrs;
        Ok(xattrs.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()))
    }

    fn xattr_names(&self, nid: Nid) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(nid)?.1.xattrs.iter().map(|(name, _)| name.clone()).collect())
    }

    fn map(&self, nid: Nid, range: ByteRange, extents: &mut Vec<Extent>) -> Result<()> {
        let (_, node) = self.node(nid)?;
        if node.fault == Some(Fault::CorruptMap) {
            return Err(Error::corrupt("map", Place::inode(nid)));
        }
        extents.extend(node.data.iter().filter(|extent| !extent.range.intersection(range).is_empty()));
        Ok(())
    }
}
