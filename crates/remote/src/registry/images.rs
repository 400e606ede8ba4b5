//! Copies whole images into and out of a repository, document by document and blob by blob.

use std::{collections::BTreeMap, fs::File, io, sync::Arc};

use floe_remote_cache::Digest;

use crate::{
    ImageReference, LayerChoice, Network, RemoteLocation, Version,
    fault::Fault,
    network::Shared,
    registry::{
        companions::Companion,
        document::{Descriptor, MANIFEST},
        endpoint::{Endpoint, repository_of},
        push::refer,
        referrers,
        resolve::{MANIFEST_BYTES_MAX, Repository},
        rooted_layer::{self, RootedLayer},
        upload::{Content, Upload},
    },
    retry::Retry,
};

/// A repository from which whole images are read, and to which they are written.
pub struct RegistryImages {
    network: Network,
    reference: ImageReference,
    source: Repository,
    target: Upload,
}

/// Whether a blob had to be uploaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoredBlob {
    /// The repository had it.
    Known,
    /// The registry took it from another of its repositories.
    Mounted,
    /// It was uploaded.
    Uploaded,
}

impl Network {
    /// The images of the repository of `reference`.
    ///
    /// # Errors
    /// The file that names the mirrors of the registry cannot be used, or the registry's name is no host.
    pub fn images(&self, reference: &ImageReference) -> io::Result<RegistryImages> {
        let options = &self.shared().options;
        let endpoint = Endpoint::own(&reference.registry, options.plain_http);
        let found = Repository::new(reference, options).and_then(|source| Ok((source, endpoint?)));
        let (source, endpoint) = found.map_err(|fault| fault.at(reference))?;
        let target = Upload::new(self.shared(), endpoint, repository_of(reference));
        Ok(RegistryImages { network: self.clone(), reference: reference.clone(), source, target })
    }
}

impl RegistryImages {
    /// Reads a manifest or an index.
    ///
    /// # Errors
    /// It does not exist, or its digest is wrong.
    pub fn document(&self, version: &Version) -> io::Result<(Digest, Vec<u8>)> {
        let shared = self.shared();
        let document = async || self.source.document(shared, version).await;
        let (digest, bytes) = self.run(Retry::at_open(shared.options.outage).run(document))?;
        Ok((digest, bytes.into()))
    }

    /// Lists the manifests with this artifact type that refer to a manifest: at most eight. The registry is asked once, and may take five
    /// seconds. Nothing pins the list: whoever may push to the repository may change it.
    ///
    /// # Errors
    /// The registry does not answer, or the list is broken. A registry that lists no referrers is no error.
    pub fn referrers(&self, subject: &Digest, artifact_type: &str) -> io::Result<Vec<Digest>> {
        self.run(referrers::find(&self.source, self.shared(), subject, artifact_type))
    }

    /// Reads a blob of at most `bytes_max` bytes, such as a configuration.
    ///
    /// # Errors
    /// It does not exist, or its digest is wrong.
    pub fn small_blob(&self, digest: &Digest, bytes_max: u64) -> io::Result<Vec<u8>> {
        let shared = self.shared();
        let blob = async || self.source.small_blob(shared, digest, bytes_max).await;
        Ok(self.run(Retry::new(shared.options.outage).run(blob))?.into())
    }

    /// Downloads a layer of the manifest into an empty file.
    ///
    /// # Errors
    /// It does not exist, or its digest is wrong.
    pub fn layer(&self, manifest: &Digest, layer: &Digest, file: &File) -> io::Result<()> {
        let (version, layer) = (Version::Digest(*manifest), Some(LayerChoice::Digest(*layer)));
        let location = RemoteLocation::Registry(ImageReference { version, layer, ..self.reference.clone() });
        self.network.pull(&location, file, &|_, _| ()).map(drop)
    }

    /// Lists the layers that are verified when they are read, of the manifests of the image up to the one that has a layer with the
    /// root `until`.
    ///
    /// # Errors
    /// The registry does not answer, or its documents are broken.
    pub fn rooted_layers(&self, until: &Digest) -> io::Result<Vec<RootedLayer>> {
        let shared = self.shared();
        let find = async || rooted_layer::find(&self.source, shared, &self.reference, until).await;
        self.run(Retry::at_open(shared.options.outage).run(find))
    }

    /// Reads the manifest or index that has a tag at present, if there is one.
    ///
    /// # Errors
    /// The registry does not answer.
    pub fn existing(&self, tag: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.run(self.target.existing(tag, MANIFEST_BYTES_MAX))?.map(Into::into))
    }

    /// Whether the registry has a blob.
    ///
    /// # Errors
    /// The registry does not answer.
    pub fn has_blob(&self, digest: &Digest) -> io::Result<bool> {
        self.run(self.target.has_blob(digest))
    }

    /// Lets the repository share a blob of another repository of the same registry, if it does not have it. Returns whether the
    /// repository has it now.
    ///
    /// # Errors
    /// The registry does not answer.
    pub fn mount_blob(&self, digest: &Digest, other: &ImageReference) -> io::Result<Option<StoredBlob>> {
        self.run(async {
            if self.target.has_blob(digest).await? {
                return Ok(Some(StoredBlob::Known));
            }
            let is_elsewhere = other.registry == self.reference.registry && repository_of(other) != self.repository();
            let mounted = is_elsewhere && self.target.mount_blob(digest, &repository_of(other)).await?;
            Ok(mounted.then_some(StoredBlob::Mounted))
        })
    }

    /// Uploads the blob in `file`, unless the registry has it.
    ///
    /// # Errors
    /// The file cannot be read, or the registry refuses the blob.
    pub fn push_file(&self, digest: &Digest, file: &File) -> io::Result<StoredBlob> {
        let len = file.metadata()?.len();
        self.push(digest, &Content::File { file, len })
    }

    /// Uploads a small blob, unless the registry has it.
    ///
    /// # Errors
    /// The registry refuses the blob.
    pub fn push_bytes(&self, bytes: &[u8]) -> io::Result<StoredBlob> {
        self.push(&Digest::of(bytes), &Content::Bytes(bytes))
    }

    /// Uploads a manifest or an index, under a tag or under its digest.
    ///
    /// # Errors
    /// The registry refuses it.
    pub fn push_document(&self, tag: Option<&str>, media_type: &str, bytes: &[u8]) -> io::Result<()> {
        let name = tag.map_or_else(|| format!("sha256:{}", Digest::of(bytes)), str::to_owned);
        self.run(async { self.target.manifest(&name, media_type, bytes).await.map(drop) })
    }

    /// Uploads a manifest with this artifact type, whose field `subject` refers to another manifest, so that [`Self::referrers`] finds it.
    ///
    /// # Errors
    /// The registry refuses it.
    pub fn push_referrer(&self, subject: &Digest, artifact_type: &str, bytes: &[u8]) -> io::Result<()> {
        self.run(referrers::push(&self.target, subject, artifact_type, bytes))
    }

    /// Makes companions of layers, which are blobs of the repository already, referrers of a manifest, so that the registry keeps
    /// them: one referrer for each kind.
    ///
    /// # Errors
    /// The registry refuses a referrer.
    pub fn refer_companions(&self, manifest: &[u8], companions: &[Companion]) -> io::Result<()> {
        let subject = Descriptor::new(MANIFEST, &Digest::of(manifest), manifest.len() as u64);
        let mut kinds: BTreeMap<&str, Vec<Descriptor>> = BTreeMap::new();
        for companion in companions {
            kinds.entry(companion.media_type).or_default().push(companion.descriptor());
        }
        kinds.into_values().try_for_each(|artifacts| self.run(refer(&self.target, &subject, artifacts)))
    }

    fn push(&self, digest: &Digest, content: &Content<'_>) -> io::Result<StoredBlob> {
        self.run(async {
            if self.target.has_blob(digest).await? {
                return Ok(StoredBlob::Known);
            }
            self.target.blob(digest, content, &|_| ()).await?;
            Ok(StoredBlob::Uploaded)
        })
    }

    fn repository(&self) -> String {
        repository_of(&self.reference)
    }

    fn shared(&self) -> &Arc<Shared> {
        self.network.shared()
    }

    fn run<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> io::Result<T> {
        self.shared().block_on(work).map_err(|fault| fault.at(&self.reference))
    }
}
