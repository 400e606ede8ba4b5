//! The operations on layers.

use std::{
    collections::HashMap,
    fs,
    io::{self, ErrorKind::AlreadyExists},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use floe_image::ShownName;
use floe_keeper::{MountCommand, is_mounted, unmount_all};
use floe_remote::{ImageOptions, ImageReference, RemoteImage, RemoteOptions};
use floe_remote_cache::Digest;
use floe_sync::{Mutex, Turns};
use rustix::fs::{FlockOperation, flock};
use serde_json::json;

use crate::{
    contents::Contents,
    credentials,
    name::{Reference, layer_name},
    record::Record,
    searches::Searches,
};

/// The directory with a layer's tree, in the directory of the layer.
const TREE: &str = "diff";
/// The file that one store at a time has locked.
const LOCK: &str = "lock";
/// How long a layer stays mounted that was looked up but not used.
const UNUSED_MAX: Duration = Duration::from_secs(300);

/// Receives messages for users.
pub(crate) type Say = dyn Fn(&str) + Send + Sync;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The directory of its state.
    pub root: PathBuf,
    /// The directory with credentials that [`take_credentials`](crate::take_credentials) has stored.
    pub credentials: PathBuf,
    /// Mounts layers.
    pub mount: MountCommand,
    /// How registries are read.
    pub image: ImageOptions,
    /// The repository with layers by diff IDs.
    pub contents: Option<ImageReference>,
}

/// Layers, by the roots that they are verified with.
pub struct Store {
    options: StoreOptions,
    layers: Mutex<HashMap<Digest, Layer>>,
    searches: Searches,
    /// Layers by diff IDs.
    pub(crate) contents: Option<Contents>,
    /// The roots that a thread works on at present.
    turns: Turns<Digest>,
    say: Arc<Say>,
    _lock: fs::File,
}

struct Layer {
    record: Record,
    looked_up: Instant,
}

impl Store {
    /// Opens a store. Layers that an earlier one has mounted stay mounted, and are this one's. `say` receives messages for users.
    ///
    /// # Errors
    /// Another process uses the directory, or it cannot be used.
    pub fn open(options: StoreOptions, say: Arc<Say>) -> io::Result<Self> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", options.root.shown()));
        fs::create_dir_all(&options.root).map_err(failed)?;
        let lock = fs::File::create(options.root.join(LOCK)).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| failed(io::Error::new(AlreadyExists, "another store uses it: choose another --root")))?;
        let mut layers = HashMap::new();
        for entry in fs::read_dir(&options.root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(root) = name.to_str().and_then(|name| name.parse::<Digest>().ok()) else { continue };
            let directory = options.root.join(&name);
            match Record::load(&directory) {
                Ok(record) => {
                    layers.insert(root, Layer { record, looked_up: Instant::now() });
                }
                Err(error) => {
                    say(&format!("a layer is forgotten: {error}"));
                    remove(&directory).map_err(failed)?;
                }
            }
        }
        let contents = options.contents.clone().map(|repository| Contents::new(repository, options.image.clone()));
        let (searches, turns) = (Searches::default(), Turns::default());
        Ok(Self { options, layers: Mutex::new(layers), searches, contents, turns, say, _lock: lock })
    }

    /// The mounted tree of a layer; `None` if the image has no such layer that can be mounted.
    ///
    /// # Errors
    /// The registry does not answer, or the layer cannot be mounted.
    pub(crate) fn tree(&self, image: &Reference, root: &Digest) -> io::Result<Option<PathBuf>> {
        let _turn = self.turns.take(root);
        self.remove_unused(root);
        let Some((record, is_new)) = self.find(image, root)? else { return Ok(None) };
        let tree = self.tree_of(root);
        let mounted = self.mount(&record, &tree);
        let record = match mounted {
            Ok(()) => record,
            Err(error) if is_new => return Err(error),
            // The image may have been removed from the repository where the layer was found first.
            Err(error) => match self.search(image, root)? {
                Some(found) => {
                    let found = Record { uses: record.uses, ..found };
                    self.mount(&found, &tree)?;
                    found
                }
                None => return Err(error),
            },
        };
        self.keep(root, record)?;
        Ok(Some(tree))
    }

    /// The path of a layer's tree, which need not be mounted.
    pub(crate) fn tree_of(&self, root: &Digest) -> PathBuf {
        self.directory(root).join(TREE)
    }

    /// The description of a layer, as containers/storage reads it.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) fn info(&self, image: &Reference, root: &Digest) -> io::Result<Option<Vec<u8>>> {
        let Some((record, _)) = self.find(image, root)? else { return Ok(None) };
        // The digest of the whole layer was not computed, so it is only what the layer is expected to have.
        let info = json!({
            "toc-digest": layer_name(root),
            "diff-size": -1,
            "compressed-size": record.len,
            "flags": { "expected-layer-diffid": layer_name(&record.digest) },
        });
        Ok(Some(info.to_string().into_bytes()))
    }

    /// The length of a layer in bytes.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) fn len(&self, image: &Reference, root: &Digest) -> io::Result<Option<u64>> {
        Ok(self.find(image, root)?.map(|(record, _)| record.len))
    }

    /// The bytes of a layer.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) fn blob(&self, image: &Reference, root: &Digest) -> io::Result<Option<RemoteImage>> {
        let Some((record, _)) = self.find(image, root)? else { return Ok(None) };
        let options = ImageOptions { remote: self.remote_options(&record.layer), ..self.options.image.clone() };
        RemoteImage::open(&record.layer.to_string(), &options, |_| ()).map(Some)
    }

    /// Notes that a storage uses a layer that was looked up.
    pub(crate) fn acquire(&self, image: &Reference, root: &Digest) {
        let _turn = self.turns.take(root);
        self.change(root, |record| record.acquire(image));
    }

    /// Notes that a storage does not use a layer any more. Unmounts what nothing uses.
    pub(crate) fn release(&self, image: &Reference, root: &Digest) {
        let _turn = self.turns.take(root);
        let is_used = self.change(root, |record| record.release(image));
        if is_used == Some(false) {
            self.forget(root);
        }
    }

    /// The images with layers in the store.
    pub(crate) fn images(&self) -> Vec<Reference> {
        let layers = self.layers.lock();
        let images = layers.values().flat_map(|layer| layer.record.uses.keys());
        let mut images: Vec<Reference> = images.filter_map(|text| Reference::new(text)).collect();
        images.sort();
        images.dedup();
        images
    }

    /// The layers of an image in the store.
    pub(crate) fn layers_of(&self, image: &Reference) -> Vec<Digest> {
        let layers = self.layers.lock();
        let used = layers.iter().filter(|(_, layer)| layer.record.uses.contains_key(image.text()));
        let mut roots: Vec<Digest> = used.map(|(root, _)| *root).collect();
        roots.sort();
        roots
    }

    /// Unmounts what nothing uses. Other layers stay mounted.
    pub(crate) fn close(&self) {
        let unused: Vec<Digest> = self.unused(|_| true);
        for root in unused {
            let _turn = self.turns.take(&root);
            self.forget(&root);
        }
    }

    /// Prints a message for users.
    pub(crate) fn say(&self, message: &str) {
        (self.say)(message);
    }

    /// A layer, and whether it was not known before.
    fn find(&self, image: &Reference, root: &Digest) -> io::Result<Option<(Record, bool)>> {
        let known = self.layers.lock().get_mut(root).map(|layer| {
            layer.looked_up = Instant::now();
            layer.record.clone()
        });
        match known {
            Some(record) => Ok(Some((record, false))),
            None => Ok(self.search(image, root)?.map(|record| (record, true))),
        }
    }

    fn search(&self, image: &Reference, root: &Digest) -> io::Result<Option<Record>> {
        let found = self.searches.find(image, root, self.remote_options(&image.image()))?;
        Ok(found.map(|layer| Record::new(&layer)))
    }

    fn remote_options(&self, image: &ImageReference) -> RemoteOptions {
        RemoteOptions { auth_file: self.auth_file(image), ..self.options.image.remote.clone() }
    }

    /// The file with credentials that Podman has passed for an image, or the one of the settings.
    fn auth_file(&self, image: &ImageReference) -> Option<PathBuf> {
        let passed = credentials::file(&self.options.credentials, image);
        if passed.exists() { Some(passed) } else { self.options.image.remote.auth_file.clone() }
    }

    fn mount(&self, record: &Record, tree: &Path) -> io::Result<()> {
        if !is_mounted(tree)? {
            fs::create_dir_all(tree)?;
        }
        self.options.mount.mount(&record.layer.to_string(), self.auth_file(&record.layer).as_deref(), tree)
    }

    /// Stores the record of a mounted layer, if it has changed.
    fn keep(&self, root: &Digest, record: Record) -> io::Result<()> {
        let mut layers = self.layers.lock();
        if layers.get(root).is_none_or(|layer| layer.record != record) {
            record.store(&self.directory(root))?;
            layers.insert(*root, Layer { record, looked_up: Instant::now() });
        }
        Ok(())
    }

    /// Changes a record. Returns whether the layer is used then; `None` if it is not known.
    fn change(&self, root: &Digest, change: impl FnOnce(&mut Record)) -> Option<bool> {
        let mut layers = self.layers.lock();
        let layer = layers.get_mut(root)?;
        layer.looked_up = Instant::now();
        change(&mut layer.record);
        if let Err(error) = layer.record.store(&self.directory(root)) {
            self.say(&format!("{}: {error}", self.directory(root).shown()));
        }
        Some(layer.record.is_used())
    }

    /// Removes layers that were looked up but not used, other than `current`.
    fn remove_unused(&self, current: &Digest) {
        for root in self.unused(|layer| layer.looked_up.elapsed() > UNUSED_MAX) {
            if root != *current
                && let Some(_turn) = self.turns.try_take(&root)
            {
                self.forget(&root);
            }
        }
    }

    fn unused(&self, may_go: impl Fn(&Layer) -> bool) -> Vec<Digest> {
        let layers = self.layers.lock();
        let unused = layers.iter().filter(|(_, layer)| !layer.record.is_used() && may_go(layer));
        unused.map(|(root, _)| *root).collect()
    }

    /// Removes a layer and its mount. The caller has the turn.
    fn forget(&self, root: &Digest) {
        self.layers.lock().remove(root);
        let directory = self.directory(root);
        if let Err(error) = remove(&directory) {
            self.say(&format!("{}: {error}", directory.shown()));
        }
    }

    fn directory(&self, root: &Digest) -> PathBuf {
        self.options.root.join(root.to_string())
    }
}

/// Removes the directory of a layer, and its mount. What uses the mount keeps it.
fn remove(directory: &Path) -> io::Result<()> {
    unmount_all(&directory.join(TREE))?;
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
