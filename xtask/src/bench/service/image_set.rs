//! A set of images of both formats, and what their files contain.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    KernelMount, Tree,
    corpus::{Format, Materialised},
};

use super::{stand::Stand, tree_digest::TreeDigest};
use crate::{
    bench::listing::{self, ListedFile},
    task_error::{During, Outcome, TaskError},
};

/// Where the superblock of EROFS begins, and its first bytes.
const EROFS_OFFSET: usize = 1024;
const EROFS_MAGIC: [u8; 4] = [0xe2, 0xe1, 0xf5, 0xe0];

/// Images, all different.
pub(super) struct ImageSet {
    images: Vec<KnownImage>,
}

/// An image with its content.
pub(super) struct KnownImage {
    /// Its path.
    pub(super) path: PathBuf,
    /// Its format.
    pub(super) format: Format,
    /// Its regular files.
    pub(super) files: Vec<ListedFile>,
    /// The digest of these.
    pub(super) digest: TreeDigest,
}

/// What generated images contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Content {
    /// The number of images, EROFS and SquashFS in turn.
    pub(super) image_count: usize,
    /// The number of files of each.
    pub(super) file_count: u32,
    /// The size of the largest file.
    pub(super) file_bytes_max: u64,
}

impl ImageSet {
    /// The images in a directory; files of other kinds are left out. Expected contents are read through the kernel's own mounts.
    pub(super) fn at(folder: &Path) -> Outcome<Self> {
        let entries = fs::read_dir(folder).during(folder.display())?;
        let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Outcome<_>>()?;
        paths.sort();
        let mut images = Vec::new();
        for path in paths.into_iter().filter(|path| path.is_file()) {
            let Some(format) = format_of(&path)? else { continue };
            images.push(KnownImage::read(path, format)?);
        }
        Self::of(images, &folder.display().to_string())
    }

    /// Images of generated trees, made by Floe in the folder of a stand.
    pub(super) fn generate(floe: &Path, stand: &Stand, content: Content) -> Outcome<Self> {
        let folder = stand.folder().join("images");
        fs::create_dir(&folder)?;
        let mut images = Vec::new();
        for (number, seed) in (0..content.image_count).zip(1..) {
            stand.check()?;
            let format = if number % 2 == 0 { Format::Erofs } else { Format::Squashfs };
            let compressor = if format == Format::Erofs { "lz4hc" } else { "zstd" };
            let tree = folder.join("tree");
            let described = Tree {
                seed,
                file_count: content.file_count,
                file_bytes_max: content.file_bytes_max,
                wide_directory_entries: 0,
                nesting_depth: 0,
                oddities: false,
            };
            described.write(&tree)?;
            let path = folder.join(format!("{number:03}.{}", format.name()));
            let mut command = Command::new(floe);
            command.args(["mkfs", "--format", format.name(), "--compress", compressor]).arg(&path).arg(&tree);
            let output = command.output().during("floe mkfs")?;
            if !output.status.success() {
                return Err(TaskError::new(String::from_utf8_lossy(&output.stderr).trim()));
            }
            // Dirty pages cannot be dropped from the cache.
            File::open(&path)?.sync_all()?;
            let files = listing::list(&tree)?;
            let digest = TreeDigest::of(&tree, &files)?;
            images.push(KnownImage { path, format, files, digest });
            fs::remove_dir_all(&tree)?;
        }
        Self::of(images, "the request")
    }

    /// The image for mount `number`: the images in turn.
    pub(super) fn of_mount(&self, number: usize) -> &KnownImage {
        &self.images[number % self.images.len()]
    }

    /// The number of images.
    pub(super) fn len(&self) -> usize {
        self.images.len()
    }

    /// Their size together.
    pub(super) fn bytes(&self) -> Outcome<u64> {
        self.images.iter().map(|image| Ok(image.path.metadata()?.len())).sum()
    }

    fn of(images: Vec<KnownImage>, origin: &str) -> Outcome<Self> {
        if images.is_empty() { Err(TaskError::new(format!("no image in {origin}"))) } else { Ok(Self { images }) }
    }
}

impl KnownImage {
    /// Reads an image through the kernel's own mount.
    pub(super) fn read(path: PathBuf, format: Format) -> Outcome<Self> {
        let image = Materialised::single(&path, format);
        let mount = KernelMount::new(&image).map_err(TaskError::new).during("the reference is the kernel's mount")?;
        let files = listing::list(&mount.path())?;
        let digest = TreeDigest::of(&mount.path(), &files)?;
        Ok(Self { path, format, files, digest })
    }
}

fn format_of(path: &Path) -> Outcome<Option<Format>> {
    let mut bytes = Vec::new();
    let file = File::open(path).during(path.display())?;
    file.take((EROFS_OFFSET + EROFS_MAGIC.len()) as u64).read_to_end(&mut bytes)?;
    Ok(if bytes.starts_with(b"hsqs") {
        Some(Format::Squashfs)
    } else if bytes.get(EROFS_OFFSET..) == Some(&EROFS_MAGIC) {
        Some(Format::Erofs)
    } else {
        None
    })
}
