//! The state of an upgrade of the service, which the threads of the broker share.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
};

use floe_sync::Mutex;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::write,
};

/// The state of upgrades in a broker.
#[derive(Debug)]
pub(super) struct Upgrade {
    /// Whether the program or its domains are being replaced.
    is_in_progress: AtomicBool,
    /// Whether new requests wait.
    is_holding: AtomicBool,
    /// The program that is to be executed.
    pending: Mutex<Option<Pending>>,
    /// Each of its references is something in progress that the next program could not continue.
    activities: Arc<()>,
    /// Wakes the broker's thread.
    event: OwnedFd,
}

/// A program that is to be executed.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) program: OwnedFd,
    /// The number of the client that has asked.
    pub(super) client: u64,
    /// Takes the reason why the program was not executed.
    pub(super) failed: mpsc::Sender<String>,
}

/// Something in progress: until it is dropped, the program is not replaced.
#[derive(Debug)]
pub(super) struct Activity {
    _reference: Arc<()>,
}

impl Upgrade {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            is_in_progress: AtomicBool::new(false),
            is_holding: AtomicBool::new(false),
            pending: Mutex::default(),
            activities: Arc::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Notes something in progress.
    pub(super) fn activity(&self) -> Activity {
        Activity { _reference: Arc::clone(&self.activities) }
    }

    /// Whether new requests wait.
    pub(super) fn is_holding(&self) -> bool {
        self.is_holding.load(Relaxed)
    }

    /// Readable when the program may be replaced, and when requests need not wait any more.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Begins an upgrade, or the part of one after the start of the new program. Returns `false` if there is one.
    pub(super) fn begin(&self) -> bool {
        !self.is_in_progress.swap(true, Relaxed)
    }

    /// Ends it.
    pub(super) fn end(&self) {
        self.is_in_progress.store(false, Relaxed);
    }

    /// Lets new requests wait, and a program for its execution.
    pub(super) fn hold(&self, pending: Pending) {
        *self.pending.lock() = Some(pending);
        self.is_holding.store(true, Relaxed);
    }

    /// Takes the program that waits for its execution.
    pub(super) fn take_pending(&self) -> Option<Pending> {
        self.pending.lock().take()
    }

    /// Lets requests go on.
    pub(super) fn stop_holding(&self) {
        self.is_holding.store(false, Relaxed);
        self.wake();
    }

    /// Whether nothing is in progress that the next program could not continue.
    pub(super) fn has_no_activity(&self) -> bool {
        Arc::strong_count(&self.activities) == 1
    }

    /// Wakes the broker's thread.
    pub(super) fn wake(&self) {
        // If the counter is full, the broker has not read it, and will.
        let _ = write(&self.event, &1_u64.to_ne_bytes());
    }
}
