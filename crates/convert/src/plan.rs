//! Decides which manifests and layers are converted.

use std::collections::BTreeMap;

use floe_remote_cache::Digest;
use serde_json::Value;

use crate::{
    document::{Descriptor, Document, Index, Manifest, Platform},
    error::{Error, Result},
    layer::merged_key,
    settings::Settings,
    source::Source,
};

/// The manifests of an image, and the work to do for them.
pub(crate) struct Plan {
    /// The index or the manifest that the image's name stands for, and its bytes.
    pub(crate) root: (Descriptor, Vec<u8>),
    /// The index, if the image has one, with its manifests.
    pub(crate) index: Option<Index>,
    pub(crate) manifests: Vec<PlannedManifest>,
}

/// A manifest of the image.
pub(crate) struct PlannedManifest {
    pub(crate) descriptor: Descriptor,
    pub(crate) bytes: Vec<u8>,
    pub(crate) manifest: Manifest,
    /// The configuration, if the manifest is converted.
    pub(crate) conversion: Option<PlannedConversion>,
}

/// What the conversion of a manifest needs.
pub(crate) struct PlannedConversion {
    pub(crate) config: Value,
    pub(crate) platform: Platform,
}

/// A piece of work: the layers that are converted together.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The digest of the layer; of several, a digest of their digests.
    pub(crate) key: Digest,
    /// A manifest with the layers.
    pub(crate) manifest: Digest,
    pub(crate) layers: Vec<Descriptor>,
    /// Whether the layers are converted, or only copied.
    pub(crate) converts: bool,
}

impl Plan {
    /// Reads the manifests of the image.
    ///
    /// # Errors
    /// A document is missing or broken, or nothing can be converted.
    pub(crate) fn read(source: &dyn Source, settings: &Settings) -> Result<Self> {
        let root = source.root()?;
        let (index, entries) = match Document::parse(&root.1)? {
            Document::Manifest(_) => (None, vec![root.clone()]),
            Document::Index(index) => {
                let entries = index.manifests.iter().map(|entry| match entry.is_index() {
                    true => Err(Error::failed("an index inside an index is not supported")),
                    false => Ok((entry.clone(), source.document(entry)?)),
                });
                let entries = entries.collect::<Result<_>>()?;
                (Some(index), entries)
            }
        };
        let planned = entries.into_iter().map(|(entry, bytes)| PlannedManifest::read(source, entry, bytes, settings));
        let manifests = planned.collect::<Result<Vec<_>>>()?;
        if manifests.iter().all(|manifest| manifest.conversion.is_none()) {
            let platforms = manifests.iter().filter_map(|manifest| Some(manifest.descriptor.platform.as_ref()?.text()));
            let platforms = platforms.take(16).collect::<Vec<_>>().join(", ").escape_debug().to_string();
            let found = if platforms.is_empty() { String::new() } else { format!("; it is for {platforms}") };
            return Err(Error::failed(format!("no manifest of the image can be converted{found}")));
        }
        Ok(Self { root, index, manifests })
    }

    /// The pieces of work, each once.
    pub(crate) fn jobs(&self, settings: &Settings) -> Result<Vec<Job>> {
        let mut jobs: BTreeMap<Digest, Job> = BTreeMap::new();
        for planned in &self.manifests {
            let (manifest, layers) = (planned.descriptor.digest()?, &planned.manifest.layers);
            let is_converted = planned.conversion.is_some();
            if !is_converted && !settings.keeps_original {
                continue;
            }
            let mut add = |key, layers: &[Descriptor], converts| {
                let job = Job { key, manifest, layers: layers.to_vec(), converts };
                jobs.entry(key).and_modify(|job| job.converts |= converts).or_insert(job);
            };
            if is_converted && settings.is_merged {
                add(merged_key(layers)?, layers, true);
            } else {
                for layer in layers {
                    add(layer.digest()?, std::slice::from_ref(layer), is_converted && !layer.is_erofs());
                }
            }
        }
        // Large layers first, so that the last one to end is a small one.
        let mut jobs: Vec<Job> = jobs.into_values().collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.layers.iter().map(|layer| layer.size).sum::<u64>()));
        Ok(jobs)
    }
}

impl PlannedManifest {
    fn read(source: &dyn Source, descriptor: Descriptor, bytes: Vec<u8>, settings: &Settings) -> Result<Self> {
        let Document::Manifest(manifest) = Document::parse(&bytes)? else {
            return Err(Error::failed("an index inside an index is not supported"));
        };
        let all = |is_so: fn(&Descriptor) -> bool| manifest.layers.iter().all(is_so);
        let is_archive = !manifest.layers.is_empty() && all(|layer| layer.is_tar() || layer.is_erofs());
        let is_image = if settings.is_merged { is_archive && all(Descriptor::is_tar) } else { is_archive };
        let mut conversion = None;
        if is_image && !all(Descriptor::is_erofs) {
            let config = source.small_blob(&manifest.config)?;
            let config: Value = serde_json::from_slice(&config)
                .map_err(|error| Error::failed(format!("the configuration of an image: {error}")))?;
            let platform = descriptor.platform.clone().or_else(|| Platform::of_config(&config));
            let is_wanted = |platform: &Platform| {
                settings.platforms.is_empty() || settings.platforms.iter().any(|wanted| *wanted == platform.text())
            };
            conversion = platform.filter(is_wanted).map(|platform| PlannedConversion { config, platform });
        }
        Ok(Self { descriptor, bytes, manifest, conversion })
    }
}
