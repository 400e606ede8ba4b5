//! The clients of the service.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use floe_ipc::{
    Encoded, MESSAGE_BYTES_MAX,
    protocol::{Answer, RefusalKind, Request, VERSION},
    receive, send,
};
use floe_keeper::{Detach, UnmountError, UnmountReason};
use rustix::{
    net::{RecvFlags, SendFlags, SocketFlags, accept_with, sockopt::socket_peercred},
    process::geteuid,
};

use super::ledger::{Ledger, Watched};
use crate::MountUsers;

/// The maximum number of connections. Above it, the oldest one without a request in progress is closed.
const CLIENTS_MAX: usize = 256;

/// The maximum number of requests in progress, each of which has a thread.
const REQUESTS_MAX: usize = 64;

/// The clients of a broker.
pub(super) struct Clients {
    ledger: Arc<Ledger>,
    /// By their numbers, so the oldest one is first.
    connected: BTreeMap<u64, Arc<Client>>,
    in_progress: Arc<AtomicUsize>,
}

/// A connection to a client.
struct Client {
    socket: OwnedFd,
    has_greeted: AtomicBool,
    /// Whether a request is in progress.
    is_served: AtomicBool,
}

impl Clients {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, connected: BTreeMap::new(), in_progress: Arc::default() }
    }

    /// Accepts a client of this user.
    pub(super) fn accept(&mut self, listener: BorrowedFd<'_>) {
        let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) else { return };
        let client = Client { socket, has_greeted: AtomicBool::new(false), is_served: AtomicBool::new(false) };
        if !socket_peercred(&client.socket).is_ok_and(|peer| peer.uid == geteuid()) {
            let message =
                "the service mounts only for the user who has started it: mount with -o service=off".to_owned();
            return client.answer(&Answer::Refused { kind: RefusalKind::Failed, message });
        }
        if self.connected.len() >= CLIENTS_MAX {
            let idle = self.connected.iter().find(|(_, client)| !client.is_served.load(Relaxed));
            match idle.map(|(number, _)| *number) {
                Some(number) => self.disconnect(number),
                None => return client.answer(&too_many()),
            }
        }
        let number = self.ledger.next_number();
        if self.ledger.watch_once(&client.socket, Watched::Client(number)).is_ok() {
            self.connected.insert(number, Arc::new(client));
        }
    }

    /// Takes the next request of a client. Requests that may wait get a thread.
    pub(super) fn serve(&mut self, number: u64) {
        let Some(client) = self.connected.get(&number).cloned() else { return };
        let (request, descriptors) = match receive(&client.socket, RecvFlags::DONTWAIT) {
            Ok(Some(received)) => received,
            Ok(None) | Err(_) => return self.disconnect(number),
        };
        let is_slow = matches!(request, Request::Mount { .. } | Request::Unmount { .. });
        if !is_slow {
            let answer = self.ledger.answer_at_once(&client, &request);
            client.answer(&answer);
            return self.watch_again(number, &client);
        }
        if !client.has_greeted.load(Relaxed) {
            client.answer(&Answer::Refused { kind: RefusalKind::Usage, message: "greet first".to_owned() });
            return self.disconnect(number);
        }
        if self.in_progress.fetch_add(1, Relaxed) >= REQUESTS_MAX {
            self.in_progress.fetch_sub(1, Relaxed);
            client.answer(&too_many());
            return self.watch_again(number, &client);
        }
        client.is_served.store(true, Relaxed);
        let (ledger, in_progress, served) =
            (Arc::clone(&self.ledger), Arc::clone(&self.in_progress), Arc::clone(&client));
        let work = move || {
            let answer = ledger.answer(request, descriptors);
            served.answer(&answer);
            in_progress.fetch_sub(1, Relaxed);
            served.is_served.store(false, Relaxed);
            let _ = ledger.watch_again(&served.socket, Watched::Client(number));
        };
        if thread::Builder::new().name("floe-request".to_owned()).spawn(work).is_err() {
            self.in_progress.fetch_sub(1, Relaxed);
            client.is_served.store(false, Relaxed);
            client.answer(&too_many());
            self.watch_again(number, &client);
        }
    }

    fn watch_again(&mut self, number: u64, client: &Client) {
        if self.ledger.watch_again(&client.socket, Watched::Client(number)).is_err() {
            self.disconnect(number);
        }
    }

    fn disconnect(&mut self, number: u64) {
        if let Some(client) = self.connected.remove(&number) {
            self.ledger.unwatch(&client.socket);
        }
    }
}

impl Client {
    /// Answers. A client that does not read its answers gets no more of them.
    fn answer(&self, answer: &Answer) {
        let _ = send(self.socket.as_fd(), answer, &[], SendFlags::DONTWAIT);
    }
}

impl Ledger {
    /// Answers a request that waits for nothing.
    fn answer_at_once(&self, client: &Client, request: &Request) -> Answer {
        match request {
            Request::Hello { .. } => {
                client.has_greeted.store(true, Relaxed);
                Answer::Hello { version: VERSION, program: env!("CARGO_PKG_VERSION").to_owned() }
            }
            Request::List { after } => self.list(*after),
            Request::Mount { .. } | Request::Unmount { .. } => too_many(),
        }
    }

    /// The mounts after the one with a number, as many as fit into a message.
    fn list(&self, after: u64) -> Answer {
        let state = self.state.lock();
        let (mut mounts, mut has_more, mut bytes) = (Vec::new(), false, 0);
        for (number, kept) in state.mounts.range(after.saturating_add(1)..) {
            let process = state.domains.get(&kept.domain).map_or(0, |domain| domain.process.id);
            let shown = kept.shown(*number, process);
            bytes += shown.to_bytes().len();
            // The rest is for the message around the list.
            if bytes > MESSAGE_BYTES_MAX - 64 {
                has_more = true;
                break;
            }
            mounts.push(shown);
        }
        Answer::Listed { mounts, has_more }
    }

    /// Answers a request that may wait.
    fn answer(self: &Arc<Self>, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
        match request {
            Request::Mount { mount } => match self.mount(mount, descriptors) {
                Ok((mount, remarks)) => Answer::Mounted { mount, remarks },
                Err((kind, message)) => Answer::Refused { kind, message },
            },
            Request::Unmount { device, is_lazy } => self.unmount_for_client(device, is_lazy),
            Request::Hello { .. } | Request::List { .. } => too_many(),
        }
    }

    fn unmount_for_client(&self, device: [u32; 2], is_lazy: bool) -> Answer {
        let number = {
            let state = self.state.lock();
            state.mounts.iter().find(|(_, kept)| kept.has_device(device)).map(|(number, _)| *number)
        };
        let refused = |kind, message| Answer::Refused { kind, message };
        let Some(number) = number else {
            return refused(RefusalKind::UnknownMount, "the service has no such mount".to_owned());
        };
        match self.unmount(number, if is_lazy { Detach::Lazily } else { Detach::Never }) {
            Ok(is_released) => Answer::Unmounted { is_released },
            Err(UnmountError { path, reason: UnmountReason::Busy }) => {
                use floe_image::ShownName;
                refused(RefusalKind::Busy, format!("{} is in use {}", path.shown(), MountUsers::of(&path)))
            }
            Err(error) => refused(RefusalKind::Failed, error.to_string()),
        }
    }
}

fn too_many() -> Answer {
    Answer::Refused {
        kind: RefusalKind::Failed,
        message: "the service has too many requests in progress: try again".to_owned(),
    }
}
