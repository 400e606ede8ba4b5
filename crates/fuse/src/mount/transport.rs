//! How requests come from the kernel: over io_uring, or over `/dev/fuse`.

use std::{
    io,
    sync::{Arc, mpsc},
};

use floe_fuse_wire::{Agreement, Channel, InitFlags};

use super::{error::MountError, session::Session};
use crate::{
    connection::{READ_BYTES_MAX, rings::Rings},
    session_pool::SessionPool,
};

/// Why a kernel does not accept rings.
const NOT_OFFERED: &str =
    "the kernel does not offer it: root enables it with echo Y > /sys/module/fuse/parameters/enable_uring (Linux 6.14)";

/// How requests come from the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Over `/dev/fuse`.
    Device,
    /// Over `/dev/fuse`, although rings were available; the reason.
    DeviceWithout(String),
    /// Over io_uring, with this many rings.
    Rings(usize),
}

impl Transport {
    /// Starts the session threads with rings, if there are rings and the kernel accepts them.
    pub(super) fn begin(
        session: &Arc<Session>,
        pool: &Arc<SessionPool>,
        channel: &Channel,
        agreement: Agreement,
        rings: Option<&Rings>,
    ) -> Result<Self, MountError> {
        let Some(rings) = rings else { return Ok(Self::Device) };
        if !agreement.flags.contains(InitFlags::OVER_IO_URING) {
            return Ok(Self::DeviceWithout(NOT_OFFERED.to_owned()));
        }
        let rings = rings.take();
        let count = rings.len();
        let (sender, started) = mpsc::channel();
        for (number, ring) in rings.into_iter().enumerate() {
            let (channel, sender) = (channel.clone(), sender.clone());
            session.start_ring(pool, ring, number, move |ring| {
                let started = ring.start(&channel, READ_BYTES_MAX as usize);
                let filled = if started.is_ok() { ring.fill() } else { Ok(()) };
                let is_ready = started.is_ok() && filled.is_ok();
                let _ = sender.send((started, filled));
                is_ready
            })?;
        }
        // A thread that panics sends nothing.
        drop(sender);
        let (started, filled): (Vec<_>, Vec<_>) = started.iter().take(count).unzip();
        // After one refusal, the kernel sends everything over the device.
        if let Some(error) = started.into_iter().find_map(Result::err) {
            return Ok(Self::DeviceWithout(error.to_string()));
        }
        filled.into_iter().collect::<io::Result<()>>().map_err(MountError::Handshake)?;
        Ok(Self::Rings(count))
    }
}
