//! Walks the selected parts of the image, creates the directories and passes all other entries to the workers.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc::SyncSender},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat},
    io::Errno,
};

use super::{
    Choice, Descriptors, ExtractEvent, ExtractOptions, Ledger,
    metadata::permit_entries,
    outcome::{ExtractAction, ExtractWarningCause},
    task::{CreatedNames, Item, Position, Task, tasks},
    tree::{Directories, Identity, TreeDirectory},
};
use crate::{Attr, FileType, Image, Nid, PathError, WalkEntry};

/// The number of items in the first sorted batch: small, so that workers start soon. Later batches are larger.
const ITEMS_MIN: usize = 512;
const ITEMS_MAX: usize = 32_768;

/// Chooses entries.
type Filter<'a> = dyn FnMut(&WalkEntry) -> Choice + 'a;

/// Walks the image, creates the directories and passes all other entries to the workers.
pub(super) struct Planner<'a> {
    image: &'a Image,
    options: &'a ExtractOptions,
    ledger: &'a Ledger<'a>,
    sender: SyncSender<Task>,
    root: Arc<TreeDirectory>,
    /// The created directories, in order, by their path in the image if a selected path leads through them.
    made: Vec<Arc<TreeDirectory>>,
    on_the_way: HashMap<Vec<Vec<u8>>, Arc<TreeDirectory>>,
    directories: Directories,
    threads: usize,
    items: Vec<Item>,
    items_max: usize,
    /// The inodes with several names.
    created_names: HashMap<Nid, Arc<CreatedNames>>,
    links: Vec<Item>,
}

/// Work that follows once all files exist.
pub(super) struct Rest {
    /// The further names of inodes with several names.
    pub(super) links: Vec<Item>,
    /// Directories, each after its parent.
    pub(super) made: Vec<Arc<TreeDirectory>>,
    pub(super) directories: Directories,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        image: &'a Image,
        options: &'a ExtractOptions,
        ledger: &'a Ledger<'a>,
        sender: SyncSender<Task>,
        root: Arc<TreeDirectory>,
        descriptors: Descriptors,
    ) -> Self {
        Self {
            image,
            options,
            ledger,
            sender,
            made: vec![Arc::clone(&root)],
            root,
            on_the_way: HashMap::new(),
            directories: Directories::new(descriptors.directories_max),
            threads: descriptors.threads,
            items: Vec::new(),
            items_max: ITEMS_MIN,
            created_names: HashMap::new(),
            links: Vec::new(),
        }
    }

    /// Plans the selected parts with everything below them, or the entries among them that the filter selects.
    pub(super) fn plan(&mut self, selection: &[Selected], filter: Option<&mut Filter<'_>>) {
        if self.options.finish_root
            && let Ok(root) = self.directories.open(&self.root)
        {
            permit_entries(root);
        }
        let mut take_all = |_: &WalkEntry| Choice::TakeAll;
        let filter = filter.unwrap_or(&mut take_all);
        for selected in selection {
            if self.ledger.is_over() {
                return;
            }
            let Some(parent) = self.make_way(selected) else { continue };
            let (name, nid) = match (selected.names.last(), selected.nids.last()) {
                (Some(name), Some(nid)) => (Some(name.as_slice()), *nid),
                _ => (None, self.root.attr.nid),
            };
            self.plan_tree(&parent, name, nid, filter);
        }
        self.flush();
    }

    pub(super) fn into_rest(self) -> Rest {
        Rest { links: self.links, made: self.made, directories: self.directories }
    }

    /// Creates the directories on the path to a selected part; returns the last of them.
    fn make_way(&mut self, selected: &Selected) -> Option<Arc<TreeDirectory>> {
        let mut directory = Arc::clone(&self.root);
        let count = selected.names.len().saturating_sub(1);
        for (index, (name, nid)) in selected.names.iter().zip(&selected.nids).take(count).enumerate() {
            let way = &selected.names[..=index];
            if let Some(found) = self.on_the_way.get(way) {
                directory = Arc::clone(found);
                continue;
            }
            if let Some(rule) = Names::default().refuse(self.image, directory.attr.nid, name) {
                self.ledger.fail(directory.path_of(name), ExtractWarningCause::Refused(rule));
                return None;
            }
            let attr = self.attr(&directory, name, *nid)?;
            directory = self.make_directory(&directory, name, attr)?;
            self.on_the_way.insert(way.to_vec(), Arc::clone(&directory));
        }
        Some(directory)
    }

    /// Reads the attributes of an inode. Records a failure if they cannot be read.
    fn attr(&self, directory: &TreeDirectory, name: &[u8], nid: Nid) -> Option<Attr> {
        match self.image.attr(nid) {
            Ok(attr) => Some(attr),
            Err(error) => {
                self.ledger.fail(directory.path_of(name), ExtractWarningCause::Image(error));
                None
            }
        }
    }

    /// Plans the entries of a tree that the filter selects: below the root, or `name` in `parent` and everything below it.
    fn plan_tree(&mut self, parent: &Arc<TreeDirectory>, name: Option<&[u8]>, nid: Nid, filter: &mut Filter<'_>) {
        // The depth of the directory that was taken with everything below it.
        let mut taken_depth: Option<usize> = None;
        // The directories from `parent` down to the current place of the walk, with the names created in each.
        let mut levels = vec![(Arc::clone(parent), Names::default())];
        let start = parent.path_of(name.unwrap_or_default());
        let mut walk = self.image.walk_from(nid, start);
        while let Some(step) = walk.next() {
            if self.ledger.is_over() {
                return;
            }
            let entry = match step {
                Ok(entry) => entry,
                Err(failed) => {
                    self.ledger.fail(failed.path, ExtractWarningCause::Image(failed.error));
                    continue;
                }
            };
            let Some(depth) = (if name.is_some() { Some(entry.depth) } else { entry.depth.checked_sub(1) }) else {
                self.ledger.tell(ExtractEvent::Planned { path: &entry.path, attr: &entry.attr });
                continue;
            };
            let is_directory = entry.attr.file_type == FileType::Directory;
            if taken_depth.is_none_or(|taken| entry.depth <= taken) {
                let choice = filter(&entry);
                taken_depth = (choice == Choice::TakeAll).then_some(entry.depth);
                if choice == Choice::LeaveOut {
                    if is_directory {
                        walk.skip_directory();
                    }
                    continue;
                }
            }
            levels.truncate(depth + 1);
            let Some((directory, names)) = levels.last_mut() else { return };
            if let Some(rule) = names.refuse(self.image, directory.attr.nid, entry.name()) {
                if is_directory {
                    walk.skip_directory();
                }
                self.ledger.fail(entry.path, ExtractWarningCause::Refused(rule));
                continue;
            }
            self.ledger.tell(ExtractEvent::Planned { path: &entry.path, attr: &entry.attr });
            let directory = Arc::clone(directory);
            if !is_directory {
                self.add(directory, entry.name(), entry.attr);
            } else if let Some(made) = self.make_directory(&directory, entry.name(), entry.attr) {
                levels.push((made, Names::default()));
            } else {
                walk.skip_directory();
            }
        }
    }

    fn add(&mut self, directory: Arc<TreeDirectory>, name: &[u8], attr: Attr) {
        let name: Box<[u8]> = name.into();
        let mut names = None;
        if attr.link_count > 1 {
            if let Some(names) = self.created_names.get(&attr.nid).cloned() {
                let position = Position::default();
                self.links.push(Item { directory, name, attr, position, names: Some(names) });
                return;
            }
            let created = names.insert(Arc::default());
            self.created_names.insert(attr.nid, Arc::clone(created));
        }
        let position = Position::of(self.image, &attr);
        self.items.push(Item { directory, name, attr, position, names });
        if self.items.len() >= self.items_max {
            self.flush();
            self.items_max = (self.items_max * 2).min(ITEMS_MAX);
        }
    }

    fn flush(&mut self) {
        let items = std::mem::take(&mut self.items);
        tasks(items, self.threads, |task| {
            // Sending fails only if all workers panicked.
            let _ = self.sender.send(task);
        });
    }

    fn make_directory(&mut self, parent: &Arc<TreeDirectory>, name: &[u8], attr: Attr) -> Option<Arc<TreeDirectory>> {
        match self.try_make_directory(parent, name) {
            Ok((opened, identity, is_old)) => {
                if is_old {
                    permit_entries(opened.as_fd());
                }
                let made = TreeDirectory::new(self.made.len(), (parent, name), identity, attr, is_old);
                self.directories.keep(self.made.len(), opened);
                self.made.push(Arc::clone(&made));
                Some(made)
            }
            Err(error) => {
                let action = ExtractAction::Create(FileType::Directory);
                self.ledger.fail(parent.path_of(name), ExtractWarningCause::Target(action, error));
                None
            }
        }
    }

    /// Creates a directory, accessible only to this user until it is finished, and opens it. Also returns whether it
    /// existed before.
    fn try_make_directory(
        &mut self,
        parent: &Arc<TreeDirectory>,
        name: &[u8],
    ) -> io::Result<(OwnedFd, Identity, bool)> {
        let inside = self.directories.open(parent)?;
        let mode = Mode::RWXU;
        let is_old = match mkdirat(inside, name, mode) {
            Err(Errno::EXIST) => true,
            made => made.map(|()| false)?,
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (opened, is_old) = match openat(inside, name, flags, Mode::empty()) {
            Ok(opened) => (opened, is_old),
            Err(Errno::NOTDIR | Errno::LOOP) if self.options.force => {
                unlinkat(inside, name, AtFlags::empty())?;
                mkdirat(inside, name, mode)?;
                (openat(inside, name, flags, Mode::empty())?, false)
            }
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::EXIST.into()),
            Err(error) => return Err(error.into()),
        };
        let identity = Identity::of(opened.as_fd())?;
        Ok((opened, identity, is_old))
    }
}

/// Checks the names of one directory: no name occurs twice or leads out of it.
#[derive(Default)]
struct Names {
    last: Vec<u8>,
    /// All names so far; collected only after the first name that is out of order.
    seen: Option<HashSet<Vec<u8>>>,
}

impl Names {
    /// Returns why `name` must not be created in `directory`, or `None` if it may. The caller passes names in the order
    /// of the image.
    fn refuse(&mut self, image: &Image, directory: Nid, name: &[u8]) -> Option<&'static str> {
        if name.is_empty() || name == b"." || name == b".." {
            return Some("empty name, or a name of dots");
        }
        if name.iter().any(|byte| matches!(byte, b'/' | b'\0')) {
            return Some("name with a slash or a NUL");
        }
        if let Some(seen) = &mut self.seen {
            return (!seen.insert(name.to_vec())).then_some("name that occurs twice in its directory");
        }
        if self.last.is_empty() || self.last.as_slice() < name {
            self.last.clear();
            self.last.extend_from_slice(name);
            return None;
        }
        // The names are not sorted, so from here on all names are remembered. The earlier ones are read again, once.
        let before = image.read_dir(directory).map_while(|entry| entry.ok().map(|entry| entry.name));
        let mut seen = HashSet::new();
        for earlier in before {
            let is_last = earlier == self.last;
            seen.insert(earlier);
            if is_last {
                break;
            }
        }
        let is_new = seen.insert(name.to_vec());
        self.seen = Some(seen);
        (!is_new).then_some("name that occurs twice in its directory")
    }
}

/// A part of an image, with the names that lead to it from the root. No name leads through a link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Selected {
    pub(super) names: Vec<Vec<u8>>,
    /// The inodes of those names, one for each.
    pub(super) nids: Vec<Nid>,
}

impl Selected {
    pub(super) const ROOT: Self = Self { names: Vec::new(), nids: Vec::new() };
}

/// Resolves paths. No result lies within another.
pub(super) fn select(image: &Image, root: Nid, paths: &[Vec<u8>]) -> Result<Vec<Selected>, PathError> {
    let mut selection = Vec::new();
    for path in paths {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                names.pop();
            } else {
                names.push(name.to_vec());
            }
        }
        let mut nids = Vec::new();
        let mut nid = root;
        for (index, name) in names.iter().enumerate() {
            let told = || names[..=index].iter().flat_map(|name| [b"/", name.as_slice()].concat()).collect();
            let found = match image.file_system().lookup(nid, name) {
                Err(floe_image::Error::WrongType { .. }) => None,
                other => other?,
            };
            nid = found.ok_or_else(|| PathError::NotFound { path: told() })?;
            nids.push(nid);
        }
        selection.push(Selected { names, nids });
    }
    selection.sort();
    // In sorted order, a part comes after the parts that contain it.
    selection.dedup_by(|later, earlier| later.names.starts_with(&earlier.names));
    Ok(selection)
}
