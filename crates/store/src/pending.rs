//! Replies that wait for a registry or a mount.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use floe_fuse_wire::{Errno, Reply};
use floe_sync::Mutex;

/// The maximum number of requests that wait at a time.
const WAITING_MAX: usize = 64;

/// How long a request may wait. Registries that do not answer are given up earlier; this also limits a mount that hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// The replies that are still owed, by the numbers of their requests.
#[derive(Debug, Default)]
pub(crate) struct PendingReplies(Mutex<HashMap<u64, (Arc<PendingReply>, Instant)>>);

/// A reply that several threads may send; the first one does.
#[derive(Debug)]
pub(crate) struct PendingReply {
    reply: Mutex<Option<Reply>>,
    unique: u64,
}

impl PendingReplies {
    /// Adds a reply. Refuses the request if too many wait.
    pub(crate) fn add(&self, reply: Reply) -> Option<Arc<PendingReply>> {
        let mut replies = self.0.lock();
        if replies.len() >= WAITING_MAX {
            drop(replies);
            reply.refuse(Errno::AGAIN);
            return None;
        }
        let unique = reply.unique();
        let pending = Arc::new(PendingReply { reply: Mutex::new(Some(reply)), unique });
        replies.insert(unique, (Arc::clone(&pending), Instant::now()));
        Some(pending)
    }

    /// Removes a reply, after its work has ended.
    pub(crate) fn remove(&self, pending: &PendingReply) {
        self.0.lock().remove(&pending.unique);
    }

    /// Refuses requests that have waited for too long.
    pub(crate) fn expire(&self) {
        let expired: Vec<Arc<PendingReply>> = {
            let replies = self.0.lock();
            let is_late = |since: &Instant| since.elapsed() > PATIENCE;
            replies.values().filter(|(_, since)| is_late(since)).map(|(pending, _)| Arc::clone(pending)).collect()
        };
        for reply in expired.iter().filter_map(|pending| pending.take()) {
            reply.refuse(Errno::IO);
        }
    }
}

impl PendingReply {
    /// The reply, if it has not been sent.
    pub(crate) fn take(&self) -> Option<Reply> {
        self.reply.lock().take()
    }
}
