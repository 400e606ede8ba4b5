//! Finds images in sources.

use std::{io, path::Path, sync::Arc};

use floe_image::ImageSource;
use floe_source::{ImageFormat, locate};

use crate::{Likeness, Offset, OpenError, likeness::HEAD_BYTES, part_source::PartSource};

/// Finds the image in a source; errors call it `name`. Returns the image's bytes, its offset in the source, and its format.
pub(crate) fn image_in(
    name: &Path,
    whole: &Arc<dyn ImageSource>,
    offset: Offset,
) -> Result<(Arc<dyn ImageSource>, u64, ImageFormat), OpenError> {
    let at_file = |error| OpenError::File { path: name.to_owned(), error };
    let mut at = match offset {
        Offset::None | Offset::Auto => 0,
        Offset::At(at) => at,
    };
    let mut source = part(whole, at).map_err(at_file)?;
    let mut format = ImageFormat::of(source.as_ref()).map_err(at_file)?;
    if format.is_none() && offset == Offset::Auto {
        let Some(location) = locate(source.as_ref()).map_err(at_file)? else {
            return Err(not_an_image(name, None, source.as_ref(), whole));
        };
        at = location.offset;
        format = Some(location.format);
        source = part(whole, at).map_err(at_file)?;
    }
    match format {
        Some(format) => Ok((source, at, format)),
        None => Err(not_an_image(name, Some(at), source.as_ref(), whole)),
    }
}

/// The bytes of a source from `offset` on.
fn part(whole: &Arc<dyn ImageSource>, offset: u64) -> io::Result<Arc<dyn ImageSource>> {
    if offset == 0 {
        return Ok(Arc::clone(whole));
    }
    let past_end = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the file is too short: it ends after {} bytes", whole.len()),
        )
    };
    Ok(Arc::new(PartSource::new(Arc::clone(whole), offset).ok_or_else(past_end)?))
}

fn not_an_image(path: &Path, offset: Option<u64>, source: &dyn ImageSource, whole: &Arc<dyn ImageSource>) -> OpenError {
    let mut head = vec![0; source.len().min(HEAD_BYTES as u64) as usize];
    let likeness = source.read_at(0, &mut head).ok().and_then(|()| Likeness::of(&head));
    // Without `Offset::Auto`, the search in other places only serves the advice in the error.
    let found_at = offset.and_then(|_| locate(whole.as_ref()).ok()?.map(|location| location.offset));
    OpenError::NotAnImage { path: path.to_owned(), offset, likeness, found_at }
}
