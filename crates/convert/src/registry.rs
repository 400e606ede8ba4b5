//! Images in registries.

use std::{fs::File, path::Path};

use floe::remote::{Companion, ImageReference, Network, RegistryImages, StoredBlob, TWIN_ARTIFACT, Version};
use floe_remote_cache::Digest;
use tempfile::TempDir;

use crate::{
    document::{DOCUMENT_BYTES_MAX, Descriptor, Document, INDEX, MANIFEST},
    error::{Error, Result},
    source::{LayerFile, Source},
    target::Target,
};

/// An image in a registry.
pub(crate) struct RegistrySource {
    images: RegistryImages,
    reference: ImageReference,
}

/// A tag of a registry.
pub(crate) struct RegistryTarget {
    images: RegistryImages,
    reference: ImageReference,
    /// `None` if the image is there already, under a digest.
    tag: Option<String>,
    /// The image that is converted, if the same registry may have it.
    source: Option<ImageReference>,
    scratch: TempDir,
}

impl RegistrySource {
    pub(crate) fn open(reference: &ImageReference, network: &Network) -> Result<Self> {
        if reference.layer.is_some() {
            return Err(Error::Usage(format!("{reference}: convert an image, not a layer: remove the part after '#'")));
        }
        Ok(Self { images: network.images(reference)?, reference: reference.clone() })
    }
}

impl Source for RegistrySource {
    fn root(&self) -> Result<(Descriptor, Vec<u8>)> {
        let (digest, bytes) = self.images.document(&self.reference.version)?;
        let media_type = if matches!(Document::parse(&bytes)?, Document::Index(_)) { INDEX } else { MANIFEST };
        Ok((Descriptor::new(&declared(&bytes).unwrap_or(media_type.to_owned()), &digest, bytes.len() as u64), bytes))
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.images.document(&Version::Digest(descriptor.digest()?))?.1)
    }

    fn small_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.images.small_blob(&descriptor.digest()?, DOCUMENT_BYTES_MAX)?)
    }

    fn layer(&self, manifest: &Digest, layer: &Descriptor, scratch: &Path) -> Result<LayerFile> {
        let copy = tempfile::NamedTempFile::new_in(scratch).map_err(Error::file(scratch))?;
        self.images.layer(manifest, &layer.digest()?, copy.as_file())?;
        let path = copy.into_temp_path();
        Ok(LayerFile { path: path.to_path_buf(), copy: Some(path) })
    }
}

impl RegistryTarget {
    /// Opens the repository of `reference`, which needs a tag, unless the image is that of the source and `stays` as it is.
    ///
    /// # Errors
    /// The reference is no place for an image.
    pub(crate) fn open(
        reference: &ImageReference,
        source: Option<&ImageReference>,
        stays: bool,
        network: &Network,
    ) -> Result<Self> {
        let wrong = |message: &str| Err(Error::Usage(format!("{reference}: {message}")));
        if reference.layer.is_some() {
            return wrong("store an image, not a layer: remove the part after '#'");
        }
        let tag = match &reference.version {
            _ if stays && source == Some(reference) => None,
            Version::Tag(tag) => Some(tag.clone()),
            Version::Digest(_) => return wrong("store the image under a tag; the digest follows from the content"),
        };
        let scratch = tempfile::Builder::new().prefix("floe-convert-").tempdir()?;
        let images = network.images(reference)?;
        Ok(Self { images, reference: reference.clone(), tag, source: source.cloned(), scratch })
    }
}

impl Target for RegistryTarget {
    fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    fn existing(&self) -> Result<Option<Vec<u8>>> {
        // Nothing depends on an answer: without one, all layers are converted.
        Ok(self.tag.as_ref().and_then(|tag| self.images.existing(tag).ok().flatten()))
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        Ok(self.images.document(&Version::Digest(descriptor.digest()?))?.1)
    }

    fn has(&self, digest: &Digest) -> Result<bool> {
        Ok(match &self.source {
            Some(source) => self.images.mount_blob(digest, source)?.is_some(),
            None => self.images.has_blob(digest)?,
        })
    }

    fn put_file(&self, digest: &Digest, path: &Path, _: bool) -> Result<bool> {
        let file = File::open(path).map_err(Error::file(path))?;
        Ok(self.images.push_file(digest, &file)? == StoredBlob::Uploaded)
    }

    fn put_blob(&self, bytes: &[u8]) -> Result<bool> {
        Ok(self.images.push_bytes(bytes)? == StoredBlob::Uploaded)
    }

    fn keeps_companions(&self) -> bool {
        true
    }

    fn put_manifest(&self, media_type: &str, bytes: &[u8], companions: &[Companion]) -> Result<()> {
        self.images.push_document(None, media_type, bytes)?;
        Ok(self.images.refer_companions(bytes, companions)?)
    }

    fn put_referrer(&self, subject: &Digest, bytes: &[u8], companions: &[Companion]) -> Result<()> {
        self.images.push_referrer(subject, TWIN_ARTIFACT, bytes)?;
        Ok(self.images.refer_companions(bytes, companions)?)
    }

    fn referrers(&self, subject: &Digest) -> Vec<Vec<u8>> {
        // As above.
        let found = self.images.referrers(subject, TWIN_ARTIFACT).unwrap_or_default();
        found.into_iter().filter_map(|digest| Some(self.images.document(&Version::Digest(digest)).ok()?.1)).collect()
    }

    fn finish(&self, index: &Descriptor, bytes: &[u8]) -> Result<()> {
        let Some(tag) = &self.tag else { return Ok(()) };
        let pushed = self.images.push_document(Some(tag), &index.media_type, bytes);
        pushed.map_err(|error| Error::failed(format!("{}: {error}", self.reference)))
    }
}

/// The media type that a document gives itself.
fn declared(bytes: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    Some(value.get("mediaType")?.as_str()?.to_owned())
}
