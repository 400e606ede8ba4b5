//! Completes a build: verifies the image, and gives it its name.

pub(crate) mod expected;
pub(crate) mod naming;

use std::{fs::File, time::Duration};

use expected::Verified;
use naming::{Companion, name_all};

use crate::{
    content::duplicates::Duplicates,
    error::Result,
    files::{image_file::ImageFile, output_file::OutputFile, temporaries::Temporaries},
    layout::{CompleteLayout, squashfs::SquashfsSummary, type_usage::TypeUsage},
    tree::{Body, OrderedNode, Tree, content::Content},
};

/// An image that is complete but has no name yet. If it is dropped, the output path keeps the previous image; a block
/// device has no image then.
pub struct CompleteImage {
    image: OutputFile,
    blob: Option<OutputFile>,
    summary: Summary,
    temporaries: Temporaries,
}

impl CompleteImage {
    pub(crate) fn new(layout: CompleteLayout, summary: Summary, temporaries: &Temporaries) -> Result<Self> {
        let blob = layout.blob.map(ImageFile::into_file).transpose()?;
        Ok(Self { image: layout.image.into_file()?, blob, summary, temporaries: temporaries.clone() })
    }

    /// The file with the image. Callers may append to it.
    pub fn file(&self) -> &File {
        self.image.file()
    }

    /// Gives the image its name, together with its companions: a crash leaves no earlier companion beside the new image.
    ///
    /// # Errors
    /// A file cannot be stored or named. The earlier files stay, except that the image may already have its name if a
    /// companion cannot get its own.
    pub fn finish(self, companions: &[Companion]) -> Result<Summary> {
        let Self { image, blob, mut summary, temporaries } = self;
        summary.warnings.extend(name_all(image, blob, companions, &temporaries)?);
        Ok(summary)
    }
}

/// The result of a build. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The number of inodes, including the packed inode.
    pub inodes: u64,
    /// The number of regular files.
    pub files: u64,
    /// The number of directories.
    pub directories: u64,
    /// The content of all files, each inode counted once.
    pub content_bytes: u64,
    /// The part of it that is not stored, because it duplicates other data.
    pub duplicate_bytes: u64,
    /// The length of the packed inode.
    pub packed_bytes: u64,
    /// The data blocks: pclusters and uncompressed data.
    pub data_bytes: u64,
    /// The metadata: inodes, indexes, directories, xattrs, inline data.
    pub metadata_bytes: u64,
    /// The length of the image.
    pub image_bytes: u64,
    /// The length of the blob device; 0 without one.
    pub blob_bytes: u64,
    /// The volume's UUID; zeros in a SquashFS image, which has none.
    pub uuid: [u8; 16],
    /// The number of xattrs omitted because the format cannot represent them.
    pub xattrs_left_out: u64,
    /// Deviations from the sources, one line each.
    pub warnings: Vec<String>,
    /// The time for listing the sources.
    pub scan_time: Duration,
    /// The time for reading and compressing.
    pub data_time: Duration,
    /// The number of ranges of the profile that refer to files not in the image.
    pub profile_missing: u64,
    /// The extent of the verification; `None` without one.
    pub verified: Option<Verified>,
    /// The time for verification.
    pub verify_time: Duration,
    /// The total time.
    pub total_time: Duration,
    /// What the types of files take; empty unless [`Options::lists_types`](crate::Options::lists_types).
    pub types: Vec<TypeUsage>,
    /// More about a SquashFS image.
    pub squashfs: Option<SquashfsSummary>,
}

impl Summary {
    /// The counts and sizes of an image of this tree.
    pub(crate) fn of(tree: &Tree, order: &[OrderedNode], duplicates: &Duplicates, layout: &CompleteLayout) -> Self {
        let sizes = || order.iter().filter_map(|ordered| tree.content(ordered)).map(Content::size);
        let directories = order.iter().filter(|ordered| matches!(tree.node(ordered.node).body, Body::Directory(_)));
        let duplicates = duplicates.iter().filter_map(|(place, _)| tree.content(&order[place])).map(Content::size);
        Self {
            inodes: layout.inode_count,
            files: sizes().count() as u64,
            directories: directories.count() as u64,
            content_bytes: sizes().sum(),
            duplicate_bytes: layout.duplicate_bytes + duplicates.sum::<u64>(),
            packed_bytes: layout.packed_bytes,
            data_bytes: layout.data_bytes,
            metadata_bytes: layout.metadata_bytes,
            image_bytes: layout.image.len(),
            blob_bytes: layout.blob.as_ref().map_or(0, ImageFile::len),
            uuid: layout.uuid,
            xattrs_left_out: layout.xattrs.left_out(),
            types: layout.types.clone(),
            squashfs: layout.squashfs.clone(),
            ..Self::default()
        }
    }

    /// How the image differs from the sources and the options, one line each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.warnings.clone();
        match self.xattrs_left_out {
            0 => {}
            1 => notes.push("1 extended attribute was left out: the format cannot store it".to_owned()),
            count => notes.push(format!("{count} extended attributes were left out: the format cannot store them")),
        }
        if self.profile_missing > 0 {
            let count = self.profile_missing;
            notes.push(format!("{count} ranges of the profile belong to files that are not in the image"));
        }
        notes
    }
}
