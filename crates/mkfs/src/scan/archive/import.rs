//! Imports the members of an archive into a tree.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use floe_image::Timestamp;

use super::{
    Archive,
    member::{Member, MemberKind, Members},
};
use crate::{
    error::{Error, Result, shown},
    options::{Options, Whiteouts},
    progress::{Phase, Progress, report},
    scan::{LINK_TARGET_LEN_MAX, excludes::Excludes, implied_directory, whiteout::Whiteout},
    tree::{
        Body, Metadata, Node, NodeId, Tree,
        content::Referrer,
        xattrs::{ACL_ACCESS, ACL_DEFAULT, Acl, Xattr, XattrSet},
    },
};

/// Progress is reported once for this many members.
const REPORT_INTERVAL: u64 = 1024;
/// The longest name of an entry, in bytes.
const NAME_LEN_MAX: usize = 255;
/// The longest path of a member, in bytes.
const PATH_LEN_MAX: usize = 1 << 16;
/// How many symbolic links a member's path may cross.
const LINKS_MAX: usize = 40;

impl Archive {
    /// Imports the members into the tree. Existing nodes stay, unless a member has the same path or a whiteout removes
    /// them; whiteouts do not affect members of the same archive. Returns warnings about omitted data.
    pub(crate) fn import(
        &self,
        tree: &mut Tree,
        options: &Options,
        excludes: &Excludes,
        progress: &mut dyn Progress,
    ) -> Result<Vec<String>> {
        let mut importer = Importer {
            archive: self,
            tree,
            options,
            excludes,
            device: None,
            hidden: HashMap::new(),
            replaced: HashSet::new(),
            warnings: Vec::new(),
        };
        if options.refers_to_sources {
            importer.device = Some(importer.tree.add_device(self.referred_device()?));
        }
        if importer.find_replaced()? {
            let mut members = Members::new(self);
            while let Some(member) = members.next()? {
                importer.put_whiteout(&member)?;
            }
            importer.replaced.clear();
        }
        let mut members = Members::new(self);
        let mut count = 0u64;
        while let Some(member) = members.next()? {
            importer.put(member)?;
            count += 1;
            if count.is_multiple_of(REPORT_INTERVAL) {
                report(progress, Phase::Scan, count, 0)?;
            }
        }
        importer.warnings.extend(members.warning());
        Ok(importer.warnings)
    }
}

struct Importer<'a> {
    archive: &'a Archive,
    tree: &'a mut Tree,
    options: &'a Options,
    excludes: &'a Excludes,
    /// How the image refers to the archive, if that is an extra device.
    device: Option<Referrer>,
    /// Excluded members, which may have hard links that are not excluded.
    hidden: HashMap<PathBuf, NodeId>,
    /// While whiteouts are applied: the paths at which this archive has a directory or removes an entry. What earlier
    /// sources have there, unless it is a directory, does not lead to the parent of a whiteout.
    replaced: HashSet<PathBuf>,
    warnings: Vec<String>,
}

impl Importer<'_> {
    /// Collects the paths for [`Importer::replaced`]. Returns whether the archive has whiteouts.
    fn find_replaced(&mut self) -> Result<bool> {
        if matches!(self.options.whiteouts, Whiteouts::Keep | Whiteouts::Merge) {
            return Ok(false);
        }
        let mut has_whiteouts = false;
        let mut members = Members::new(self.archive);
        while let Some(member) = members.next()? {
            let mut components = self.components(&member.path, &member.path)?;
            let whiteout = components.last().and_then(|name| Whiteout::of(name, self.options.whiteouts));
            has_whiteouts |= whiteout.is_some();
            match (whiteout, member.kind) {
                (Some(Whiteout::Entry(hidden)), _) => {
                    components.pop();
                    components.push(hidden);
                }
                (None, MemberKind::Directory) => {}
                _ => continue,
            }
            self.replaced.insert(inner_path(&components));
        }
        Ok(has_whiteouts)
    }

    fn put_whiteout(&mut self, member: &Member) -> Result<()> {
        let components = self.components(&member.path, &member.path)?;
        let Some((name, parents)) = components.split_last() else { return Ok(()) };
        let Some(whiteout) = Whiteout::of(name, self.options.whiteouts) else { return Ok(()) };
        if self.is_excluded(&components) {
            return Ok(());
        }
        let time = member.metadata.modified;
        let create = (self.options.whiteouts == Whiteouts::Overlay).then_some(time);
        if let Some(directory) = self.directory(parents, create, &member.path)? {
            whiteout.put(self.tree, directory, self.options.whiteouts);
        }
        Ok(())
    }

    fn put(&mut self, member: Member) -> Result<()> {
        let (metadata, mut xattrs) = self.protection(&member)?;
        let Member { path, kind, .. } = member;
        let components = self.components(&path, &path)?;
        let Some((name, parents)) = components.split_last() else {
            let MemberKind::Directory = kind else {
                if path.is_empty() {
                    return Err(Error::unfit(self.archive.path(), "a member that is not a directory has no name"));
                }
                return Err(self.archive.unfit(&path, "its root is not a directory"));
            };
            let root = self.tree.node_mut(Tree::ROOT);
            (root.metadata, root.xattrs) = (metadata, xattrs.into());
            return Ok(());
        };
        if Whiteout::of(name, self.options.whiteouts).is_some() {
            return Ok(());
        }
        let is_excluded = self.is_excluded(&components);
        if is_excluded && matches!(kind, MemberKind::Directory) {
            return Ok(());
        }
        let body = match kind {
            MemberKind::HardLink(target) => {
                let node = self.linked(&target, &path)?;
                return self.name(&components, node, metadata.modified, &path);
            }
            MemberKind::Directory => {
                let Some(parent) = self.directory(parents, Some(metadata.modified), &path)? else { return Ok(()) };
                let before = self.tree.lookup(parent, name);
                if let Some(before) = before.filter(|id| matches!(self.tree.node(*id).body, Body::Directory(_))) {
                    // Whiteouts were applied before.
                    let whiteouts = self.options.whiteouts;
                    let node = self.tree.node_mut(before);
                    if whiteouts == Whiteouts::Overlay {
                        let opaque = node.xattrs.iter().filter(|(name, _)| **name == *b"trusted.overlay.opaque");
                        xattrs.extend(opaque.cloned());
                        xattrs.sort();
                        xattrs.dedup();
                    }
                    (node.metadata, node.xattrs) = (metadata, xattrs.into());
                    return Ok(());
                }
                Body::Directory(Default::default())
            }
            MemberKind::File(content) => Body::File(match &self.device {
                Some(device) if content.size() > 0 => content.referred(device, self.options.block_size())?,
                _ => content,
            }),
            MemberKind::Symlink(target) => {
                if target.is_empty() || target.len() > LINK_TARGET_LEN_MAX || target.contains(&0) {
                    let reason = "its link target is empty, contains a zero byte or is longer than 4095 bytes";
                    return Err(self.archive.unfit(&path, reason));
                }
                Body::Symlink(target.into())
            }
            MemberKind::Special(file_type, number) => Body::Special(file_type, number),
        };
        let modified = metadata.modified;
        let node = self.tree.add(Node { metadata, xattrs: xattrs.into(), body });
        self.name(&components, node, modified, &path)
    }

    /// The metadata and xattrs of a member, including its access control lists.
    fn protection(&mut self, member: &Member) -> Result<(Metadata, Vec<Xattr>)> {
        let Member { path, kind, .. } = member;
        let mut metadata = member.metadata;
        if !self.options.xattrs.keep || matches!(kind, MemberKind::HardLink(_)) {
            return Ok((metadata, Vec::new()));
        }
        let mut xattrs = member.xattrs.clone();
        let accounts = &self.archive.accounts;
        let unfit = |reason: String| self.archive.unfit(path, &reason);
        let has = |xattrs: &[Xattr], wanted: &[u8]| xattrs.iter().any(|(name, _)| **name == *wanted);
        // The binary attribute takes precedence, because it contains ids.
        if let Some(text) = member.access_acl.as_ref().filter(|_| !has(&xattrs, ACL_ACCESS)) {
            let (acl, permissions) = Acl::access(text, metadata.permissions, accounts).map_err(unfit)?;
            metadata.permissions = permissions;
            if !acl.is_plain() {
                xattrs.push((ACL_ACCESS.into(), acl.to_bytes().into()));
            }
        }
        if let Some(text) = member.default_acl.as_ref().filter(|_| !has(&xattrs, ACL_DEFAULT)) {
            let acl = Acl::default(text, accounts).map_err(unfit)?;
            if !acl.is_empty() {
                xattrs.push((ACL_DEFAULT.into(), acl.to_bytes().into()));
            }
        }
        let is_misplaced = match kind {
            MemberKind::Directory => false,
            MemberKind::Symlink(_) => has(&xattrs, ACL_ACCESS) || has(&xattrs, ACL_DEFAULT),
            _ => has(&xattrs, ACL_DEFAULT),
        };
        if is_misplaced {
            return Err(unfit("it has an access control list that its file type does not support".into()));
        }
        if member.has_nfs_acl {
            let reason = unfit("its NFSv4 access control list is not supported and was omitted".into());
            self.warnings.push(reason.to_string());
        }
        xattrs.sort();
        Ok((metadata, xattrs))
    }

    /// Adds the name of a node, unless it is excluded.
    fn name(&mut self, components: &[&[u8]], node: NodeId, modified: Timestamp, path: &[u8]) -> Result<()> {
        if self.is_excluded(components) {
            self.hidden.insert(inner_path(components), node);
            return Ok(());
        }
        let Some((name, parents)) = components.split_last() else { return Ok(()) };
        if let Some(parent) = self.directory(parents, Some(modified), path)? {
            self.tree.link(parent, name, node);
        }
        Ok(())
    }

    /// The node that a hard link refers to.
    fn linked(&mut self, target: &[u8], path: &[u8]) -> Result<NodeId> {
        let components = self.components(target, path)?;
        if let Some(node) = self.hidden.get(&inner_path(&components)) {
            return Ok(*node);
        }
        let found = match components.split_last() {
            Some((name, parents)) => {
                let parent = self.directory(parents, None, path)?;
                parent.and_then(|parent| self.tree.lookup(parent, name))
            }
            None => Some(Tree::ROOT),
        };
        let node = found.ok_or_else(|| {
            self.archive.unfit(path, &format!("it is a hard link to {}, which does not precede it", shown(target)))
        })?;
        match self.tree.node(node).body {
            Body::Directory(_) => Err(self.archive.unfit(path, "it is a hard link to a directory")),
            _ => Ok(node),
        }
    }

    /// The directory at a path, following symbolic links within the root. With `create`, missing directories are
    /// created; otherwise returns `None` if one is missing.
    fn directory(&mut self, components: &[&[u8]], create: Option<Timestamp>, path: &[u8]) -> Result<Option<NodeId>> {
        let mut way = vec![Tree::ROOT];
        // A name of the path itself, not of a link's target, has its number in the path.
        let mut ahead: VecDeque<(Vec<u8>, Option<usize>)> =
            components.iter().enumerate().map(|(number, name)| (name.to_vec(), Some(number))).collect();
        let mut links = 0;
        while let Some((name, number)) = ahead.pop_front() {
            let here = way.last().copied().unwrap_or(Tree::ROOT);
            if name == b".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let mut next = self.tree.lookup(here, &name);
            let is_directory = |id: NodeId| matches!(self.tree.node(id).body, Body::Directory(_));
            let is_replaced =
                || number.is_some_and(|number| self.replaced.contains(&inner_path(&components[..=number])));
            if next.is_some_and(|next| !is_directory(next)) && !self.replaced.is_empty() && is_replaced() {
                self.tree.unlink(here, &name);
                next = None;
            }
            let Some(next) = next else {
                let Some(modified) = create else { return Ok(None) };
                let metadata = implied_directory(self.options, modified);
                let body = Body::Directory(Default::default());
                let made = self.tree.add(Node { metadata, xattrs: XattrSet::default(), body });
                self.tree.link(here, &name, made);
                way.push(made);
                continue;
            };
            match &self.tree.node(next).body {
                Body::Directory(_) => way.push(next),
                Body::Symlink(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(self.archive.unfit(path, "its path crosses more than 40 symbolic links"));
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
                    let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
                    if parts.iter().any(|part| part.len() > NAME_LEN_MAX) {
                        return Err(self.archive.unfit(path, "its path crosses a dangling symbolic link"));
                    }
                    for part in parts.into_iter().rev() {
                        ahead.push_front((part, None));
                    }
                }
                _ if create.is_none() => return Ok(None),
                _ => return Err(self.archive.unfit(path, "its path crosses a file that is not a directory")),
            }
        }
        Ok(way.last().copied())
    }

    /// Splits a path of the archive, relative to the root; `of` is the member that an error names.
    fn components<'p>(&self, path: &'p [u8], of: &[u8]) -> Result<Vec<&'p [u8]>> {
        if path.len() > PATH_LEN_MAX {
            return Err(self.archive.unfit(of, "its path is longer than 65536 bytes"));
        }
        if path.contains(&0) {
            return Err(self.archive.unfit(of, "its path contains a zero byte"));
        }
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
        let parts: Vec<&[u8]> = parts.collect();
        if parts.contains(&&b".."[..]) {
            return Err(self.archive.unfit(of, "its path contains '..', which may leave the root"));
        }
        if parts.iter().any(|part| part.len() > NAME_LEN_MAX) {
            return Err(self.archive.unfit(of, "a name in its path is longer than 255 bytes"));
        }
        Ok(parts)
    }

    /// Whether a path or one of its parents is excluded.
    fn is_excluded(&self, components: &[&[u8]]) -> bool {
        self.excludes.has_within(&inner_path(components))
    }
}

fn inner_path(components: &[&[u8]]) -> PathBuf {
    components.iter().map(|part| Path::new(OsStr::from_bytes(part))).collect()
}
