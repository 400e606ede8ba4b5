//! What stands between an image and its readers: the kernel's EROFS, or FUSE alone.

use std::{fmt, str::FromStr};

use floe::{ByteRange, Image};
use floe_fuse::{Access, Mount, MountError, MountOptions, Mountpoint};
use serde::{Deserialize, Serialize};

/// What is to stand between an image and its readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Front {
    /// The kernel's EROFS where that is possible.
    Auto,
    /// The kernel's EROFS.
    Kernel,
    /// FUSE alone.
    #[default]
    Fuse,
}

/// What stands between an image and its readers, and why.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub(crate) struct FrontReport {
    /// `kernel` or `fuse`.
    pub(crate) kind: String,
    /// Why it is this one; one line.
    pub(crate) reason: String,
}

impl FromStr for Front {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "kernel" => Ok(Self::Kernel),
            "fuse" => Ok(Self::Fuse),
            _ => Err(format!("'{text}' is not auto, kernel or fuse")),
        }
    }
}

impl Front {
    /// Mounts an image.
    ///
    /// # Errors
    /// It cannot be mounted; or only through FUSE, where the kernel's EROFS was asked for.
    pub(crate) fn mount(
        self,
        image: &Image,
        mountpoint: Mountpoint,
        options: &MountOptions,
    ) -> Result<(Mount, FrontReport), MountError> {
        let obstacle = match (self, &mountpoint) {
            (Self::Fuse, _) => Obstacle::Asked,
            (_, Mountpoint::Descriptor(_)) => Obstacle::Options("another program mounts (/dev/fd/N)"),
            (_, Mountpoint::Directory(_)) if !matches!(options.access, None | Some(Access::All)) => {
                Obstacle::Options("the kernel's EROFS lets all users in, unlike private and allow_root")
            }
            (_, Mountpoint::Directory(directory)) => {
                match Mount::in_front(image.reader().clone(), directory.clone(), options, ByteRange::new(0, u64::MAX)) {
                    Ok(mount) => return Ok((mount, FrontReport::kernel(self))),
                    Err(MountError::Front(refusal)) => Obstacle::Refused(refusal.to_string()),
                    Err(error) => return Err(error),
                }
            }
        };
        if self == Self::Kernel {
            return Err(MountError::Front(obstacle.to_string().into()));
        }
        Ok((Mount::new(image.reader().clone(), mountpoint, options)?, FrontReport::fuse(&obstacle)))
    }
}

impl FrontReport {
    fn kernel(front: Front) -> Self {
        let reason =
            if front == Front::Kernel { Obstacle::Asked.to_string() } else { "this is possible here".to_owned() };
        Self { kind: "kernel".to_owned(), reason }
    }

    fn fuse(obstacle: &Obstacle) -> Self {
        Self { kind: "fuse".to_owned(), reason: obstacle.to_string() }
    }
}

/// Why the kernel's EROFS is not in front.
enum Obstacle {
    /// FUSE was asked for.
    Asked,
    /// The options rule it out.
    Options(&'static str),
    /// The kernel refuses.
    Refused(String),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Asked => "it was asked for",
            Self::Options(reason) => reason,
            Self::Refused(reason) => reason,
        })
    }
}
