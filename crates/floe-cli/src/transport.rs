//! How requests come from the kernel: over io_uring, or over `/dev/fuse`.

use std::{fmt, str::FromStr};

use floe_fuse::{Mount, MountOptions, Rings, Transport};
use serde::{Deserialize, Serialize};

use crate::fail::Fail;

/// How requests are to come from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TransportChoice {
    /// The faster one.
    #[default]
    Auto,
    /// Over `/dev/fuse`.
    Device,
    /// Over io_uring.
    Uring,
}

/// How requests come from the kernel, and why.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub(crate) struct TransportReport {
    /// `uring` or `dev`.
    pub(crate) kind: String,
    /// Why it is this one; one line.
    pub(crate) reason: String,
}

impl TransportChoice {
    /// Creates the rings that the mount needs, before the process is confined.
    ///
    /// # Errors
    /// There can be none, but they were asked for.
    pub(crate) fn prepare(self, options: &mut MountOptions) -> Result<(), Fail> {
        if self == Self::Uring {
            options.rings = Some(Rings::new().map_err(|error| refused(&error.to_string()))?);
        }
        Ok(())
    }

    /// How the requests of a mount come from the kernel.
    ///
    /// # Errors
    /// Not over io_uring, although that was asked for.
    pub(crate) fn report(self, mount: &Mount) -> Result<TransportReport, Fail> {
        let (kind, reason) = match (mount.transport(), self) {
            (Transport::Rings(_), _) => ("uring", "it was asked for"),
            (Transport::DeviceWithout(reason), Self::Uring) => return Err(refused(reason)),
            (Transport::DeviceWithout(reason), _) => ("dev", reason.as_str()),
            (Transport::Device, Self::Device) => ("dev", "it was asked for"),
            (Transport::Device, _) => ("dev", "it can be handed over to another process"),
        };
        Ok(TransportReport { kind: kind.to_owned(), reason: reason.to_owned() })
    }
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Device => "dev",
            Self::Uring => "uring",
        })
    }
}

impl FromStr for TransportChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "dev" => Ok(Self::Device),
            "uring" => Ok(Self::Uring),
            _ => Err(format!("'{text}' is not auto, dev or uring")),
        }
    }
}

fn refused(reason: &str) -> Fail {
    Fail::failed(format!("FUSE over io_uring is not possible: {reason}: give transport=dev in place of transport=uring"))
}
