//! The sources of a build: directories, archives, and images, which are opened here.

use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe::{Engine, EngineOptions, Image, OpenOptions, VolumeOptions, WorkerMode};
use floe_image::ShownName;
use floe_mkfs::{Source, SourceImage, is_archive};
use floe_source::{FileSource, ImageFormat};

use crate::fail::Fail;

/// The source at each path. `devices` are the extra devices of the image among them.
///
/// # Errors
/// An image cannot be opened, or `devices` belong to no image or to several.
pub(crate) fn sources(paths: &[PathBuf], devices: &[PathBuf]) -> Result<Vec<Source>, Fail> {
    let image_count = paths.iter().filter(|path| is_image(path)).count();
    if !devices.is_empty() && image_count != 1 {
        return Err(Fail::usage("--device belongs to an image: exactly one source must be an image"));
    }
    let mut images = SourceImages::new(devices);
    paths
        .iter()
        .map(|path| if is_image(path) { images.open(path).map(Source::Image) } else { Ok(plain(path)) })
        .collect()
}

/// Opens the base of a build.
///
/// # Errors
/// It is no image, or cannot be opened.
pub(crate) fn base(path: &Path) -> Result<SourceImage, Fail> {
    if !is_image(path) {
        return Err(Fail::usage(format!("--base: {} is not an image", path.shown())));
    }
    SourceImages::new(&[]).open(path)
}

/// The source at a path that has no image. A missing directory is reported later, when it is read.
fn plain(path: &Path) -> Source {
    match path.metadata() {
        _ if path.as_os_str() == "-" => Source::TarFromInput,
        Ok(status) if status.is_dir() => Source::Directory(path.to_path_buf()),
        _ => Source::Tar(path.to_path_buf()),
    }
}

/// Whether there is an image at the beginning of a file or block device. Pipes are not read.
pub(crate) fn is_image(path: &Path) -> bool {
    let has_bytes = path.metadata().is_ok_and(|status| status.is_file() || status.file_type().is_block_device());
    let format = || FileSource::open(path).ok().and_then(|source| ImageFormat::of(&source).ok().flatten());
    has_bytes && path.as_os_str() != "-" && !is_archive(path) && format().is_some()
}

/// Opens images that share one cache.
pub(crate) struct SourceImages {
    engine: Option<Arc<Engine>>,
    options: OpenOptions,
}

impl SourceImages {
    /// Images with these extra devices.
    pub(crate) fn new(devices: &[PathBuf]) -> Self {
        let defaults = OpenOptions::default();
        let engine = EngineOptions { workers: WorkerMode::Inline, reserved_pages: 0, ..defaults.engine };
        let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
        let options = OpenOptions { devices: devices.to_vec(), engine, volume, ..OpenOptions::default() };
        Self { engine: None, options }
    }

    /// Opens the image at `path` as a source.
    ///
    /// # Errors
    /// The image cannot be opened.
    pub(crate) fn open(&mut self, path: &Path) -> Result<SourceImage, Fail> {
        let failed = |error: floe::Error| Fail::failed(format!("{}: {error}", path.shown()));
        let engine = match &self.engine {
            Some(engine) => engine,
            None => self.engine.insert(Engine::new(&self.options.engine).map_err(failed)?),
        };
        let image = Image::open_in(engine, path, &self.options)?;
        Ok(SourceImage::new(path, Arc::new(image)))
    }
}
