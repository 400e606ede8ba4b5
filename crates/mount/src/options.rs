//! Mount options. One table drives `-o`, `--help`, `floe tune`, `floe status` and docs/options.md.

mod list;
mod row;
mod running;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use list::Strictness;
pub use running::ShownOption;
pub use text::{about, help, page};

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use floe::OpenOptions;
use floe_fuse::MountOptions;
use floe_sandbox::Mode;

use crate::{failure::Failure, front::Front, transport::TransportChoice};

/// The settings of a mount. A list of options [makes](Settings::take_list) them.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Options for opening the image.
    pub open: OpenOptions,
    /// Options for mounting it.
    pub mount: MountOptions,
    /// The source name in the mount table, instead of the path of the image.
    pub source: Option<String>,
    /// The directory of the image that is mounted, instead of its root.
    pub subdirectory: Option<PathBuf>,
    /// The file for a line after each decode.
    pub decode_marks: Option<PathBuf>,
    /// Whether the kernel's EROFS is in front.
    pub front: Front,
    /// Whether each mount renders the metadata of the kernel's EROFS in front, instead of keeping it for later ones.
    pub renders_front: bool,
    /// Whether the kernel's EROFS in front reads nothing in the image itself.
    pub reads_all_data: bool,
    /// How requests come from the kernel.
    pub transport: TransportChoice,
    /// The launch that is replayed or recorded.
    pub profile: ProfileChoice,
    /// How long mounting waits for the replay of a launch that has a bundle; `None` for the default.
    pub launch_wait: Option<Duration>,
    /// Whether the mount is one of the service.
    pub service: ServiceChoice,
    /// Whether the process is confined.
    pub sandbox: Mode,
    /// Whether the user has set `deadline`. If not, it follows `outage`.
    pub has_deadline: bool,
}

impl Settings {
    /// Whether the mount must be over io_uring.
    pub(crate) fn requires_rings(&self) -> bool {
        self.transport == TransportChoice::Uring
    }

    /// Sets how long a request may take.
    fn set_deadline(&mut self, time: Option<Duration>) {
        (self.mount.deadline, self.has_deadline) = (time, true);
    }

    /// Checks that a recorded launch is one of the image that is mounted.
    ///
    /// # Errors
    /// Only a subdirectory is mounted.
    pub(crate) fn check_profile(&self) -> Result<(), Failure> {
        let has_profile = matches!(self.profile, ProfileChoice::File(_) | ProfileChoice::Learn);
        if self.subdirectory.is_some() && has_profile {
            return Err(Failure::usage("a profile is of the whole image: omit subdir=, or profile= and --learn"));
        }
        Ok(())
    }
}

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

/// The value of `service=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ServiceChoice {
    /// The service mounts, if one listens and can mount with these options.
    Auto,
    /// The service mounts.
    On,
    /// A process of its own serves the mount.
    #[default]
    Off,
}

impl fmt::Display for ServiceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for ServiceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("'{text}' is not auto, on or off")),
        }
    }
}
