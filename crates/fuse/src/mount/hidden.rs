//! The handshake of a hidden mount that another process will serve.

use std::{io, os::fd::OwnedFd, time::Duration};

use floe_fuse_wire::{Channel, InitFlags, Terms};
use floe_keeper::{Access, KernelOptions};

use super::handover::ConnectionTerms;
use crate::{MountOptions, MountSetup, edge::negotiation::terms};

/// Negotiates the connection of a hidden mount behind a front of another user, which a process of that user will serve. The kernel
/// aborts the connection if that process leaves a request without a reply for `request_timeout`, however it behaves: who reads the
/// front waits no longer.
///
/// # Errors
/// The kernel has no such time limit (before Linux 6.14), or the handshake fails.
pub fn negotiate_hidden(
    device: OwnedFd,
    options: &MountOptions,
    request_timeout: Duration,
) -> io::Result<ConnectionTerms> {
    let channel = Channel::new(device);
    // As the process that serves it sets it up.
    let kernel = KernelOptions { access: Some(Access::All), checks_permissions: false, ..options.kernel.clone() };
    let setup = MountSetup::from(&MountOptions { kernel, ..options.clone() });
    let agreement = channel.negotiate(|offer| {
        let terms = terms(offer, &setup, false);
        Terms {
            flags: terms.flags | InitFlags::REQUEST_TIMEOUT,
            request_timeout_s: u16::try_from(request_timeout.as_secs()).unwrap_or(u16::MAX),
            ..terms
        }
    })?;
    if !agreement.flags.contains(InitFlags::REQUEST_TIMEOUT) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel does not limit the time of requests (Linux 6.14 does)",
        ));
    }
    Ok(ConnectionTerms::of(&agreement))
}
