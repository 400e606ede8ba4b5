//! The clients of the service.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use floe_image::ShownName;
use floe_ipc::{
    Encoded, MESSAGE_BYTES_MAX,
    protocol::{Answer, RefusalKind, Request, VERSION},
    receive, send,
};
use floe_keeper::{Detach, UnmountError, UnmountReason, is_administrator};
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, accept_with, recv, shutdown, sockopt::socket_peercred};

use super::{
    ledger::{Ledger, Watched},
    requests::Requests,
    succession::PassedClient,
    users::{Caller, Owner},
};
use crate::MountUsers;

/// The maximum number of connections. Above it, the oldest one without a request in progress is closed.
const CLIENTS_MAX: usize = 256;

/// The maximum number of those of one other user. Above it, the oldest one of that user is closed.
const OF_USER_MAX: usize = 16;

/// The clients of a broker.
pub(super) struct Clients {
    ledger: Arc<Ledger>,
    /// By their numbers, so the oldest one is first.
    connected: BTreeMap<u64, Arc<Client>>,
    requests: Arc<Requests>,
    /// Those whose requests wait for the end of an upgrade.
    held: Vec<u64>,
}

/// A connection to a client.
pub(super) struct Client {
    socket: OwnedFd,
    /// Who it is, or why it is refused.
    caller: Result<Caller, String>,
    has_greeted: AtomicBool,
    /// Whether a request is in progress.
    is_served: AtomicBool,
    /// Whether the client is to be disconnected.
    is_over: AtomicBool,
}

/// A request with the descriptors beside it.
type Received = (Request, Vec<OwnedFd>);

impl Clients {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, connected: BTreeMap::new(), requests: Arc::default(), held: Vec::new() }
    }

    /// The number of requests in progress.
    pub(super) fn requests_in_progress(&self) -> usize {
        self.requests.in_progress()
    }

    /// The clients for the next program of this process, for which `asking` has asked. `pass` gets their descriptors.
    ///
    /// # Errors
    /// Those of `pass`.
    pub(super) fn pass(
        &self,
        asking: u64,
        pass: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<RawFd>,
    ) -> io::Result<Vec<PassedClient>> {
        let passed = self.connected.iter().map(|(number, client)| {
            let (has_greeted, has_asked) = (client.has_greeted.load(Relaxed), *number == asking);
            Ok(PassedClient { socket: pass(client.socket.as_fd())?, has_greeted, has_asked })
        });
        passed.collect()
    }

    /// Takes a client of an earlier program of this process.
    pub(super) fn take_passed(&mut self, socket: OwnedFd, has_greeted: bool) -> Option<Arc<Client>> {
        let caller = Caller::of(socket.as_fd(), self.ledger.users.as_ref());
        let (is_served, is_over) = Default::default();
        let client = Arc::new(Client { socket, caller, has_greeted: has_greeted.into(), is_served, is_over });
        let number = self.ledger.next_number();
        self.ledger.watch_once(&client.socket, Watched::Client(number)).ok()?;
        self.connected.insert(number, Arc::clone(&client));
        Some(client)
    }

    /// Takes the requests that have waited for the end of an upgrade.
    pub(super) fn take_held(&mut self) {
        if self.ledger.upgrade.is_holding() {
            return;
        }
        for number in std::mem::take(&mut self.held) {
            if let Some(client) = self.connected.get(&number).cloned() {
                self.watch_again(number, &client);
            }
        }
    }

    /// Accepts a client. One that is refused is told so once it has sent its first request: a socket that is closed with unread data
    /// loses what was sent.
    pub(super) fn accept(&mut self, listener: BorrowedFd<'_>) {
        let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) else { return };
        let caller = Caller::of(socket.as_fd(), self.ledger.users.as_ref());
        let account = caller.as_ref().ok().and_then(|caller| caller.owner.account());
        let (has_greeted, is_served, is_over) = Default::default();
        let client = Client { socket, caller, has_greeted, is_served, is_over };
        let is_idle = |client: &Client| !client.is_served.load(Relaxed);
        let of_same = |client: &Client| account.is_some() && client.account() == account;
        let too_many_of_same = self.connected.values().filter(|client| of_same(client)).count() >= OF_USER_MAX;
        if too_many_of_same || self.connected.len() >= CLIENTS_MAX {
            let is_spare = |client: &Client| match (too_many_of_same, account) {
                (true, _) => of_same(client),
                // A user takes the place of another one, but not that of the service's own user.
                (false, Some(_)) => client.account().is_some() || client.caller.is_err(),
                (false, None) => true,
            };
            let spare = self.connected.iter().find(|(_, client)| is_idle(client) && is_spare(client));
            match spare.map(|(number, _)| *number) {
                Some(number) => self.disconnect(number),
                None => return client.answer(&too_many(), None),
            }
        }
        let number = self.ledger.next_number();
        if self.ledger.watch_once(&client.socket, Watched::Client(number)).is_ok() {
            self.connected.insert(number, Arc::new(client));
        }
    }

    /// Takes the next request of a client. Requests that may wait get a thread, and all those of other users do: even closing a
    /// descriptor that such a client has sent may take as long as it likes.
    pub(super) fn serve(&mut self, number: u64) {
        let Some(client) = self.connected.get(&number).cloned() else { return };
        if client.is_over.load(Relaxed) {
            return self.disconnect(number);
        }
        if self.ledger.upgrade.is_holding() {
            return self.held.push(number);
        }
        let owner = match &client.caller {
            Ok(caller) => caller.owner,
            Err(message) => {
                client.discard();
                client.answer(&Answer::Refused { kind: RefusalKind::NotOffered, message: message.clone() }, None);
                return self.disconnect(number);
            }
        };
        let mut received = None;
        if owner == Owner::Service {
            let (request, descriptors) = match receive(&client.socket, RecvFlags::DONTWAIT) {
                Ok(Some(received)) => received,
                Ok(None) | Err(_) => return self.disconnect(number),
            };
            let is_slow = matches!(
                request,
                Request::Mount { .. } | Request::Unmount { .. } | Request::Control { .. } | Request::Upgrade
            );
            received = Some((request, descriptors));
            if !is_slow {
                let is_over = !client.serve(number, &self.ledger, received);
                return if is_over { self.disconnect(number) } else { self.watch_again(number, &client) };
            }
        }
        if !self.requests.begin(owner) {
            if received.is_none() {
                client.discard();
            }
            client.answer(&too_many(), None);
            return self.watch_again(number, &client);
        }
        client.is_served.store(true, Relaxed);
        let (ledger, requests, served) = (Arc::clone(&self.ledger), Arc::clone(&self.requests), Arc::clone(&client));
        let work = move || {
            if !served.serve(number, &ledger, received) {
                served.is_over.store(true, Relaxed);
                // The broker's thread disconnects it.
                let _ = shutdown(&served.socket, Shutdown::Both);
            }
            requests.end(owner);
            served.is_served.store(false, Relaxed);
            let _ = ledger.watch_again(&served.socket, Watched::Client(number));
        };
        if thread::Builder::new().name("floe-request".to_owned()).spawn(work).is_err() {
            self.requests.end(owner);
            client.is_served.store(false, Relaxed);
            client.answer(&too_many(), None);
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
    /// Serves one request: this one, or the next one that arrives. Returns whether the connection goes on.
    fn serve(&self, number: u64, ledger: &Arc<Ledger>, received: Option<Received>) -> bool {
        let Ok(caller) = &self.caller else { return false };
        let received =
            received.map_or_else(|| receive(&self.socket, RecvFlags::DONTWAIT), |received| Ok(Some(received)));
        let (request, descriptors) = match received {
            Ok(Some(received)) => received,
            Ok(None) | Err(_) => return false,
        };
        if let Request::Hello { .. } = request {
            self.has_greeted.store(true, Relaxed);
        } else if !self.has_greeted.load(Relaxed) {
            self.answer(&Answer::Refused { kind: RefusalKind::Usage, message: "greet first".to_owned() }, None);
            return false;
        }
        if matches!(request, Request::Upgrade) && self.may_replace_program(caller) {
            // If it succeeds, the next program answers.
            let (kind, message) = ledger.upgrade(number, descriptors);
            self.answer(&Answer::Refused { kind, message }, None);
            return true;
        }
        let (answer, descriptor) = ledger.answer(caller, request, descriptors);
        self.answer(&answer, descriptor);
        true
    }

    /// Whether the client may have this process execute a program: a process of its user, which has this one's rights. Root of a
    /// container has less.
    fn may_replace_program(&self, caller: &Caller) -> bool {
        let is_as_powerful = || {
            let process =
                socket_peercred(&self.socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get().unsigned_abs());
            !is_administrator(std::process::id()) || is_administrator(process)
        };
        caller.owner == Owner::Service && is_as_powerful()
    }

    /// Reads a message without the descriptors beside it.
    fn discard(&self) {
        // The client may have ended.
        let _ = recv(&self.socket, &mut [0_u8; 1][..], RecvFlags::DONTWAIT);
    }

    /// The account of another user.
    fn account(&self) -> Option<u32> {
        self.caller.as_ref().ok()?.owner.account()
    }

    /// Answers. A client that does not read its answers gets no more of them.
    pub(super) fn answer(&self, answer: &Answer, descriptor: Option<OwnedFd>) {
        let descriptor = descriptor.as_ref().map(AsFd::as_fd);
        let _ = send(self.socket.as_fd(), answer, descriptor.as_slice(), SendFlags::DONTWAIT);
    }
}

impl Ledger {
    /// Answers a request. A descriptor may belong to the answer.
    fn answer(
        self: &Arc<Self>,
        caller: &Caller,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> (Answer, Option<OwnedFd>) {
        let answer = match request {
            Request::Hello { .. } => Answer::Hello { version: VERSION, program: env!("CARGO_PKG_VERSION").to_owned() },
            Request::Offer => Answer::Offered { offer: caller.offer(self.users.as_ref()) },
            Request::List { after } => self.list(caller.owner, after),
            Request::Mount { mount } => match self.mount(caller, mount, descriptors) {
                Ok((mount, remarks)) => {
                    // Only a front that the client attaches is there still.
                    let detached = self.take_detached(mount.number);
                    return (Answer::Mounted { mount, remarks }, detached.map(OwnedFd::from));
                }
                Err((kind, message)) => Answer::Refused { kind, message },
            },
            Request::Unmount { device, is_lazy } => {
                self.unmount_for_client(caller, device, if is_lazy { Detach::Lazily } else { Detach::Never })
            }
            Request::Control { device } => match self.control_for_client(caller.owner, device) {
                Ok(connection) => return (Answer::Connected, Some(connection)),
                Err((kind, message)) => Answer::Refused { kind, message },
            },
            Request::Upgrade => Answer::Refused {
                kind: RefusalKind::NotOffered,
                message: "only the user who runs the service, with all rights of the service, may replace its program"
                    .to_owned(),
            },
        };
        (answer, None)
    }

    /// The mounts that a client may see, after the one with a number, as many as fit into a message.
    fn list(&self, owner: Owner, after: u64) -> Answer {
        let state = self.state.lock();
        let (mut mounts, mut has_more, mut bytes) = (Vec::new(), false, 0);
        for (number, kept) in state.mounts.range(after.saturating_add(1)..) {
            if !owner.may_change(kept.owner) {
                continue;
            }
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

    fn unmount_for_client(&self, caller: &Caller, device: [u32; 2], detach: Detach) -> Answer {
        let refused = |kind, message| Answer::Refused { kind, message };
        let Some(number) = self.number_of(caller.owner, device) else {
            return refused(RefusalKind::UnknownMount, "the service has no such mount of this user".to_owned());
        };
        let unmounted = match caller.namespaces() {
            Ok(None) => self.unmount(number, detach),
            Ok(Some((peer, namespaces))) if namespaces.admit_mounts() => {
                self.unmount_by(number, detach, |place| place.unmount_for(peer, &namespaces, detach))
            }
            Ok(Some(_)) => {
                let message = "the mount is in a mount namespace of this user, who unmounts it there: umount DIR";
                return refused(RefusalKind::UnknownMount, message.to_owned());
            }
            Err((kind, message)) => return refused(kind, message),
        };
        match unmounted {
            Ok(is_released) => Answer::Unmounted { is_released },
            Err(UnmountError { path, reason: UnmountReason::Busy }) => match caller.owner {
                Owner::Service => {
                    refused(RefusalKind::Busy, format!("{} is in use {}", path.shown(), MountUsers::of(&path)))
                }
                // The client sees its own processes.
                Owner::User(_) => refused(RefusalKind::Busy, format!("{} is in use", path.shown())),
            },
            Err(error) => refused(RefusalKind::Failed, error.to_string()),
        }
    }

    /// The number of the mount whose files have a device number, if `owner` may change it.
    pub(super) fn number_of(&self, owner: Owner, device: [u32; 2]) -> Option<u64> {
        let state = self.state.lock();
        let mut mounts = state.mounts.iter().filter(|(_, kept)| owner.may_change(kept.owner));
        mounts.find(|(_, kept)| kept.has_device(device)).map(|(number, _)| *number)
    }
}

fn too_many() -> Answer {
    Answer::Refused {
        kind: RefusalKind::Failed,
        message: "the service has too many requests in progress: try again".to_owned(),
    }
}
