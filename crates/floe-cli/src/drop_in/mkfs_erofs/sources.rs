//! The operands of mkfs.erofs: the image, and a directory, an archive, or the images of layers.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use floe_image::ShownName;
use floe_mkfs::{Source, Whiteouts};

use super::Order;
use crate::{
    command::mkfs::sources::{SourceImages, is_image},
    confinement,
    root_hash_file::root_hash_paths,
};

/// log2 of the block size of an image that refers to an archive: the unit of archives.
const ARCHIVE_BLOCK_SIZE_LOG2: u8 = 9;

impl Order {
    /// Parses the operands.
    ///
    /// # Errors
    /// A message: an operand is missing, or one too many.
    pub(super) fn sources(&mut self, operands: &[OsString]) -> Result<Vec<Source>, String> {
        let mut operands = operands.iter();
        self.build.output = operands.next().ok_or("missing argument: FILE")?.into();
        self.build.companions = root_hash_paths(&self.build.output);
        let Some(source) = operands.next() else {
            return match (self.is_tar, self.refers_to_archive) {
                (true, false) => Ok(self.known(None)?.into_iter().chain([Source::TarFromInput]).collect()),
                (true, true) => Err("--tar=i needs a file, to which the image refers".into()),
                (false, _) => Err("missing argument: SOURCE(s)".into()),
            };
        };
        if !self.is_tar && Path::new(source).is_file() {
            if self.adds {
                return Err("--incremental adds a directory or an archive; layers are merged without it".into());
            }
            let layers: Vec<&Path> = [source].into_iter().chain(operands).map(Path::new).collect();
            return self.layers(&layers);
        }
        if let Some(unexpected) = operands.next() {
            return Err(format!("unexpected argument: {}", unexpected.shown()));
        }
        if self.refers_to_archive {
            self.build.refers_to_sources = true;
            self.build.block_size_log2 = ARCHIVE_BLOCK_SIZE_LOG2;
        }
        let known = self.known(Some(Path::new(source)))?;
        let source = if self.is_tar { Source::Tar(source.into()) } else { Source::Directory(source.into()) };
        Ok(known.into_iter().chain([source]).collect())
    }

    /// Confines the process, which reads images: it can read only these sources.
    fn confine<'a>(&'a self, sources: impl Iterator<Item = &'a Path>) -> Result<(), String> {
        let outputs: Vec<&Path> =
            [&self.build.output].into_iter().chain(&self.build.blob_device).map(PathBuf::as_path).collect();
        let sources = sources.chain(self.hints.as_deref());
        confinement::building(&outputs, sources, self.sandbox).map_err(|fail| fail.to_string())
    }

    /// The image to which `source` is added, if it is one. The new image has its UUID and its block size.
    fn known(&mut self, source: Option<&Path>) -> Result<Option<Source>, String> {
        if !self.adds {
            return Ok(None);
        }
        let path = self.build.output.clone();
        if !is_image(&path) {
            return Err(format!("{}: --incremental needs an image to add to", path.shown()));
        }
        self.confine([path.as_path()].into_iter().chain(source))?;
        let image = SourceImages::new(&[]).open(&path).map_err(|fail| fail.to_string())?;
        self.build.block_size_log2 = image.block_size_log2();
        self.build.uuid = self.build.uuid.or(image.uuid());
        self.build.may_replace_source = true;
        Ok(Some(Source::Image(image)))
    }

    /// Opens the images of layers, the lowest first. Their blocks determine those of the new image.
    fn layers(&mut self, paths: &[&Path]) -> Result<Vec<Source>, String> {
        if let Some(path) = paths.iter().find(|path| !is_image(path)) {
            return Err(format!("{}: it is not an image; for an archive use --tar", path.shown()));
        }
        self.confine(paths.iter().copied())?;
        let mut images = SourceImages::new(&[]);
        let layers = paths.iter().map(|path| images.open(path)).collect::<Result<Vec<_>, _>>();
        let layers = layers.map_err(|fail| fail.to_string())?;
        if let Some(image) = layers.last() {
            self.build.block_size_log2 = image.block_size_log2();
        }
        self.build.whiteouts = Whiteouts::Merge;
        // Files of layers keep their times.
        self.is_build_time = true;
        self.build.refers_to_sources = !self.stores_data;
        Ok(layers.into_iter().map(Source::Image).collect())
    }
}
