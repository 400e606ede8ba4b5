//! Creates manifests by walking a file system through its trait, or a directory of the machine.

mod directory;

pub use directory::{DirectoryWalk, directory};

use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
};

use floe_image::{Attr, ByteRange, DirectoryCursor, Error, FileSystem, FileType, Nid, Result, SeekTarget};
use sha2::{Digest, Sha256};

use crate::manifest::{Entry, Manifest, Segment, hex_from_bytes};
use directory::join;

/// The read size in bytes.
const READ_BYTES: u64 = 1 << 20;

/// The maximum depth of a tree. Deeper nesting means a cycle, which only corrupt images have.
const DEPTH_MAX: usize = 4_096;

/// Reads the part of a range that lies within the file.
pub type ReadFile<'read> = &'read dyn Fn(Nid, ByteRange) -> Result<Vec<u8>>;

/// The contents of a file system, including `st_ino`, `st_blocks`, data and holes. Each listed entry is also looked up
/// by name, and each listed xattr is also read by name.
///
/// # Errors
/// The first error of the file system or of `read`.
///
/// # Panics
/// The file system contradicts itself: a listing and a lookup disagree, or an entry's type and its inode.
pub fn image(file_system: &dyn FileSystem, read: ReadFile<'_>) -> Result<Manifest> {
    let mut walker =
        Walker { file_system, read, manifest: Manifest::default(), inodes: BTreeMap::new(), contents: HashMap::new() };
    let mut pending = vec![(file_system.root(), b"/".to_vec(), 0)];
    while let Some((nid, path, depth)) = pending.pop() {
        let attr = file_system.attr(nid)?;
        walker.add(&path, &attr)?;
        if attr.file_type != FileType::Directory {
            continue;
        }
        if depth == DEPTH_MAX {
            return Err(Error::corrupt("directories are nested too deeply", floe_image::Place::inode(nid)));
        }
        for (name, child, file_type) in walker.children(nid)? {
            let found = file_system.lookup(nid, &name)?;
            assert_eq!(found, Some(child), "lookup of {:?} in inode {nid}", String::from_utf8_lossy(&name));
            let is = file_system.attr(child)?.file_type;
            assert_eq!(is, file_type, "type of {:?} in inode {nid}", String::from_utf8_lossy(&name));
            pending.push((child, join(&path, &name), depth + 1));
        }
    }
    walker.manifest.link(&walker.inodes);
    Ok(walker.manifest)
}

struct Walker<'walk> {
    file_system: &'walk dyn FileSystem,
    read: ReadFile<'walk>,
    manifest: Manifest,
    inodes: BTreeMap<Vec<u8>, u64>,
    contents: HashMap<Nid, (String, Vec<Segment>)>,
}

impl Walker<'_> {
    fn children(&self, directory: Nid) -> Result<Vec<(Vec<u8>, Nid, FileType)>> {
        let mut children = Vec::new();
        self.file_system.read_dir(directory, DirectoryCursor::default(), &mut |dirent| {
            if dirent.name != b"." && dirent.name != b".." {
                children.push((dirent.name.to_vec(), dirent.nid, dirent.file_type));
            }
            ControlFlow::Continue(())
        })?;
        Ok(children)
    }

    fn add(&mut self, path: &[u8], attr: &Attr) -> Result<()> {
        let mut xattrs = BTreeMap::new();
        for name in self.file_system.xattr_names(attr.nid)? {
            let value = self.file_system.xattr(attr.nid, &name)?;
            let value = value.unwrap_or_else(|| panic!("{} is listed and not there", String::from_utf8_lossy(&name)));
            xattrs.insert(name, value);
        }
        let is_device = matches!(attr.file_type, FileType::CharacterDevice | FileType::BlockDevice);
        let mut entry = Entry {
            file_type: attr.file_type.letter(),
            mode: u32::from(attr.permissions),
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            link_count: u64::from(attr.link_count),
            modified: (attr.modified.seconds, attr.modified.nanoseconds),
            device: is_device.then_some((attr.device.major, attr.device.minor)),
            target: None,
            xattrs,
            sha256: None,
            link_of: None,
            inode_number: Some(attr.inode_number),
            blocks_512: Some(attr.blocks_512),
            segments: None,
        };
        match attr.file_type {
            FileType::Symlink => entry.target = Some(self.file_system.read_link(attr.nid)?),
            FileType::Regular => {
                let (sha256, segments) = self.content(attr)?;
                (entry.sha256, entry.segments) = (Some(sha256), Some(segments));
            }
            _ => {}
        }
        if attr.link_count > 1 {
            self.inodes.insert(path.to_vec(), attr.inode_number);
        }
        self.manifest.insert(path.to_vec(), entry);
        Ok(())
    }

    fn content(&mut self, attr: &Attr) -> Result<(String, Vec<Segment>)> {
        if let Some(known) = self.contents.get(&attr.nid) {
            return Ok(known.clone());
        }
        let mut hash = Sha256::new();
        let mut position = 0;
        while position < attr.size {
            let wanted = ByteRange::new(position, READ_BYTES.min(attr.size - position));
            let bytes = (self.read)(attr.nid, wanted)?;
            assert_eq!(bytes.len() as u64, wanted.len(), "a read of inode {} at {wanted}", attr.nid);
            hash.update(&bytes);
            position += wanted.len();
        }
        let content = (hex_from_bytes(&hash.finalize()), segments(self.file_system, attr)?);
        if attr.link_count > 1 {
            self.contents.insert(attr.nid, content.clone());
        }
        Ok(content)
    }
}

fn segments(file_system: &dyn FileSystem, attr: &Attr) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    let mut position = 0;
    while position < attr.size {
        let data = file_system.seek(attr.nid, position, SeekTarget::Data)?.unwrap_or(attr.size);
        if data > position {
            segments.push(Segment { offset: position, end: data, is_data: false });
        }
        position = data;
        if data < attr.size {
            let end = file_system.seek(attr.nid, data, SeekTarget::Hole)?.expect("the end of a file is a hole");
            assert!(end > data, "a search for a hole from {data} gives {end}");
            segments.push(Segment { offset: data, end, is_data: true });
            position = end;
        }
    }
    Ok(segments)
}
