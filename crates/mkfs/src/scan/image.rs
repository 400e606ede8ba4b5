//! Lists an image into a tree.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::OsStr,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::{Attr, DirectoryCursor, FileType, Nid};

use super::{
    LINK_TARGET_LEN_MAX,
    excludes::Excludes,
    whiteout::{OVERLAY_ORIGIN, Whiteout, is_opaque_mark, is_whiteout, put_opaque_mark},
};
use crate::{
    error::{Error, Result},
    options::{Options, OverlayMarks, Whiteouts},
    progress::{Phase, Progress, report},
    tree::{
        Body, Metadata, Node, NodeId, ReferredDevice, Tree,
        content::{Content, Referrer},
        source_image::SourceImage,
        xattrs::{Xattr, XattrSet},
    },
};

/// Progress is reported once for this many inodes.
const REPORT_INTERVAL: u64 = 1024;
/// The number of entries allowed in any image. The image's own limit, whose computation reads metadata, applies above it.
const FREE_COUNT: u64 = 1 << 16;

/// Lists an image into a tree, through the reader of its format.
pub(crate) struct ImageScanner<'a> {
    image: Arc<SourceImage>,
    /// How the new image refers to it, if it is an extra device.
    device: Option<Referrer>,
    tree: &'a mut Tree,
    options: &'a Options,
    excludes: &'a Excludes,
    /// The inodes with several names.
    links: HashMap<Nid, NodeId>,
    /// The directories that were listed. A broken image may have one in two places.
    entered: HashSet<Nid>,
    scanned: u64,
    scanned_max: Option<u64>,
}

/// A directory to be listed.
struct OpenDirectory {
    nid: Nid,
    node: NodeId,
    /// Its path within the image.
    path: PathBuf,
}

impl<'a> ImageScanner<'a> {
    pub(crate) fn new(image: &SourceImage, tree: &'a mut Tree, options: &'a Options, excludes: &'a Excludes) -> Self {
        Self {
            image: Arc::new(image.clone()),
            device: None,
            tree,
            options,
            excludes,
            links: HashMap::new(),
            entered: HashSet::new(),
            scanned: 0,
            scanned_max: None,
        }
    }

    /// Adds the content of the image to the root, which gets the attributes of the image's root. Existing nodes stay, unless an
    /// entry has the same path.
    pub(crate) fn scan(mut self, progress: &mut dyn Progress) -> Result<()> {
        let image = Arc::clone(&self.image);
        if self.options.refers_to_sources {
            self.device = Some(self.tree.add_device(referred_device(&image, self.options.block_size())?));
        }
        let root = image.file_system().root();
        let (node, _) = self.node(root, Path::new(""))?;
        if node.file_type() != FileType::Directory {
            return Err(Error::unfit(image.path(), "its root is not a directory"));
        }
        self.merge(Tree::ROOT, node);
        let mut open = VecDeque::from([OpenDirectory { nid: root, node: Tree::ROOT, path: PathBuf::new() }]);
        while let Some(directory) = open.pop_front() {
            if !self.entered.insert(directory.nid) {
                return Err(image.failed(&directory.path)("corrupt image: directory found in two places"));
            }
            self.list(&directory, &mut open, progress)?;
        }
        Ok(())
    }

    fn list(
        &mut self,
        directory: &OpenDirectory,
        open: &mut VecDeque<OpenDirectory>,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let mut entries: Vec<(Box<[u8]>, Nid)> = Vec::new();
        let image = Arc::clone(&self.image);
        let listed = image.file_system().read_dir(directory.nid, DirectoryCursor::default(), &mut |dirent| {
            if !matches!(dirent.name, b"." | b"..") {
                entries.push((dirent.name.into(), dirent.nid));
            }
            ControlFlow::Continue(())
        });
        listed.map_err(image.failed(&directory.path))?;
        // Whiteouts affect earlier sources only.
        let (whiteouts, entries): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|(name, _)| Whiteout::of(name, self.options.whiteouts).is_some());
        for (name, _) in &whiteouts {
            if let Some(whiteout) = Whiteout::of(name, self.options.whiteouts) {
                whiteout.put(self.tree, directory.node, self.options.whiteouts);
            }
        }
        for (name, nid) in entries {
            let path = directory.path.join(OsStr::from_bytes(&name));
            self.count(&path)?;
            if self.scanned.is_multiple_of(REPORT_INTERVAL) {
                report(progress, Phase::Scan, self.scanned, 0)?;
            }
            if !self.excludes.has(&path) {
                open.extend(self.add(directory.node, &name, nid, path)?);
            }
        }
        Ok(())
    }

    /// Counts an entry. If directories share their content, there may be more entries than a build could ever visit.
    fn count(&mut self, path: &Path) -> Result<()> {
        self.scanned += 1;
        let file_system = self.image.file_system();
        if self.scanned > FREE_COUNT
            && self.scanned > *self.scanned_max.get_or_insert_with(|| file_system.entry_count_max())
        {
            let rule = "corrupt image: directories share their content: more entries than the image has room for";
            return Err(self.image.failed(path)(rule));
        }
        Ok(())
    }

    /// Adds an entry to the tree; returns it if it is a directory.
    fn add(&mut self, parent: NodeId, name: &[u8], nid: Nid, path: PathBuf) -> Result<Option<OpenDirectory>> {
        if let Some(&node) = self.links.get(&nid) {
            self.tree.link(parent, name, node);
            return Ok(None);
        }
        let (node, link_count) = self.node(nid, &path)?;
        let whiteouts = self.options.whiteouts;
        if whiteouts == Whiteouts::Apply && is_whiteout(&node) {
            self.tree.unlink(parent, name);
            return Ok(None);
        }
        let is_directory = node.file_type() == FileType::Directory;
        let before = self.tree.lookup(parent, name).filter(|_| is_directory);
        if let Some(before) = before.filter(|id| self.tree.node(*id).file_type() == FileType::Directory) {
            self.merge(before, node);
            return Ok(Some(OpenDirectory { nid, node: before, path }));
        }
        let mut node = node;
        match whiteouts {
            Whiteouts::Apply if node.xattrs.iter().any(is_opaque_mark) => {
                node.xattrs.to_mut().retain(|xattr| !is_opaque_mark(xattr));
            }
            // What the whiteout hides in layers below stays hidden.
            Whiteouts::Merge if before.is_some_and(|before| is_whiteout(self.tree.node(before))) => {
                put_opaque_mark(node.xattrs.to_mut());
            }
            _ => {}
        }
        let node = self.tree.add(node);
        self.tree.link(parent, name, node);
        if !is_directory && link_count > 1 {
            self.links.insert(nid, node);
        }
        Ok(is_directory.then_some(OpenDirectory { nid, node, path }))
    }

    /// Gives a directory of an earlier source the attributes of `node`. It keeps its entries, unless `node` is opaque.
    fn merge(&mut self, directory: NodeId, mut node: Node) {
        let is_opaque = node.xattrs.iter().any(is_opaque_mark);
        match self.options.whiteouts {
            Whiteouts::Apply if is_opaque => {
                self.tree.clear(directory);
                node.xattrs.to_mut().retain(|xattr| !is_opaque_mark(xattr));
            }
            Whiteouts::Merge if is_opaque => self.tree.clear(directory),
            Whiteouts::Merge if self.tree.node(directory).xattrs.iter().any(is_opaque_mark) => {
                put_opaque_mark(node.xattrs.to_mut());
            }
            _ => {}
        }
        let known = self.tree.node_mut(directory);
        (known.metadata, known.xattrs) = (node.metadata, node.xattrs);
    }

    /// Reads an inode. Returns also the number of its links.
    fn node(&self, nid: Nid, path: &Path) -> Result<(Node, u32)> {
        let image = &self.image;
        let file_system = image.file_system();
        let outline = file_system.outline(nid).map_err(image.failed(path))?;
        let attr = outline.attr;
        let body = match attr.file_type {
            FileType::Directory => Body::Directory(Default::default()),
            FileType::Regular => {
                let may_have_holes = outline.hole_alignment.is_some();
                let content = Content::of_image(image, nid, attr.size, may_have_holes)?;
                Body::File(match &self.device {
                    Some(device) if attr.size > 0 => content.referred(device, self.options.block_size())?,
                    _ => content,
                })
            }
            FileType::Symlink => {
                let target = file_system.read_link(nid).map_err(image.failed(path))?;
                if target.is_empty() || target.len() > LINK_TARGET_LEN_MAX || target.contains(&0) {
                    let reason = "its link target is empty, contains a zero byte or is longer than 4095 bytes";
                    return Err(Error::unfit(image.path_of(path), reason));
                }
                Body::Symlink(target.into())
            }
            kind => Body::Special(kind, attr.device),
        };
        let xattrs = if self.options.xattrs.keep && outline.may_have_xattrs {
            self.xattrs(nid, path)?
        } else {
            XattrSet::default()
        };
        Ok((Node { metadata: metadata_of(&attr), xattrs, body }, attr.link_count))
    }

    fn xattrs(&self, nid: Nid, path: &Path) -> Result<XattrSet> {
        let mut xattrs: Vec<Xattr> = Vec::new();
        let visited = self.image.file_system().xattrs(nid, &mut |xattr| {
            xattrs.push((xattr.name.into(), xattr.value.into()));
            ControlFlow::Continue(())
        });
        visited.map_err(self.image.failed(path))?;
        xattrs.sort();
        if self.options.whiteouts == Whiteouts::Merge && self.options.overlay_marks == OverlayMarks::Strip {
            xattrs.retain(|(name, _)| **name != *OVERLAY_ORIGIN);
        }
        // Only the first attribute of a name can be read.
        xattrs.dedup_by(|later, first| later.0 == first.0);
        Ok(xattrs.into())
    }
}

/// The image as an extra device of one with blocks of this size.
pub(super) fn referred_device(image: &SourceImage, block_size: u64) -> Result<ReferredDevice> {
    let info = image.file_system().info();
    let reason = match info.uuid {
        Some(uuid) if info.format == "erofs" && u64::from(info.block_size) == block_size => {
            return Ok(ReferredDevice {
                path: image.path().to_path_buf(),
                tag: uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes(),
                len: info.block_count.saturating_mul(block_size),
                configurations: Vec::new(),
                has_partial_pclusters: false,
            });
        }
        Some(_) if info.format == "erofs" => format!("its blocks have {} bytes, not {block_size}", info.block_size),
        _ => "only EROFS images can be extra devices".to_owned(),
    };
    Err(Error::unfit(image.path(), reason))
}

fn metadata_of(attr: &Attr) -> Metadata {
    Metadata { permissions: attr.permissions, uid: attr.uid, gid: attr.gid, modified: attr.modified }
}
