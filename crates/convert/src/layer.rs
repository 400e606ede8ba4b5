//! Converts one layer, or merges several.

use std::{
    fmt::Write as _,
    fs::File,
    io::{self, Write as _},
    num::NonZeroUsize,
    ops::ControlFlow,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe::{
    ImageVerifier, Thoroughness,
    remote::{Companion, Companions, EROFS_LAYER, FORMAT_ANNOTATION, SOURCE_ANNOTATION, TOC_ANNOTATION},
};
use floe_mkfs::{Options, OverlayMarks, Phase, Progress, Source, Whiteouts, build_unnamed};
use floe_remote_cache::Digest;

use crate::{
    document::Descriptor,
    error::{Error, Result},
    settings::Settings,
};

/// The annotation of a converted layer with how it was made. A later conversion takes it over if this and its source are the same.
pub(crate) const SETTINGS_ANNOTATION: &str = "dev.floe.convert.settings";

/// The media type of EROFS layers that containerd 2.1 knows.
const OCI_EROFS_LAYER: &str = "application/vnd.oci.image.layer.v1.erofs";

/// The beginning of a converted layer, which EROFS leaves to others. Two blocks of zeros would be an empty archive, and programs
/// that do not look at media types, such as Podman, would unpack an empty layer instead of failing.
const MARK: &[u8] = b"This layer is an EROFS image, not an archive.\n";

/// A converted layer that is not stored yet.
pub(crate) struct BuiltLayer {
    pub(crate) path: PathBuf,
    pub(crate) companions: Companions,
    pub(crate) warnings: Vec<String>,
}

/// The threads and the memory of one build.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) jobs: NonZeroUsize,
    pub(crate) memory_bytes: usize,
}

impl BuiltLayer {
    /// Builds an EROFS image of the archives in `layers`, the lowest first, at `output`. A single layer keeps its whiteouts, as
    /// those of overlayfs; of several layers, whiteouts remove entries of lower ones.
    ///
    /// # Errors
    /// An archive is broken, the image cannot be written or read back, or `cancel` is set.
    pub(crate) fn new(
        layers: &[PathBuf],
        output: &Path,
        settings: &Settings,
        share: Share,
        cancel: &AtomicBool,
    ) -> std::result::Result<Self, floe_mkfs::Error> {
        let mut options = Options::new(output);
        options.compression = settings.compression;
        options.pcluster_bytes = settings.pcluster_bytes;
        options.whiteouts = if settings.is_merged { Whiteouts::Apply } else { Whiteouts::Overlay };
        if !settings.is_merged {
            // As containerd's differ does, which calls mkfs.erofs.
            options.overlay_marks = OverlayMarks::MarkOrigins;
        }
        options.profile = settings.profile.clone();
        options.is_profile_of_several = true;
        options.jobs = share.jobs;
        options.memory_bytes = Some(share.memory_bytes);
        let sources: Vec<Source> = layers.iter().map(|path| Source::Tar(path.clone())).collect();
        let mut verifier = ImageVerifier { thoroughness: Thoroughness::Sample, jobs: share.jobs };
        let complete = build_unnamed(&options, &sources, Some(&mut verifier), &mut Until(cancel))?;
        let marked = complete.file().write_all_at(MARK, 0);
        marked.map_err(|error| floe_mkfs::Error::Option(format!("cannot mark the layer: {error}")))?;
        let summary = complete.finish(&[])?;
        let companions = companions(output, settings);
        let companions =
            companions.map_err(|message| floe_mkfs::Error::Option(format!("cannot read the layer back: {message}")))?;
        Ok(Self { path: output.to_owned(), companions, warnings: summary.warnings })
    }

    /// Describes the layer.
    pub(crate) fn describe(&self, source: &Digest, settings: &Settings, with_companions: bool) -> Descriptor {
        let Self { companions, .. } = self;
        let media_type = if settings.for_containerd_2_1 { OCI_EROFS_LAYER } else { EROFS_LAYER };
        let mut descriptor = Descriptor::new(media_type, companions.layer_digest(), companions.layer_len());
        let annotations = &mut descriptor.annotations;
        let mut add = |name: &str, value: String| annotations.insert(name.to_owned(), value);
        add(FORMAT_ANNOTATION, "erofs".to_owned());
        add(SOURCE_ANNOTATION, format!("sha256:{source}"));
        add(SETTINGS_ANNOTATION, settings.identity());
        if with_companions {
            // Podman and CRI-O look the layer up in an additional layer store by the root that verifies it.
            add(TOC_ANNOTATION, format!("sha256:{}", companions.root()));
            companions.annotate(annotations);
        }
        descriptor
    }
}

/// Whether a converted layer is described with its companions.
pub(crate) fn has_companions(layer: &Descriptor) -> bool {
    layer.annotations.contains_key(TOC_ANNOTATION)
}

/// The companions that the description of a layer names.
pub(crate) fn companions_of(layer: &Descriptor) -> Result<Vec<Companion>> {
    Ok(Companion::of_layer(&layer.annotations, &layer.digest()?, layer.size))
}

fn companions(layer: &Path, settings: &Settings) -> std::result::Result<Companions, String> {
    let failed = |error: io::Error| error.to_string();
    let mut parts = Vec::new();
    if let Some(profile) = &settings.profile {
        // The part of the profile in the layer lacks the directories of which other layers have the files.
        let mut file = tempfile::NamedTempFile::new_in(layer.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        file.write_all(profile.to_text().as_bytes()).map_err(failed)?;
        parts = (settings.launch_parts)(layer, file.path())?;
    }
    Companions::new(&File::open(layer).map_err(failed)?, &parts).map_err(failed)
}

/// The key of several layers that are merged.
pub(crate) fn merged_key(layers: &[Descriptor]) -> Result<Digest> {
    let mut text = String::new();
    for layer in layers {
        let _ = writeln!(text, "{}", layer.digest()?);
    }
    Ok(Digest::of(text.as_bytes()))
}

/// Stops a build when a flag is set.
struct Until<'flag>(&'flag AtomicBool);

impl Progress for Until<'_> {
    fn advance(&mut self, _: Phase, _: u64, _: u64) -> ControlFlow<()> {
        if self.0.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The error for a layer that could not be built.
pub(crate) fn build_error(layer: &Digest) -> impl Fn(floe_mkfs::Error) -> Error {
    let layer = format!("sha256:{layer}");
    move |error| match error {
        floe_mkfs::Error::Cancelled => Error::Cancelled,
        error => Error::Build { layer: layer.clone(), error },
    }
}
