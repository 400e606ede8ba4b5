//! How requests come from the kernel: over io_uring, or over `/dev/fuse`.

use std::{fmt, num::NonZero, str::FromStr, thread};

use floe::memory_limit_bytes;
use floe_fuse::{Mount, MountOptions, Rings, Transport};
use floe_keeper::RingPermission;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::{failure::Failure, front::Front};

/// The requested transport for the kernel's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransportChoice {
    /// Over io_uring where the kernel offers it and the mount need not outlive its process.
    #[default]
    Auto,
    /// Over `/dev/fuse`.
    Device,
    /// Over io_uring.
    Uring,
}

/// Whether the mount outlives its serving process, which io_uring does not support.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Continuity {
    /// It ends with this process.
    Unneeded,
    /// The service manager can restart it.
    Managed,
    /// Another process has served it before.
    TakenOver,
}

/// The transport of the kernel's requests, and the reason for it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct TransportReport {
    /// `uring` or `dev`.
    pub kind: String,
    /// The reason, in one line.
    pub reason: String,
}

/// The choice of a mount's transport, with the reason for the report.
pub(crate) struct TransportPlan {
    choice: TransportChoice,
    /// The rings, if the mount is to use them.
    rings: Option<Rings>,
    /// Why there are no rings.
    obstacle: Option<String>,
    /// Whether root has permitted rings to all mounts.
    is_general: bool,
}

impl TransportPlan {
    /// Creates the rings that the mount needs, before the process is confined.
    ///
    /// # Errors
    /// Rings were requested but are not possible.
    pub(crate) fn new(
        choice: TransportChoice,
        options: &MountOptions,
        continuity: Continuity,
        front: Front,
    ) -> Result<Self, Failure> {
        let is_excluded = !choice.may_use_rings(options, continuity);
        // Asking may wait for other mounts.
        let is_general = !is_excluded && RingPermission::general().is_some();
        // Otherwise a mount with front=fuse stays on /dev/fuse, so that it can be handed over.
        let is_wanted = front != Front::Fuse || choice == TransportChoice::Uring;
        let is_offered = is_general || (is_wanted && RingPermission::can_be_given());
        let mut rings = None;
        let obstacle = match (continuity, choice) {
            (_, TransportChoice::Device) => Some("requested by an option".to_owned()),
            (Continuity::TakenOver, _) => Some("the mount was taken over from another process".to_owned()),
            (Continuity::Managed, TransportChoice::Auto) => {
                Some("the service manager can then restart it (transport=uring gives that up)".to_owned())
            }
            // fusermount3 checks only once whether the mount is dead, and the kernel ends rings only after their
            // process.
            (_, _) if options.kernel.auto_unmount => Some("auto-unmount needs /dev/fuse".to_owned()),
            (_, TransportChoice::Auto) if has_few_descriptors() => {
                Some("the limit of open files is low (ulimit -n)".to_owned())
            }
            (_, TransportChoice::Auto) if memory_limit_bytes() < RINGS_PART * ring_bytes() => {
                Some("memory is limited, and the slots of the rings need much of it".to_owned())
            }
            (_, TransportChoice::Auto) if !is_offered => {
                Some("the kernel does not offer io_uring (fuse.enable_uring)".to_owned())
            }
            (_, TransportChoice::Auto | TransportChoice::Uring) => Rings::new()
                .map(|made| rings = Some(made))
                .err()
                .map(|error| format!("this process cannot use io_uring: {error}")),
        };
        match obstacle {
            Some(reason) if choice == TransportChoice::Uring && continuity != Continuity::TakenOver => {
                Err(refused(&reason))
            }
            obstacle => Ok(Self { choice, rings, obstacle, is_general }),
        }
    }

    /// The transport of a mount of the service. `rings` are those of the process that serves it alone, or the reason why it has
    /// none; `None` in a process that serves others, too.
    ///
    /// # Errors
    /// Rings were requested but are not possible.
    pub(crate) fn of_service(choice: TransportChoice, rings: Option<Result<Rings, String>>) -> Result<Self, Failure> {
        let reason = match choice {
            TransportChoice::Device => "requested by an option",
            TransportChoice::Auto => "the service can then replace its process",
            TransportChoice::Uring => "another process has served it",
        };
        let (rings, obstacle) = match (choice, rings) {
            (TransportChoice::Uring, Some(Ok(rings))) => (Some(rings), None),
            (TransportChoice::Uring, Some(Err(reason))) => return Err(refused(&reason)),
            (TransportChoice::Uring, None) => return Err(refused(reason)),
            (_, _) => (None, Some(reason.to_owned())),
        };
        Ok(Self { choice, rings, obstacle, is_general: false })
    }

    /// The rings, if the mount is to use them.
    pub(crate) fn rings(&self) -> Option<&Rings> {
        self.rings.as_ref()
    }

    /// How the requests of the mount come from the kernel.
    ///
    /// # Errors
    /// io_uring was requested, but the kernel does not use it for this mount.
    pub(crate) fn report(self, mount: &Mount) -> Result<TransportReport, Failure> {
        let is_asked = self.choice == TransportChoice::Uring;
        let (kind, reason) = match mount.transport() {
            Transport::Rings(_) if is_asked => ("uring", "requested by an option".to_owned()),
            Transport::Rings(_) if self.is_general => ("uring", "the kernel offers it".to_owned()),
            Transport::Rings(_) => ("uring", "permitted to this mount alone".to_owned()),
            Transport::DeviceWithout(reason) if is_asked => return Err(refused(reason)),
            Transport::DeviceWithout(reason) => ("dev", reason.clone()),
            Transport::Device => ("dev", self.obstacle.unwrap_or_default()),
        };
        Ok(TransportReport { kind: kind.to_owned(), reason })
    }
}

impl TransportChoice {
    /// Whether a mount with these options may use rings, if the kernel offers them.
    pub(crate) fn may_use_rings(self, options: &MountOptions, continuity: Continuity) -> bool {
        let is_chosen = matches!((continuity, self), (Continuity::Unneeded, Self::Auto) | (_, Self::Uring));
        is_chosen && !options.kernel.auto_unmount
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

/// The rings take at most one part in this many of the memory.
const RINGS_PART: u64 = 8;

/// The memory that the rings can take, in bytes: 32 slots for each CPU, each with room for 1 MiB.
fn ring_bytes() -> u64 {
    thread::available_parallelism().map_or(1, NonZero::get) as u64 * (32 << 20)
}

/// Whether the rings, with two descriptors for each CPU, would take more than half of the descriptors.
fn has_few_descriptors() -> bool {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    getrlimit(Resource::Nofile).current.is_some_and(|limit| limit < (4 * cpus).max(64))
}

fn refused(reason: &str) -> Failure {
    Failure::failed(format!(
        "FUSE over io_uring is not possible: {reason}: give transport=dev in place of transport=uring"
    ))
}
