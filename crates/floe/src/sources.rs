//! The files that an image is in.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};

use floe_image::ImageSource;

use crate::{Format, Likeness, Offset, OpenError, likeness::HEAD_BYTES};

struct FileSource {
    file: File,
    offset: u64,
    len: u64,
}

impl ImageSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(output, self.offset + offset)
    }
}

/// The bytes of the image in a file, the byte of the file at which it begins, and its format.
pub(crate) fn open_image(path: &Path, offset: Offset) -> Result<(Arc<dyn ImageSource>, u64, Format), OpenError> {
    let at = match offset {
        Offset::None | Offset::Auto => 0,
        Offset::At(at) => at,
    };
    let source = open_file(path, at).map_err(|error| OpenError::File { path: path.to_owned(), error })?;
    let format = Format::of(source.as_ref()).map_err(|error| OpenError::File { path: path.to_owned(), error })?;
    match format {
        Some(format) => Ok((source, at, format)),
        None => Err(not_an_image(path, at, source.as_ref())),
    }
}

/// The bytes of a file from `offset` on.
pub(crate) fn open_file(path: &Path, offset: u64) -> io::Result<Arc<dyn ImageSource>> {
    let file = File::open(path)?;
    let len = file.metadata()?.len().saturating_sub(offset);
    Ok(Arc::new(FileSource { file, offset, len }))
}

fn not_an_image(path: &Path, offset: u64, source: &dyn ImageSource) -> OpenError {
    let mut head = vec![0; source.len().min(HEAD_BYTES as u64) as usize];
    let likeness = source.read_at(0, &mut head).ok().and_then(|()| Likeness::of(&head));
    OpenError::NotAnImage { path: path.to_owned(), offset: Some(offset), likeness, found_at: None }
}
