//! The open connections of the exporter.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use floe_sync::Mutex;
use tokio::task::AbortHandle;

use super::peer::Peer;

/// The maximum number of connections of one client. A new one replaces its oldest.
const OF_PEER_MAX: usize = 8;

/// The maximum number of connections. A new one replaces the oldest of the client with the most.
const CONNECTIONS_MAX: usize = 256;

/// The open connections, by client. A client, such as a user of this machine, can only displace its own connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// The connections of each client, oldest first.
    of_peers: BTreeMap<Peer, VecDeque<(u64, AbortHandle)>>,
    count: usize,
    last: u64,
}

/// The place of a connection, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    connections: Connections,
    peer: Peer,
    number: u64,
}

impl Connections {
    /// Makes room for a connection of a client.
    pub(super) fn admit(&self, peer: Peer) -> Admitted {
        let mut open = self.open.lock();
        if open.of_peers.get(&peer).is_some_and(|own| own.len() >= OF_PEER_MAX) {
            open.end_oldest(peer);
        } else if open.count >= CONNECTIONS_MAX {
            let busiest = open.of_peers.iter().max_by_key(|(_, own)| own.len()).map(|(peer, _)| *peer);
            busiest.into_iter().for_each(|busiest| open.end_oldest(busiest));
        }
        open.last += 1;
        Admitted { connections: self.clone(), peer, number: open.last }
    }
}

impl Admitted {
    /// Notes the task that serves the connection.
    pub(super) fn is_served_by(&self, task: AbortHandle) {
        let mut open = self.connections.open.lock();
        open.count += 1;
        open.of_peers.entry(self.peer).or_default().push_back((self.number, task));
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        let Some(own) = open.of_peers.get_mut(&self.peer) else { return };
        let before = own.len();
        own.retain(|(number, _)| *number != self.number);
        let removed = before - own.len();
        if own.is_empty() {
            open.of_peers.remove(&self.peer);
        }
        open.count -= removed;
    }
}

impl Open {
    fn end_oldest(&mut self, peer: Peer) {
        let oldest = self.of_peers.get_mut(&peer).and_then(VecDeque::pop_front);
        if let Some((_, task)) = oldest {
            self.count -= 1;
            task.abort();
        }
    }
}
