//! Renders the metadata of an image for its front, in a domain.

use std::{
    fs::File,
    ops::ControlFlow,
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe::{Engine, Image, ImageFiles, NamedFiles};
use floe_front::{Algorithms, Identity, ImageFile, keep};
use floe_sync::Mutex;
use rustix::process::setpriority_process;

use super::{
    messages::{Haste, Rendering},
    record::path,
    settings::settings_of_request,
};
use crate::{
    failure::Failure,
    front,
    kept_front::{BYTES_MAX, NICE_MAX, age_min},
};

/// A mount waits for metadata of at most this many inodes: rendering it takes about as long as a mount.
const QUICK_INODES_MAX: u64 = 1000;

/// How long a mount waits for it at most.
const QUICK_TIME_MAX: Duration = Duration::from_millis(200);

/// Renders metadata to the file beside the image. Returns whether it is complete. The one rendering for later mounts that is in progress
/// locks `later`.
///
/// # Errors
/// The image cannot be opened, or its metadata cannot be rendered.
pub(super) fn render(
    engine: &Arc<Engine>,
    later: &Mutex<()>,
    rendering: &Rendering,
    descriptors: Vec<OwnedFd>,
) -> Result<bool, Failure> {
    let broken = || Failure::failed("the service breaks the protocol");
    let [image, file] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| broken())?;
    let identity: Identity = rendering.identity.as_slice().try_into().map_err(|_| broken())?;
    let _only = match rendering.haste {
        Haste::Now | Haste::NowIfQuick => None,
        Haste::Later => {
            thread::sleep(age_min().unwrap_or_default());
            let only = later.lock();
            // Without it, this thread only takes more time from others.
            let _ = setpriority_process(None, NICE_MAX);
            Some(only)
        }
    };
    let settings = settings_of_request(&rendering.request)?;
    let image_file = match rendering.algorithms.map(|number| Algorithms::from_number(number as u16)) {
        None => None,
        Some(algorithms) => {
            let opened = image.try_clone().and_then(|image| ImageFile::new(File::from(image)));
            let opened = opened.map_err(|error| Failure::failed(format!("cannot read the image: {error}")))?;
            Some(opened.decoding(algorithms))
        }
    };
    let named = NamedFiles::of_descriptors(&path(&rendering.request.image), image, Vec::new())?;
    let image = Image::of_in(engine, ImageFiles::of_named(named, &settings.open)?, &settings.open)?;
    #[cfg(debug_assertions)]
    let rendering = &Rendering {
        only_user: rendering.only_user.filter(|_| !crate::compromised::lies("rendering")),
        ..rendering.clone()
    };
    #[cfg(debug_assertions)]
    if crate::compromised::lies("nothing") {
        return Ok(true);
    }
    let original = front::original(&image, &settings.mount, rendering.only_user);
    let is_quick = rendering.haste == Haste::NowIfQuick;
    if is_quick && original.info().inode_count > QUICK_INODES_MAX {
        return Ok(false);
    }
    let started = Instant::now();
    let mut pace = || match is_quick && started.elapsed() > QUICK_TIME_MAX {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    Ok(keep(original, image_file.as_ref(), &File::from(file), &identity, BYTES_MAX, &mut pace).is_ok())
}
