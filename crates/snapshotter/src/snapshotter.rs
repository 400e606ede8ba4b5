//! The operations on snapshots.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown},
    path::{Path, PathBuf},
    sync::Arc,
};

use floe_image::ShownName;
use floe_keeper::{MountCommand, unmount_all};
use floe_sync::{Mutex, Turns};

use crate::{
    error::{Result, SnapshotError},
    filter::Filter,
    labels::{self, Labels, RemoteLayer, SNAPSHOT_REF},
    messages::Mount,
    mounts::{Directories, Overlay},
    record::{Content, Record, State, Time, Usage},
    records::Records,
};

/// The directories of a snapshot: its files, which are the upper directory of an overlay, and the work directory of one.
const FILES: &str = "fs";
const WORK: &str = "work";
/// The file that makes containerd's erofs differ store a layer as an image, and that image.
const EROFS_MARK: &str = ".erofslayer";
const EROFS_LAYER: &str = "layer.erofs";

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
    /// Whether containerd's erofs differ converts ordinary layers.
    pub converts: bool,
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
    overlay: Overlay,
    records: Mutex<Records>,
    /// The names of layers that are being mounted.
    turns: Turns<String>,
    say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Snapshotter {
    /// Opens the state. Damaged records cost their snapshots, and are reported with `say`, as are later problems.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn open(options: SnapshotterOptions, say: Arc<dyn Fn(&str) + Send + Sync>) -> Result<Self> {
        let snapshots = options.root.join("snapshots");
        // Other users must not see the files of containers, some of which have set-user-id bits.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&snapshots);
        made.map_err(SnapshotError::file(&snapshots))?;
        let (records, messages) = Records::open(&options.root.join("records"), &ids_in(&snapshots)?)?;
        messages.iter().for_each(|message| say(message));
        let (records, overlay) = (Mutex::new(records), Overlay::detect());
        Ok(Self { options, overlay, records, turns: Turns::default(), say })
    }

    /// Creates a writable snapshot. The layer of an EROFS image in a registry is mounted and committed instead.
    ///
    /// # Errors
    /// The name or the layer exists already; there is no such parent.
    pub(crate) fn prepare(&self, key: &str, parent: &str, labels: Labels) -> Result<Vec<Mount>> {
        labels::check(&labels)?;
        if let Some(layer) = labels::remote_layer(&labels) {
            self.records.lock().check_new(key)?;
            match self.add_remote(&layer, parent, &labels) {
                Ok(()) => return Err(SnapshotError::AlreadyExists(layer.target)),
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
        let directory = self.directory(record.id);
        let blob = directory.join(EROFS_LAYER);
        let failed = SnapshotError::file(&directory);
        let (content, usage) = match fs::symlink_metadata(&blob) {
            Ok(metadata) => {
                self.mount_image(&Content::Blob, record.id)?;
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
        (record.state, record.content, record.usage, record.labels) = (State::Committed, content, usage, labels);
        (record.created, record.updated) = (Time::now(), Time::now());
        records.store(key, record)
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
        if let Err(error) = self.delete(record.id) {
            (self.say)(&error.to_string());
        }
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
        let directory = self.directory(record.id).join(FILES);
        match record.state {
            State::Committed => Ok(record.usage),
            State::View => Ok(Usage::default()),
            State::Active => Usage::of_tree(&directory).map_err(SnapshotError::file(&directory)),
        }
    }

    /// Removes the files of snapshots that do not exist any more.
    ///
    /// # Errors
    /// They cannot be removed.
    pub(crate) fn cleanup(&self) -> Result<()> {
        let snapshots = self.options.root.join("snapshots");
        let garbage = {
            // Directories are created under this lock.
            let records = self.records.lock();
            let used: BTreeSet<u64> = records.all().map(|record| record.id).collect();
            let busy = self.turns.busy();
            if busy.is_empty() { ids_in(&snapshots)?.difference(&used).copied().collect() } else { Vec::new() }
        };
        garbage.into_iter().try_for_each(|id| self.delete(id))
    }

    fn directory(&self, id: u64) -> PathBuf {
        self.options.root.join("snapshots").join(id.to_string())
    }

    /// Creates a snapshot with a directory.
    fn create(&self, key: &str, parent: &str, state: State, labels: Labels) -> Result<Vec<Mount>> {
        if key.is_empty() {
            return Err(SnapshotError::InvalidArgument("a snapshot needs a name".to_owned()));
        }
        let parents = {
            let records = self.records.lock();
            records.check_new(key)?;
            match parent {
                "" => Vec::new(),
                parent => {
                    let parent = records.parent(parent)?.clone();
                    let mut parents = records.parents(&parent)?;
                    parents.insert(0, parent);
                    parents
                }
            }
        };
        // Also finds the owner of the root, which the new directory gets.
        let lower = self.lower(&parents)?;
        let mut records = self.records.lock();
        records.check_new(key)?;
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
        };
        let is_erofs = state == State::Active && self.is_for_differ(&record.labels);
        let made = self.make_directory(id, state, lower.first().map(Path::new), is_erofs);
        if let Err(error) = made.and_then(|()| records.store("", record.clone())) {
            drop(records);
            let _ = self.delete(id);
            return Err(error);
        }
        drop(records);
        Ok(self.overlay_mounts(&record, &lower))
    }

    /// Whether containerd's erofs differ may store an image in a snapshot.
    fn is_for_differ(&self, labels: &Labels) -> bool {
        labels.contains_key(SNAPSHOT_REF) && (self.options.converts || labels::is_erofs(labels))
    }

    fn make_directory(&self, id: u64, state: State, lower: Option<&Path>, is_erofs: bool) -> Result<()> {
        let directory = self.directory(id);
        let make = || -> io::Result<()> {
            fs::create_dir(&directory)?;
            let files = directory.join(FILES);
            fs::create_dir(&files)?;
            fs::set_permissions(&files, fs::Permissions::from_mode(0o755))?;
            if let Some(lower) = lower {
                let root = fs::metadata(lower)?;
                lchown(&files, Some(root.uid()), Some(root.gid()))?;
            }
            if state == State::Active {
                fs::create_dir(directory.join(WORK))?;
            }
            if is_erofs {
                fs::write(directory.join(EROFS_MARK), "")?;
            }
            Ok(())
        };
        make().map_err(SnapshotError::file(&directory))
    }

    /// Mounts a layer from its registry, and commits it.
    fn add_remote(&self, layer: &RemoteLayer, parent: &str, labels: &Labels) -> Result<()> {
        let _turn = self.turns.take(&layer.target);
        let id = {
            let mut records = self.records.lock();
            if records.find(&layer.target).is_ok() {
                return Ok(());
            }
            if !parent.is_empty() {
                records.parent(parent)?;
            }
            records.take_id()
        };
        let content = Content::Remote(layer.url.clone());
        let added = self.make_directory(id, State::View, None, false).and_then(|()| self.mount_image(&content, id));
        let added = added.and_then(|()| {
            let now = Time::now();
            let record = Record {
                id,
                name: layer.target.clone(),
                parent: (!parent.is_empty()).then(|| parent.to_owned()),
                state: State::Committed,
                content,
                labels: labels::of_remote(labels),
                created: now,
                updated: now,
                usage: Usage::default(),
            };
            self.records.lock().store("", record)
        });
        if added.is_err() {
            let _ = self.delete(id);
        }
        added
    }

    fn mounts_of(&self, record: &Record, parents: &[Record]) -> Result<Vec<Mount>> {
        Ok(self.overlay_mounts(record, &self.lower(parents)?))
    }

    fn overlay_mounts(&self, record: &Record, lower: &[String]) -> Vec<Mount> {
        let directory = self.directory(record.id);
        let (own, work) = (directory.join(FILES), directory.join(WORK));
        let upper = (record.state == State::Active).then_some(own.as_path());
        self.overlay.mounts(&Directories { upper, work: &work, lower, own: &own })
    }

    /// The directories of parents, which are mounted if they were not, as after a restart of the machine.
    fn lower(&self, parents: &[Record]) -> Result<Vec<String>> {
        let lower = parents.iter().map(|parent| {
            self.mount_image(&parent.content, parent.id)?;
            let path = self.directory(parent.id).join(FILES);
            let text = path.to_str().filter(|text| !text.contains([':', ',', '\\']));
            let wrong = || SnapshotError::Failed(format!("overlayfs does not support the path {}", path.shown()));
            text.map(str::to_owned).ok_or_else(wrong)
        });
        lower.collect()
    }

    /// Mounts the image of a snapshot, if it has one.
    fn mount_image(&self, content: &Content, id: u64) -> Result<()> {
        let directory = self.directory(id);
        let image = match content {
            Content::Directory => return Ok(()),
            Content::Blob => directory.join(EROFS_LAYER).to_string_lossy().into_owned(),
            Content::Remote(url) => url.clone(),
        };
        // Two threads must not mount the same image one above the other.
        let _turn = self.turns.take(&id.to_string());
        let mounted = self.options.mount.mount(&image, self.options.auth_file.as_deref(), &directory.join(FILES));
        mounted.map_err(|error| SnapshotError::Failed(error.to_string()))
    }

    /// Removes the directory of a snapshot, and its mounts.
    fn delete(&self, id: u64) -> Result<()> {
        let directory = self.directory(id);
        let failed = SnapshotError::file(&directory);
        unmount_all(&directory.join(FILES)).map_err(&failed)?;
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }
}

/// The numbers of the directories in a directory.
fn ids_in(directory: &Path) -> Result<BTreeSet<u64>> {
    let failed = SnapshotError::file(directory);
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(directory).map_err(&failed)? {
        ids.extend(entry.map_err(&failed)?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(ids)
}
