//! Converts an image: plan, layers, manifests, index.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroUsize,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    thread,
};

use floe::remote::{ImageReference, Network, SOURCE_ANNOTATION, TWIN_ARTIFACT};
use floe_image::ShownName;
use floe_remote_cache::Digest;
use floe_sync::Mutex;

use crate::{
    document::{
        CONFIG, Descriptor, Document, INDEX, Index, MANIFEST, Manifest, Platform, converted_config, diff_id, to_bytes,
    },
    error::{Error, Result},
    image::SourceImage,
    layer::{BuiltLayer, SETTINGS_ANNOTATION, Share, build_error, companions_of, has_companions, merged_key},
    layout::{LayoutTarget, NO_REFERRERS},
    place::Place,
    plan::{Job, Plan, PlannedConversion, PlannedManifest},
    registry::RegistryTarget,
    settings::Settings,
    source::Source,
    target::Target,
};

/// The maximum number of layers that are converted at a time.
const WORKERS_MAX: usize = 8;
/// The minimum of file data in memory for one layer, in bytes.
const SHARE_BYTES_MIN: usize = 24 << 20;
/// The name of an image in a layout if it has no other.
const DEFAULT_NAME: &str = "latest";

/// The result of a conversion.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Converted {
    /// The digest of the index.
    pub digest: String,
    /// The number of converted manifests.
    pub manifests: usize,
    /// The number of layers that were converted.
    pub layers_built: usize,
    /// The number of layers that the target had from an earlier conversion.
    pub layers_reused: usize,
    /// The sizes of the original and the converted layers, in bytes.
    pub bytes_before: u64,
    /// The size of the converted layers, in bytes.
    pub bytes_after: u64,
    /// The number of layer blobs that the target did not have.
    pub blobs_stored: usize,
    /// Deviations from the layers, one line each.
    pub warnings: Vec<String>,
}

/// Converts the image `source`, and stores it at `target`. `progress` receives the number of bytes of the layers that are
/// done, and of all; it may be called on several threads. If `cancel` is set, the conversion ends early.
///
/// With [`Settings::as_referrers`], the target gets the image as it is, with the converted manifests as referrers. If it is the image
/// itself, it gets only these.
///
/// # Errors
/// The source cannot be read, or is no image; a layer cannot be converted; the target cannot be written; or `cancel` was set. The
/// target then has no new image, but may have some of its blobs.
pub fn convert(
    source: &SourceImage,
    target: &Place,
    settings: &Settings,
    network: &Network,
    cancel: &AtomicBool,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Converted> {
    let SourceImage { source: opened, name, reference: from } = source;
    let mut settings = settings.clone();
    let target: Box<dyn Target> = match target {
        Place::Registry(reference) => {
            let is_same = |from: &ImageReference| {
                (&from.registry, &from.repository) == (&reference.registry, &reference.repository)
            };
            if settings.as_referrers && from.as_ref().is_some_and(is_same) {
                settings.keeps_original = false;
            }
            Box::new(RegistryTarget::open(reference, from.as_ref(), settings.as_referrers, network)?)
        }
        Place::Local { path, .. } if settings.as_referrers => {
            return Err(Error::Usage(format!("{}: {NO_REFERRERS}", path.shown())));
        }
        Place::Local { path, name: given } => {
            let name = given.as_deref().or(name.as_deref()).unwrap_or(DEFAULT_NAME);
            Box::new(LayoutTarget::open(path, name)?)
        }
    };
    let plan = Plan::read(&**opened, &settings)?;
    let jobs = plan.jobs(&settings)?;
    let known = known_layers(&*target, &plan, &settings);
    let work = Work { source: &**opened, target: &*target, settings: &settings, cancel, known: &known };
    let (layers, mut converted) = work.run(&jobs, progress)?;
    let index = work.store(&plan, &layers)?;
    converted.digest = format!("sha256:{}", index.digest()?);
    converted.manifests = plan.manifests.iter().filter(|manifest| manifest.conversion.is_some()).count();
    Ok(converted)
}

/// The converted layers that source and target have at present, by the digests of what they were made of.
fn known_layers(target: &dyn Target, plan: &Plan, settings: &Settings) -> HashMap<String, Descriptor> {
    let mut manifests: Vec<Manifest> = plan.manifests.iter().map(|planned| planned.manifest.clone()).collect();
    let mut documents = Vec::new();
    if let Ok(Some(bytes)) = target.existing()
        && let Ok(Document::Index(index)) = Document::parse(&bytes)
    {
        documents.extend(index.manifests.iter().filter_map(|entry| target.document(entry).ok()));
    }
    if settings.as_referrers {
        let digests = plan.manifests.iter().filter_map(|planned| planned.descriptor.digest().ok());
        documents.extend(digests.flat_map(|digest| target.referrers(&digest)));
    }
    manifests.extend(documents.iter().filter_map(|bytes| match Document::parse(bytes) {
        Ok(Document::Manifest(manifest)) => Some(manifest),
        _ => None,
    }));
    let is_same = |layer: &Descriptor| {
        has_companions(layer) == target.keeps_companions()
            && layer.annotations.get(SETTINGS_ANNOTATION) == Some(&settings.identity())
    };
    let layers = manifests.into_iter().flat_map(|manifest| manifest.layers).filter(is_same);
    layers.filter_map(|layer| Some((layer.annotations.get(SOURCE_ANNOTATION)?.clone(), layer))).collect()
}

/// What all threads of a conversion use.
struct Work<'all> {
    source: &'all dyn Source,
    target: &'all dyn Target,
    settings: &'all Settings,
    cancel: &'all AtomicBool,
    known: &'all HashMap<String, Descriptor>,
}

/// The result of a job.
#[derive(Default)]
struct Done {
    layer: Option<Descriptor>,
    is_reused: bool,
    stored: usize,
    warnings: Vec<String>,
}

impl Work<'_> {
    /// Does all jobs, on several threads. Returns the converted layers by the keys of their jobs.
    fn run(
        &self,
        jobs: &[Job],
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(BTreeMap<Digest, Descriptor>, Converted)> {
        let workers = self.settings.jobs.get().min(jobs.len()).clamp(1, WORKERS_MAX);
        let threads = NonZeroUsize::new(self.settings.jobs.get() / workers).unwrap_or(NonZeroUsize::MIN);
        let share = Share { jobs: threads, memory_bytes: (self.settings.memory_bytes / workers).max(SHARE_BYTES_MIN) };
        let size = |job: &Job| job.layers.iter().map(|layer| layer.size).sum::<u64>();
        let (total, bytes_done): (u64, _) = (jobs.iter().map(size).sum(), AtomicU64::new(0));
        let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results: Mutex<Vec<(usize, Result<Done>)>> = Mutex::new(Vec::new());
        let work = || {
            while !has_failed.load(Relaxed) {
                let place = next.fetch_add(1, Relaxed);
                let Some(job) = jobs.get(place) else { return };
                let done = self.do_job(job, share);
                has_failed.fetch_or(done.is_err(), Relaxed);
                results.lock().push((place, done));
                let size = size(job);
                progress(bytes_done.fetch_add(size, Relaxed) + size, total);
            }
        };
        thread::scope(|scope| {
            for _ in 1..workers {
                scope.spawn(work);
            }
            work();
        });
        let mut results = results.into_inner();
        results.sort_by_key(|(place, _)| *place);
        let (mut layers, mut converted) = (BTreeMap::new(), Converted::default());
        for (place, done) in results {
            let (done, job) = (done?, &jobs[place]);
            converted.blobs_stored += done.stored;
            converted.warnings.extend(done.warnings);
            if let Some(layer) = done.layer {
                converted.bytes_before += size(job);
                converted.bytes_after += layer.size;
                if done.is_reused {
                    converted.layers_reused += 1;
                } else {
                    converted.layers_built += 1;
                }
                layers.insert(job.key, layer);
            }
        }
        Ok((layers, converted))
    }

    /// Converts and copies the layers of a job.
    fn do_job(&self, job: &Job, share: Share) -> Result<Done> {
        if self.cancel.load(Relaxed) {
            return Err(Error::Cancelled);
        }
        let mut done = Done::default();
        if job.converts
            && let Some(layer) = self.reused(job)?
        {
            (done.layer, done.is_reused) = (Some(layer), true);
        }
        let must_build = job.converts && done.layer.is_none();
        let (mut files, mut paths) = (Vec::new(), Vec::new());
        for layer in &job.layers {
            let digest = layer.digest()?;
            // A layer that is not converted is part of the converted image.
            let must_store = (self.settings.keeps_original || !job.converts) && !self.target.has(&digest)?;
            if !must_build && !must_store {
                continue;
            }
            let file = self.source.layer(&job.manifest, layer, self.target.scratch())?;
            if must_store {
                let may_move = file.copy.is_some() && !must_build;
                done.stored += usize::from(self.target.put_file(&digest, &file.path, may_move)?);
            }
            if must_build {
                paths.push(file.path.clone());
                files.push(file);
            }
        }
        if must_build {
            let output = self.target.scratch().join(format!("{}.erofs", job.key));
            let built = BuiltLayer::new(&paths, &output, self.settings, share, self.cancel);
            let built = built.map_err(build_error(&job.key))?;
            drop(files);
            let digest = built.companions.layer_digest();
            if !self.target.has(digest)? {
                done.stored += usize::from(self.target.put_file(digest, &built.path, true)?);
            }
            let with_companions = self.target.keeps_companions();
            if with_companions {
                for (_, bytes) in built.companions.blobs() {
                    self.target.put_blob(&bytes)?;
                }
            }
            // The target may have had the layer, or have copied it.
            let _ = std::fs::remove_file(&built.path);
            done.layer = Some(built.describe(&job.key, self.settings, with_companions));
            done.warnings =
                built.warnings.iter().map(|warning| format!("layer sha256:{}: {warning}", job.key)).collect();
        }
        Ok(done)
    }

    /// The layer of an earlier conversion, if the target has it.
    fn reused(&self, job: &Job) -> Result<Option<Descriptor>> {
        let Some(layer) = self.known.get(&format!("sha256:{}", job.key)) else { return Ok(None) };
        let companions = companions_of(layer)?;
        if companions.is_empty() == self.target.keeps_companions() {
            return Ok(None);
        }
        for digest in companions.iter().map(|companion| &companion.digest).chain([&layer.digest()?]) {
            if !self.target.has(digest)? {
                return Ok(None);
            }
        }
        Ok(Some(layer.clone()))
    }

    /// Stores configurations, manifests and the index. Returns the descriptor of the index.
    fn store(&self, plan: &Plan, layers: &BTreeMap<Digest, Descriptor>) -> Result<Descriptor> {
        let mut entries = Vec::new();
        if self.settings.keeps_original {
            for planned in &plan.manifests {
                let config = self.source.small_blob(&planned.manifest.config)?;
                self.target.put_blob(&config)?;
                self.target.put_manifest(&planned.descriptor.media_type, &planned.bytes, &[])?;
            }
        }
        let converted = plan.manifests.iter().filter_map(|planned| Some((planned, planned.conversion.as_ref()?)));
        let converted = converted
            .map(|(planned, conversion)| self.store_converted(planned, conversion, layers))
            .collect::<Result<Vec<_>>>()?;
        if self.settings.as_referrers {
            let (root, bytes) = &plan.root;
            self.target.finish(root, bytes)?;
            return Ok(root.clone());
        }
        if self.settings.keeps_original {
            for planned in &plan.manifests {
                let mut entry = planned.descriptor.clone();
                if entry.platform.is_none() {
                    entry.platform = planned.conversion.as_ref().map(|conversion| conversion.platform.clone());
                }
                entry.annotations.remove("org.opencontainers.image.ref.name");
                let is_replaced = converted.iter().any(|other: &Descriptor| {
                    let platforms = entry.platform.as_ref().zip(other.platform.as_ref());
                    let is_earlier =
                        |(own, other): (&Platform, &Platform)| own.has_erofs() && own.is_same_machine(other);
                    entry.digest().ok() == other.digest().ok() || platforms.is_some_and(is_earlier)
                });
                if !is_replaced {
                    entries.push(entry);
                }
            }
        }
        entries.extend(converted);
        let index =
            plan.index.as_ref().map_or_else(|| Index::new(entries.clone()), |index| index.with(entries.clone()));
        let bytes = to_bytes(&index)?;
        let descriptor = Descriptor::of(INDEX, &bytes);
        self.target.finish(&descriptor, &bytes)?;
        Ok(descriptor)
    }

    fn store_converted(
        &self,
        planned: &PlannedManifest,
        conversion: &PlannedConversion,
        layers: &BTreeMap<Digest, Descriptor>,
    ) -> Result<Descriptor> {
        let sources = &planned.manifest.layers;
        let keys = match self.settings.is_merged {
            true => vec![merged_key(sources)?],
            false => sources.iter().map(Descriptor::digest).collect::<Result<_>>()?,
        };
        let (mut descriptors, mut diff_ids, mut companions) = (Vec::new(), Vec::new(), Vec::new());
        for (place, key) in keys.iter().enumerate() {
            match layers.get(key) {
                Some(layer) => {
                    diff_ids.push(format!("sha256:{}", layer.digest()?));
                    descriptors.push(layer.clone());
                    companions.extend(companions_of(layer)?);
                }
                None => {
                    diff_ids.push(diff_id(&conversion.config, place)?);
                    descriptors.extend(sources.get(place).cloned());
                }
            }
        }
        let config = to_bytes(&converted_config(&conversion.config, &diff_ids, self.settings)?)?;
        self.target.put_blob(&config)?;
        let mut manifest = planned.manifest.with(Descriptor::of(CONFIG, &config), descriptors);
        let subject = Descriptor::of(&planned.descriptor.media_type, &planned.bytes);
        if self.settings.as_referrers {
            manifest = manifest.referring_to(&subject, TWIN_ARTIFACT);
        }
        let manifest = to_bytes(&manifest)?;
        match self.settings.as_referrers {
            true => self.target.put_referrer(&subject.digest()?, &manifest, &companions)?,
            false => self.target.put_manifest(MANIFEST, &manifest, &companions)?,
        }
        let mut entry = Descriptor::of(MANIFEST, &manifest);
        let has_features = !self.settings.for_containerd_2_1;
        let platform = &conversion.platform;
        entry.platform = Some(if has_features { platform.with_erofs() } else { platform.clone() });
        Ok(entry)
    }
}
