//! The operations on snapshots.

mod conversion;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::ShownName;
use floe_keeper::MountCommand;
use floe_sync::{Mutex, MutexGuard, Turns};

use crate::{
    ahead::Ahead,
    error::{Result, SnapshotError},
    filter::Filter,
    labels::{self, Labels, RemoteLayer, SNAPSHOT_REF},
    messages::Mount,
    mounts::{Directories, Overlay},
    record::{Content, Record, State, Time, Usage},
    records::Records,
    snapshot_directories::{EROFS_LAYER, FILES, SnapshotDirectories, WORK},
    twins::{TwinOptions, Twins},
};

use self::conversion::Wake;
pub use self::conversion::{ConversionOptions, Conversions};

/// How many times the parents of a new snapshot are mounted if they change meanwhile.
const ATTEMPTS_MAX: usize = 8;

/// Settings of a snapshotter.
#[derive(Clone, Debug)]
pub struct SnapshotterOptions {
    /// The directory of its state.
    pub root: PathBuf,
    /// Mounts layers.
    pub mount: MountCommand,
    /// A file with credentials for registries.
    pub auth_file: Option<PathBuf>,
    /// What happens with a layer that cannot be mounted from its registry.
    pub unreachable: Unreachable,
    /// How converted twins of ordinary layers are found; `None` if registries are not asked for any.
    pub twins: Option<TwinOptions>,
    /// Whether containerd's erofs differ converts ordinary layers.
    pub converts: bool,
    /// How ordinary layers are converted in the background, after they were unpacked; `None` if they stay as they are.
    pub conversion: Option<ConversionOptions>,
}

/// What happens with a layer that cannot be mounted from its registry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unreachable {
    /// containerd fetches it as a whole.
    #[default]
    Pull,
    /// The pull of the image fails.
    Fail,
}

/// Snapshots, in a directory. All operations may take long, and may be called on several threads.
pub struct Snapshotter {
    options: SnapshotterOptions,
    directories: Arc<SnapshotDirectories>,
    overlay: Overlay,
    records: Mutex<Records>,
    /// The names of layers that are being mounted.
    turns: Turns<String>,
    twins: Option<Twins>,
    ahead: Ahead,
    conversions: Arc<Wake>,
    say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Snapshotter {
    /// Opens the state. Damaged records cost their snapshots, and are reported with `say`, as are later problems.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(options: SnapshotterOptions, say: Arc<dyn Fn(&str) + Send + Sync>) -> Result<Self> {
        let directories = SnapshotDirectories::open(&options.root, options.mount.clone(), options.auth_file.clone())?;
        let (records, messages) = Records::open(&options.root.join("records"), &directories.ids()?)?;
        messages.iter().for_each(|message| say(message));
        let (records, overlay) = (Mutex::new(records), Overlay::detect());
        let twins = options.twins.clone().map(Twins::new);
        let (directories, turns, ahead) = (Arc::new(directories), Turns::default(), Ahead::default());
        let conversions = Arc::default();
        Ok(Self { options, directories, overlay, records, turns, twins, ahead, conversions, say })
    }

    /// Creates a writable snapshot. The layer of an EROFS image in a registry is mounted and committed instead. If the parent will be
    /// known with its commit only, it is mounted, and the mounts are read-only: containerd 2.4 then neither fetches nor unpacks it.
    ///
    /// # Errors
    /// The name or the layer exists already; there is no such parent.
    pub(crate) fn prepare(&self, key: &str, parent: &str, labels: Labels) -> Result<Vec<Mount>> {
        labels::check(&labels)?;
        if let Some(layer) = labels::remote_layer(&labels)
            && let Some(url) = self.mountable(&layer)
        {
            self.records.lock().check_new(key)?;
            if layer.is_erofs {
                // The layers above it are likely to be images, too.
                self.mount_ahead(labels::later_layers(&labels, &layer));
            }
            let added = match labels::is_unpacked_in_parallel(&labels, parent) {
                true => self.add_remote(url, key, State::Active, parent, &labels).map(Some),
                false => self.add_remote(url, &layer.target, State::Committed, parent, &labels).map(|_| None),
            };
            match added {
                Ok(None) => return Err(SnapshotError::AlreadyExists(layer.target)),
                Ok(Some(staged)) => return self.overlay_mounts(&staged, &[]),
                Err(error @ SnapshotError::Failed(_)) if self.options.unreachable == Unreachable::Pull => {
                    (self.say)(&format!("{error}; containerd fetches the layer"));
                }
                Err(error) => return Err(error),
            }
        }
        self.create(key, parent, State::Active, labels)
    }

    /// Creates a read-only snapshot.
    ///
    /// # Errors
    /// As for [`Self::prepare`].
    pub(crate) fn view(&self, key: &str, parent: &str, labels: Labels) -> Result<Vec<Mount>> {
        labels::check(&labels)?;
        self.create(key, parent, State::View, labels)
    }

    /// What containerd mounts for a snapshot.
    ///
    /// # Errors
    /// There is none, it is committed, or a layer cannot be mounted.
    pub(crate) fn mounts(&self, key: &str) -> Result<Vec<Mount>> {
        let (record, parents) = {
            let records = self.records.lock();
            let record = records.find(key)?.clone();
            if record.is_committed() {
                return Err(SnapshotError::FailedPrecondition(format!("{key} is committed, and has no mounts")));
            }
            let parents = records.parents(&record)?;
            (record, parents)
        };
        self.mounts_of(&record, &parents)
    }

    /// Makes a snapshot a parent of others. Its labels are replaced. With a parent, it is moved onto that.
    ///
    /// # Errors
    /// The name exists; there is no such snapshot, or it is not writable.
    pub(crate) fn commit(&self, name: &str, key: &str, parent: &str, labels: Labels) -> Result<()> {
        labels::check(&labels)?;
        let record = {
            let records = self.records.lock();
            records.check_new(name)?;
            let record = records.find(key)?;
            if record.state != State::Active {
                return Err(SnapshotError::FailedPrecondition(format!("{key} is not writable")));
            }
            record.clone()
        };
        let directory = self.directories.path(record.id);
        let blob = directory.join(EROFS_LAYER);
        let failed = SnapshotError::file(&directory);
        let (content, usage) = match fs::symlink_metadata(&blob) {
            _ if matches!(record.content, Content::Remote(_)) => (record.content, Usage::default()),
            Ok(metadata) => {
                self.directories.mount_image(&Content::Blob, record.id)?;
                (Content::Blob, Usage { bytes: metadata.blocks() * 512, inodes: 1 })
            }
            Err(_) => (Content::Directory, Usage::of_tree(&directory.join(FILES)).map_err(failed)?),
        };
        let mut records = self.records.lock();
        records.check_new(name)?;
        let mut record = records.find(key)?.clone();
        match (parent, record.parent.as_deref()) {
            ("", _) => {}
            (parent, None) => {
                records.parent(parent)?;
                record.parent = Some(parent.to_owned());
            }
            (parent, Some(own)) if parent != own => {
                return Err(SnapshotError::InvalidArgument(format!("{key} has another parent than {parent}: {own}")));
            }
            _ => {}
        }
        record.name = name.to_owned();
        let labels = if matches!(content, Content::Remote(_)) { labels::of_remote(&labels) } else { labels };
        (record.state, record.content, record.usage, record.labels) = (State::Committed, content, usage, labels);
        (record.created, record.updated) = (Time::now(), Time::now());
        records.store(key, record)?;
        drop(records);
        self.conversions.new_layers();
        Ok(())
    }

    /// Removes a snapshot and its files.
    ///
    /// # Errors
    /// There is none, or it is a parent.
    pub(crate) fn remove(&self, key: &str) -> Result<()> {
        let record = {
            let mut records = self.records.lock();
            records.find(key)?;
            if let Some(child) = records.children(key).next() {
                return Err(SnapshotError::FailedPrecondition(format!("{key} is the parent of {child}")));
            }
            records.remove(key)?
        };
        // Without a record, the files are garbage, which Cleanup also removes.
        if let Err(error) = self.directories.delete(record.id) {
            (self.say)(&error.to_string());
        }
        // There may be room for the image of another layer now.
        self.conversions.new_layers();
        Ok(())
    }

    /// Describes a snapshot.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn stat(&self, key: &str) -> Result<Record> {
        self.records.lock().find(key).cloned()
    }

    /// Changes labels: all of them, or those that `paths` names.
    ///
    /// # Errors
    /// There is no such snapshot, or another field is to be changed.
    pub(crate) fn update(&self, key: &str, new: &Labels, paths: &[String]) -> Result<Record> {
        let mut records = self.records.lock();
        let mut record = records.find(key)?.clone();
        for path in paths {
            match path.strip_prefix("labels") {
                Some("") => record.labels.clone_from(new),
                Some(name) if name.starts_with('.') => match new.get(&name[1..]).filter(|value| !value.is_empty()) {
                    Some(value) => drop(record.labels.insert(name[1..].to_owned(), value.clone())),
                    None => drop(record.labels.remove(&name[1..])),
                },
                _ => return Err(SnapshotError::InvalidArgument(format!("{path:.64} of a snapshot cannot be changed"))),
            }
        }
        if paths.is_empty() {
            record.labels.clone_from(new);
        }
        labels::check(&record.labels)?;
        record.updated = Time::now();
        records.store(key, record.clone())?;
        Ok(record)
    }

    /// The snapshots that satisfy one of the filters; all, if there are none.
    pub(crate) fn list(&self, filters: &[Filter]) -> Vec<Record> {
        let records = self.records.lock();
        let is_wanted = |record: &&Record| filters.is_empty() || filters.iter().any(|filter| filter.fits(record));
        records.all().filter(is_wanted).cloned().collect()
    }

    /// What a snapshot takes on disk, without its parents.
    ///
    /// # Errors
    /// There is none, or its files cannot be read.
    pub(crate) fn usage(&self, key: &str) -> Result<Usage> {
        let record = self.stat(key)?;
        let directory = self.directories.path(record.id).join(FILES);
        match record.state {
            State::Committed => Ok(record.usage),
            State::View => Ok(Usage::default()),
            State::Active if record.content != Content::Directory => Ok(Usage::default()),
            State::Active => Usage::of_tree(&directory).map_err(SnapshotError::file(&directory)),
        }
    }

    /// Removes the files of snapshots that do not exist any more, and those that are no longer needed beside a converted image.
    ///
    /// # Errors
    /// They cannot be removed.
    pub(crate) fn cleanup(&self) -> Result<()> {
        let garbage = {
            // Directories are created under this lock.
            let records = self.records.lock();
            let used: BTreeSet<u64> = records.all().map(|record| record.id).collect();
            let busy = self.turns.busy();
            let found = self.directories.ids()?;
            let unused = found.difference(&used).copied();
            // Asked for after the directories were listed, because a layer is known there before its directory is made.
            let ahead = self.ahead.ids();
            if busy.is_empty() { unused.filter(|id| !ahead.contains(id)).collect() } else { Vec::new() }
        };
        garbage.into_iter().try_for_each(|id| self.directories.delete(id))?;
        self.remove_converted_directories()
    }

    /// Creates a snapshot with a directory.
    fn create(&self, key: &str, parent: &str, state: State, labels: Labels) -> Result<Vec<Mount>> {
        if key.is_empty() {
            return Err(SnapshotError::InvalidArgument("a snapshot needs a name".to_owned()));
        }
        let mapping = labels::id_mapping(&labels)?;
        let (mut records, lower) = self.lower_of_new(key, parent, mapping.is_some())?;
        let id = records.take_id();
        let now = Time::now();
        let record = Record {
            id,
            name: key.to_owned(),
            parent: (!parent.is_empty()).then(|| parent.to_owned()),
            state,
            content: Content::Directory,
            labels,
            created: now,
            updated: now,
            usage: Usage::default(),
            converted: None,
        };
        let is_erofs = state == State::Active && self.is_for_differ(&record.labels);
        let made = self.directories.make(id, state, lower.first().map(Path::new), mapping.as_ref(), is_erofs);
        if let Err(error) = made.and_then(|()| records.store("", record.clone())) {
            drop(records);
            let _ = self.directories.delete(id);
            return Err(error);
        }
        drop(records);
        let mounts = self.overlay_mounts(&record, &lower);
        if mounts.is_err() {
            self.remove(key)?;
        }
        mounts
    }

    /// The directories of the parents of a snapshot that is to be created. The records stay locked, so that they remain the right ones.
    fn lower_of_new(&self, key: &str, parent: &str, is_mapped: bool) -> Result<(MutexGuard<'_, Records>, Vec<String>)> {
        let forms = |parents: &[Record]| -> Vec<_> {
            parents.iter().map(|parent| (parent.id, parent.has_image_for(u64::MAX, is_mapped))).collect()
        };
        for _ in 0..ATTEMPTS_MAX {
            let parents = self.records.lock().new_parents(key, parent)?;
            // Also finds the owner of the root, which the new directory gets.
            let lower = self.lower(&parents, u64::MAX, is_mapped)?;
            let records = self.records.lock();
            // A parent may have been converted meanwhile, and its directory removed.
            if forms(&records.new_parents(key, parent)?) == forms(&parents) {
                return Ok((records, lower));
            }
        }
        Err(SnapshotError::Failed(format!("the parents of {key} change again and again")))
    }

    /// Whether containerd's erofs differ may store an image in a snapshot.
    fn is_for_differ(&self, labels: &Labels) -> bool {
        labels.contains_key(SNAPSHOT_REF) && (self.options.converts || labels::is_erofs(labels))
    }

    /// The URL of an EROFS image with the files of a layer: the layer itself, or its converted twin.
    fn mountable(&self, layer: &RemoteLayer) -> Option<String> {
        if layer.is_erofs {
            return Some(layer.own_url());
        }
        let found = self.twins.as_ref()?.find(layer);
        found.unwrap_or_else(|error| {
            (self.say)(&format!("{}: no converted layers are looked for: {error}", layer.image.escape_debug()));
            None
        })
    }

    /// Mounts a layer from its registry, and stores it under a name, unless there is a snapshot with this name.
    fn add_remote(&self, url: String, name: &str, state: State, parent: &str, labels: &Labels) -> Result<Record> {
        let _turn = self.turns.take(name);
        {
            let records = self.records.lock();
            if let Ok(record) = records.find(name) {
                return Ok(record.clone());
            }
            if !parent.is_empty() {
                records.parent(parent)?;
            }
        }
        let (id, made) = match self.ahead.take(&url).map_err(SnapshotError::Failed)? {
            Some(id) => (id, Ok(())),
            None => {
                let id = self.records.lock().take_id();
                (id, self.directories.make(id, State::View, None, None, false))
            }
        };
        let content = Content::Remote(url);
        let added = made.and_then(|()| self.directories.mount_image(&content, id));
        let added = added.and_then(|()| {
            let now = Time::now();
            let record = Record {
                id,
                name: name.to_owned(),
                parent: (!parent.is_empty()).then(|| parent.to_owned()),
                state,
                content,
                labels: labels::of_remote(labels),
                created: now,
                updated: now,
                usage: Usage::default(),
                converted: None,
            };
            self.records.lock().store("", record.clone())?;
            Ok(record)
        });
        if added.is_err() {
            let _ = self.directories.delete(id);
        }
        added
    }

    /// Begins to mount layers that containerd will ask for.
    fn mount_ahead(&self, urls: Vec<String>) {
        let layers: Vec<(String, u64)> = {
            let mut records = self.records.lock();
            let is_known = |url: &String| {
                let is_same = |content: &Content| matches!(content, Content::Remote(known) if known == url);
                records.all().any(|record| is_same(&record.content))
            };
            let urls: Vec<String> = self.ahead.unknown(urls).into_iter().filter(|url| !is_known(url)).collect();
            urls.into_iter().map(|url| (url, records.take_id())).collect()
        };
        let directories = Arc::clone(&self.directories);
        self.ahead.begin(layers, move |url, id| {
            let made = directories.make(id, State::View, None, None, false);
            let mounted = made.and_then(|()| directories.mount_image(&Content::Remote(url.to_owned()), id));
            mounted.map_err(|error| {
                let _ = directories.delete(id);
                error.to_string()
            })
        });
    }

    fn mounts_of(&self, record: &Record, parents: &[Record]) -> Result<Vec<Mount>> {
        self.directories.mount_image(&record.content, record.id)?;
        let is_mapped = labels::id_mapping(&record.labels)?.is_some();
        self.overlay_mounts(record, &self.lower(parents, record.id, is_mapped)?)
    }

    fn overlay_mounts(&self, record: &Record, lower: &[String]) -> Result<Vec<Mount>> {
        let is_writable = record.state == State::Active && record.content == Content::Directory;
        let parent = record.parent.as_deref().unwrap_or_default();
        let lower = match labels::id_mapping(&record.labels)? {
            Some(mapping) => self.directories.map_owners(record.id, &mapping, lower)?,
            // containerd turns whiteouts into those of overlayfs only if it unpacks into an overlay.
            None if is_writable && labels::is_unpacked_in_parallel(&record.labels, parent) => {
                vec![self.directories.make_empty(record.id)?]
            }
            None => lower.to_vec(),
        };
        let directory = self.directories.path(record.id);
        let (own, work) = (directory.join(FILES), directory.join(WORK));
        let upper = is_writable.then_some(own.as_path());
        Ok(self.overlay.mounts(&Directories { upper, work: &work, lower: &lower, own: &own }))
    }

    /// The directories of the parents of a snapshot with this number, which are mounted if they were not, as after a restart of the
    /// machine.
    fn lower(&self, parents: &[Record], snapshot: u64, is_mapped: bool) -> Result<Vec<String>> {
        let lower = parents.iter().map(|parent| {
            let image = if parent.has_image_for(snapshot, is_mapped) { self.mount_converted(parent)? } else { None };
            let path = match image {
                Some(mounted) => mounted,
                None => {
                    self.directories.mount_image(&parent.content, parent.id)?;
                    self.directories.path(parent.id).join(FILES)
                }
            };
            let text = path.to_str().filter(|text| !text.contains([':', ',', '\\']));
            let wrong = || SnapshotError::Failed(format!("overlayfs does not support the path {}", path.shown()));
            text.map(str::to_owned).ok_or_else(wrong)
        });
        lower.collect()
    }
}

#[cfg(test)]
mod tests;
