//! Images in OCI layouts and in docker archives.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use floe::remote::Companion;
use floe_image::ShownName;
use floe_remote_cache::Digest;
use serde::Deserialize;
use tempfile::TempDir;

use crate::{
    archive::Files,
    document::{CONFIG, DOCUMENT_BYTES_MAX, Descriptor, Document, Index, MANIFEST, Manifest, TAR_LAYER, to_bytes},
    error::{Error, Result},
    source::{LayerFile, Source, copied, copy_hashed, in_place},
    target::Target,
};

/// The annotations of an entry of a layout's index with the name of an image.
const NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// The file that marks a layout.
const LAYOUT_MARK: &str = "oci-layout";
const LAYOUT_MARK_TEXT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
const INDEX_FILE: &str = "index.json";

/// Why a layout gets no manifests that refer to others.
pub(crate) const NO_REFERRERS: &str =
    "only registries find manifests by those that they refer to: give oci://registry/repository:tag";

/// The first bytes of a file that is compressed with gzip.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// An image in a layout.
struct LayoutSource {
    files: Files,
    root: Descriptor,
}

/// An image in an archive of `docker save`. Its manifest is made here.
struct DockerSource {
    files: Files,
    manifest: Vec<u8>,
    config: Vec<u8>,
    /// The names of the layers.
    layers: BTreeMap<Digest, String>,
}

/// An image in a layout, to be stored.
pub(crate) struct LayoutTarget {
    path: PathBuf,
    name: String,
    scratch: TempDir,
}

/// Opens the image with this name, or the only one, in a layout or an archive. Also returns its name.
///
/// # Errors
/// There is no such image, or the place is of another kind.
pub(crate) fn open(path: &Path, name: Option<&str>) -> Result<(Box<dyn Source>, Option<String>)> {
    let files = Files::open(path)?;
    let at = |error: Error| match error {
        Error::Usage(message) => Error::Usage(format!("{}: {message}", path.shown())),
        error => Error::failed(format!("{}: {error}", path.shown())),
    };
    if files.has(INDEX_FILE) {
        let (source, name) = LayoutSource::open(files, name).map_err(at)?;
        Ok((Box::new(source), name))
    } else if matches!(files, Files::Archive { .. }) && files.has("manifest.json") {
        let (source, name) = DockerSource::open(files, name).map_err(at)?;
        Ok((Box::new(source), name))
    } else {
        Err(at(Error::failed("neither an OCI layout nor an archive of docker save")))
    }
}

/// Selects the only item, or the one with this name.
fn choose<T>(items: Vec<T>, name: Option<&str>, names: impl Fn(&T) -> Vec<String>) -> Result<T> {
    let all: Vec<String> = items.iter().flat_map(&names).collect();
    let mut fitting: Vec<T> = match name {
        Some(name) => items.into_iter().filter(|item| names(item).iter().any(|one| is_named(one, name))).collect(),
        None => items,
    };
    let listed = || all.iter().take(16).map(|name| name.escape_debug().to_string()).collect::<Vec<_>>().join(", ");
    match (fitting.pop(), fitting.is_empty(), name) {
        (Some(one), true, _) => Ok(one),
        (Some(_), false, _) => {
            Err(Error::Usage(format!("it has several images, select one by its name: {}", listed())))
        }
        (None, _, Some(name)) => Err(Error::Usage(format!("it has no image '{name}', only {}", listed()))),
        (None, _, None) => Err(Error::failed("it has no image")),
    }
}

/// Whether an image is meant by a name: by its whole name, or by its tag.
fn is_named(image: &str, name: &str) -> bool {
    image == name || image.rsplit_once(':').is_some_and(|(_, tag)| tag == name)
}

fn blob_name(digest: &Digest) -> String {
    format!("blobs/sha256/{digest}")
}

impl LayoutSource {
    fn open(files: Files, name: Option<&str>) -> Result<(Self, Option<String>)> {
        let index = match Document::parse(&files.read(INDEX_FILE, DOCUMENT_BYTES_MAX)?)? {
            Document::Index(index) => index,
            Document::Manifest(_) => return Err(Error::failed("index.json is not an index")),
        };
        let root = choose(index.manifests, name, |entry| {
            [NAME, CONTAINERD_NAME].iter().filter_map(|name| entry.annotations.get(*name).cloned()).collect()
        })?;
        let name = root.annotations.get(NAME).cloned();
        Ok((Self { files, root }, name))
    }
}

impl Source for LayoutSource {
    fn root(&self) -> Result<(Descriptor, Vec<u8>)> {
        Ok((self.root.clone(), self.small_blob(&self.root)?))
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.small_blob(descriptor)
    }

    fn small_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let digest = descriptor.digest()?;
        let bytes = self.files.read(&blob_name(&digest), DOCUMENT_BYTES_MAX)?;
        if Digest::of(&bytes) != digest {
            return Err(Error::failed(format!("the blob sha256:{digest} has other bytes")));
        }
        Ok(bytes)
    }

    fn layer(&self, _: &Digest, layer: &Descriptor, scratch: &Path) -> Result<LayerFile> {
        let name = blob_name(&layer.digest()?);
        match self.files.path(&name) {
            Some(path) => in_place(path, layer),
            None => copied(self.files.file(&name)?, layer, scratch),
        }
    }
}

/// An entry of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl DockerSource {
    fn open(files: Files, name: Option<&str>) -> Result<(Self, Option<String>)> {
        let bytes = files.read("manifest.json", DOCUMENT_BYTES_MAX)?;
        let images: Vec<DockerImage> =
            serde_json::from_slice(&bytes).map_err(|error| Error::failed(format!("manifest.json: {error}")))?;
        let image = choose(images, name, |image| image.repo_tags.clone().unwrap_or_default())?;
        let config = files.read(&image.config, DOCUMENT_BYTES_MAX)?;
        let (mut layers, mut names) = (Vec::new(), BTreeMap::new());
        for name in image.layers.unwrap_or_default() {
            let (digest, len, is_gzip) = digest_of(&files, &name)?;
            let media_type = if is_gzip { format!("{TAR_LAYER}+gzip") } else { TAR_LAYER.to_owned() };
            layers.push(Descriptor::new(&media_type, &digest, len));
            names.insert(digest, name);
        }
        let manifest = to_bytes(&Manifest::new(Descriptor::of(CONFIG, &config), layers))?;
        let tag = image.repo_tags.and_then(|tags| tags.first()?.rsplit_once(':').map(|(_, tag)| tag.to_owned()));
        Ok((Self { files, manifest, config, layers: names }, tag))
    }
}

impl Source for DockerSource {
    fn root(&self) -> Result<(Descriptor, Vec<u8>)> {
        Ok((Descriptor::of(MANIFEST, &self.manifest), self.manifest.clone()))
    }

    fn document(&self, _: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.manifest.clone())
    }

    fn small_blob(&self, _: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.config.clone())
    }

    fn layer(&self, _: &Digest, layer: &Descriptor, scratch: &Path) -> Result<LayerFile> {
        let name = self.layers.get(&layer.digest()?).ok_or_else(|| Error::failed("the layer does not exist"))?;
        copied(self.files.file(name)?, layer, scratch)
    }
}

/// The digest and the length of a file, and whether it is compressed with gzip.
fn digest_of(files: &Files, name: &str) -> Result<(Digest, u64, bool)> {
    let (digest, len) = copy_hashed(files.file(name)?, io::sink())?;
    let mut magic = [0; 2];
    let is_gzip = len >= 2 && files.file(name)?.read_exact(&mut magic).is_ok() && magic == GZIP_MAGIC;
    Ok((digest, len, is_gzip))
}

impl LayoutTarget {
    /// Opens or creates a layout, in which an image gets this name.
    ///
    /// # Errors
    /// The directory is something else, or cannot be written.
    pub(crate) fn open(path: &Path, name: &str) -> Result<Self> {
        let mark = path.join(LAYOUT_MARK);
        if !mark.exists() {
            if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
                return Err(Error::Usage(format!("{}: a directory that is not an OCI layout", path.shown())));
            }
            fs::create_dir_all(path).map_err(Error::file(path))?;
            fs::write(&mark, LAYOUT_MARK_TEXT).map_err(Error::file(&mark))?;
        }
        let blobs = path.join("blobs/sha256");
        fs::create_dir_all(&blobs).map_err(Error::file(&blobs))?;
        let scratch = tempfile::Builder::new().prefix(".floe-convert-").tempdir_in(path).map_err(Error::file(path))?;
        Ok(Self { path: path.to_owned(), name: name.to_owned(), scratch })
    }

    fn index(&self) -> Result<Index> {
        let path = self.path.join(INDEX_FILE);
        if !path.exists() {
            return Ok(Index::new(Vec::new()));
        }
        match Document::parse(&fs::read(&path).map_err(Error::file(&path))?)? {
            Document::Index(index) => Ok(index),
            Document::Manifest(_) => Err(Error::failed(format!("{}: not an index", path.shown()))),
        }
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.path.join(blob_name(digest))
    }

    /// Writes a file completely or not at all.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let file = tempfile::NamedTempFile::new_in(self.scratch.path()).map_err(Error::file(path))?;
        fs::write(file.path(), bytes).map_err(Error::file(path))?;
        readable(file.path()).map_err(Error::file(path))?;
        file.persist(path).map(drop).map_err(|error| Error::file(path)(error.error))
    }
}

impl Target for LayoutTarget {
    fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    fn existing(&self) -> Result<Option<Vec<u8>>> {
        let index = self.index()?;
        let named = index.manifests.iter().find(|entry| entry.annotations.get(NAME) == Some(&self.name));
        named.map(|entry| self.document(entry)).transpose()
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let path = self.blob(&descriptor.digest()?);
        fs::read(&path).map_err(Error::file(&path))
    }

    fn has(&self, digest: &Digest) -> Result<bool> {
        Ok(self.blob(digest).exists())
    }

    fn put_file(&self, digest: &Digest, path: &Path, may_move: bool) -> Result<bool> {
        let blob = self.blob(digest);
        if blob.exists() {
            return Ok(false);
        }
        if may_move && readable(path).and_then(|()| fs::rename(path, &blob)).is_ok() {
            return Ok(true);
        }
        let copy = tempfile::NamedTempFile::new_in(self.scratch.path()).map_err(Error::file(&blob))?;
        fs::copy(path, copy.path()).map_err(Error::file(path))?;
        readable(copy.path()).map_err(Error::file(&blob))?;
        copy.persist(&blob).map_err(|error| Error::file(&blob)(error.error))?;
        Ok(true)
    }

    fn put_blob(&self, bytes: &[u8]) -> Result<bool> {
        let blob = self.blob(&Digest::of(bytes));
        let is_new = !blob.exists();
        if is_new {
            self.write(&blob, bytes)?;
        }
        Ok(is_new)
    }

    fn keeps_companions(&self) -> bool {
        false
    }

    fn put_manifest(&self, _: &str, bytes: &[u8], _: &[Companion]) -> Result<()> {
        self.put_blob(bytes).map(drop)
    }

    fn put_referrer(&self, _: &Digest, _: &[u8], _: &[Companion]) -> Result<()> {
        Err(Error::Usage(format!("{}: {NO_REFERRERS}", self.path.shown())))
    }

    fn referrers(&self, _: &Digest) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn finish(&self, index: &Descriptor, bytes: &[u8]) -> Result<()> {
        self.put_blob(bytes)?;
        let mut entry = index.clone();
        entry.annotations.insert(NAME.to_owned(), self.name.clone());
        let mut layout = self.index()?;
        layout.manifests.retain(|entry| entry.annotations.get(NAME) != Some(&self.name));
        layout.manifests.push(entry);
        self.write(&self.path.join(INDEX_FILE), &to_bytes(&layout)?)
    }
}

/// Gives a file the permissions of a new one; temporary files are only for their owner.
fn readable(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}
