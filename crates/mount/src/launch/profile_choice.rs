//! The values of `profile=` and `launch-wait=`.

use std::{path::PathBuf, time::Duration};

/// The default of `launch-wait=`: how long mounting waits for the replay of a launch that has a bundle.
pub(crate) const LAUNCH_WAIT: Duration = Duration::from_secs(5);

/// The launch that a mount replays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ProfileChoice {
    /// The profile in the image, if it has one.
    #[default]
    Image,
    /// The profile in a file.
    File(PathBuf),
    /// That of the first launch, which is recorded, and replayed in later mounts.
    Learn,
    /// None.
    Off,
}
