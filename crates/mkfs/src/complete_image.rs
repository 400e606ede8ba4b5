//! An image that is complete but has no name yet.

use std::fs::File;

use crate::{
    error::Result,
    naming::{Companion, name_all},
    output_file::OutputFile,
    summary::Summary,
    temporaries::Temporaries,
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
    pub(crate) fn new(
        image: OutputFile,
        blob: Option<OutputFile>,
        summary: Summary,
        temporaries: &Temporaries,
    ) -> Self {
        Self { image, blob, summary, temporaries: temporaries.clone() }
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
