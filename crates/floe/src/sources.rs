//! Opens files as sources and finds images in them.

use std::{io, path::Path, sync::Arc};

use floe_image::ImageSource;
use floe_source::{FileSource, ImageFormat, locate};

use crate::{Likeness, Offset, OpenError, likeness::HEAD_BYTES, part_source::PartSource};

/// Opens a file and finds the image in it. Returns the image's bytes, its offset in the file, and its format.
pub(crate) fn open_image(path: &Path, offset: Offset) -> Result<(Arc<dyn ImageSource>, u64, ImageFormat), OpenError> {
    find_image(path, offset, |at| open_file(path, at))
}

/// Like [`open_image`], for a source that is already open; errors call it `name`.
pub(crate) fn image_in(
    name: &Path,
    whole: &Arc<dyn ImageSource>,
    offset: Offset,
) -> Result<(Arc<dyn ImageSource>, u64, ImageFormat), OpenError> {
    find_image(name, offset, |at| {
        if at == 0 {
            return Ok(Arc::clone(whole));
        }
        let part = PartSource::new(Arc::clone(whole), at);
        let past_end =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("it ends before that, after {} bytes", whole.len()));
        Ok(Arc::new(part.ok_or_else(past_end)?))
    })
}

/// Finds the image; `open` returns a source that begins at an offset of the file.
fn find_image(
    name: &Path,
    offset: Offset,
    open: impl Fn(u64) -> io::Result<Arc<dyn ImageSource>>,
) -> Result<(Arc<dyn ImageSource>, u64, ImageFormat), OpenError> {
    let at_file = |error| OpenError::File { path: name.to_owned(), error };
    let mut at = match offset {
        Offset::None | Offset::Auto => 0,
        Offset::At(at) => at,
    };
    let mut source = open(at).map_err(at_file)?;
    let mut format = ImageFormat::of(source.as_ref()).map_err(at_file)?;
    if format.is_none() && offset == Offset::Auto {
        let Some(location) = locate(source.as_ref()).map_err(at_file)? else {
            return Err(not_an_image(name, None, source.as_ref(), &open));
        };
        at = location.offset;
        format = Some(location.format);
        source = open(at).map_err(at_file)?;
    }
    match format {
        Some(format) => Ok((source, at, format)),
        None => Err(not_an_image(name, Some(at), source.as_ref(), &open)),
    }
}

/// The bytes of a file from `offset` on.
pub(crate) fn open_file(path: &Path, offset: u64) -> io::Result<Arc<dyn ImageSource>> {
    Ok(Arc::new(FileSource::open_part(path, offset, None)?))
}

fn not_an_image(
    path: &Path,
    offset: Option<u64>,
    source: &dyn ImageSource,
    open: impl Fn(u64) -> io::Result<Arc<dyn ImageSource>>,
) -> OpenError {
    let mut head = vec![0; source.len().min(HEAD_BYTES as u64) as usize];
    let likeness = source.read_at(0, &mut head).ok().and_then(|()| Likeness::of(&head));
    // Without `Offset::Auto`, the search in other places only serves the advice in the error.
    let found_at = offset.and_then(|_| {
        let whole = open(0).ok()?;
        locate(whole.as_ref()).ok()?.map(|location| location.offset)
    });
    OpenError::NotAnImage { path: path.to_owned(), offset, likeness, found_at }
}
