//! The broker: mounts and unmounts, keeps the descriptors of all mounts, and starts domains.

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
};

use floe_image::start_error;
use floe_ipc::protocol::Answer;
use floe_keeper::RingPermission;
use floe_sync::Mutex;
use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

use super::{
    clients::{Client, Clients},
    domain_directory::DomainDirectory,
    ledger::{Ledger, Watched},
    settings::settings_of_service,
    socket::ServiceSocket,
    succession::{Continued, PassedClient, Succession},
    users::UserLimits,
};
use crate::{Remarks, control, failure::Failure};

/// The broker of the service: one thread that waits for clients, domains and mounts, and short-lived threads for what may wait.
pub struct Broker {
    ledger: Arc<Ledger>,
    socket: Arc<ServiceSocket>,
    /// Where other users connect.
    users_socket: Option<Arc<ServiceSocket>>,
    clients: Clients,
    stop: Arc<OwnedFd>,
    /// A message for each mount that could not be unmounted; `None` until all unmounts were attempted.
    left: Arc<Mutex<Option<Vec<String>>>>,
    /// Whether an earlier program of this process has left the service to this one.
    is_continued: bool,
    /// The client that has asked for this program.
    asking: Option<Arc<Client>>,
}

/// Ends a broker. Can be used from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Broker {
    /// A broker without mounts. With `users`, it serves other users, too, at a socket of theirs. `options` are those that all mounts
    /// share, in the notation of `-o`; messages go to `remarks`.
    ///
    /// # Errors
    /// An option is wrong, or there are no descriptors left.
    pub fn new(
        socket: ServiceSocket,
        users: Option<(ServiceSocket, UserLimits)>,
        options: &str,
        remarks: Remarks,
    ) -> Result<Self, Failure> {
        let (users_socket, limits) = users.map(|(socket, limits)| (Arc::new(socket), limits)).unzip();
        // Only here: each mount would look at the sockets of all others.
        control::remove_leftovers();
        RingPermission::restore();
        Self::with_sockets(socket, (users_socket, limits), options, remarks)
    }

    /// The broker of a service that an earlier program of this process has left to this one. `limits` are those of other users.
    ///
    /// # Errors
    /// As for [`Broker::new`], or something that it has left is missing.
    pub fn continued(
        continued: Continued,
        limits: Option<UserLimits>,
        options: &str,
        remarks: Remarks,
    ) -> Result<Self, Failure> {
        let Continued { mut succession, mut inherited } = continued;
        let failed = |error: io::Error| Failure::failed(format!("cannot continue the service: {error}"));
        let mut taken = |passed| ServiceSocket::passed(passed, &mut inherited).map_err(failed);
        let socket = taken(succession.socket.take().ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?)?;
        let users_socket = succession.users_socket.take().map(taken).transpose()?;
        let mut broker = Self::with_sockets(socket, (users_socket.map(Arc::new), limits), options, remarks)?;
        broker.ledger.continue_all(&mut succession, &mut inherited);
        for PassedClient { socket, has_greeted, has_asked } in std::mem::take(&mut succession.clients) {
            // Others are closed: they speak another version.
            let Ok(socket) = inherited.take(socket) else { continue };
            if !succession.has_same_clients() {
                continue;
            }
            let client = broker.clients.take_passed(socket, has_greeted);
            broker.asking = client.filter(|_| has_asked).or(broker.asking.take());
        }
        broker.is_continued = true;
        Ok(broker)
    }

    fn with_sockets(
        socket: ServiceSocket,
        (users_socket, limits): (Option<Arc<ServiceSocket>>, Option<UserLimits>),
        options: &str,
        remarks: Remarks,
    ) -> Result<Self, Failure> {
        let settings = settings_of_service(options)?;
        let (priority, cache) = (settings.open.engine.priority, settings.open.remote.cache_directory);
        let failed = |error: io::Error| Failure::failed(format!("cannot start the service: {error}"));
        let directory = socket.path().map(|path| DomainDirectory::open(&path));
        let (directory, obstacle) = match directory.transpose() {
            Ok(directory) => (directory, None),
            Err(error) => (None, Some(error)),
        };
        let ledger =
            Arc::new(Ledger::new(options.to_owned(), priority, directory, limits, cache, remarks).map_err(failed)?);
        if let Some(obstacle) = obstacle {
            ledger.remark(format_args!("this service and the next one will not know each other's mounts: {obstacle}"));
        }
        let no_events = |error: rustix::io::Errno| failed(error.into());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_events)?);
        ledger.watch(&*stop, Watched::Stop).map_err(no_events)?;
        ledger.watch(ledger.upgrade.event(), Watched::Upgrade).map_err(no_events)?;
        let socket = Arc::new(socket);
        Ok(Self {
            clients: Clients::new(Arc::clone(&ledger)),
            ledger,
            socket,
            users_socket,
            stop,
            left: Arc::default(),
            is_continued: false,
            asking: None,
        })
    }

    /// A handle that ends the broker.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Adopts the mounts of an earlier broker with the same socket, and serves clients until it is [stopped](Stopper::stop). Then it
    /// unmounts what is not in use. Returns a message for each mount that stays; the process of such a mount serves it until it is
    /// unmounted.
    ///
    /// # Errors
    /// The kernel reports no events.
    pub fn run(mut self) -> Result<Vec<String>, Failure> {
        let failed = |error| Failure::failed(format!("the service cannot wait for events: {error}"));
        self.begin_to_listen()?;
        loop {
            let events = self.ledger.wait();
            for watched in events.map_err(failed)? {
                match watched {
                    Watched::Listener => self.clients.accept(self.socket.as_fd()),
                    Watched::UsersListener => {
                        self.users_socket.iter().for_each(|socket| self.clients.accept(socket.as_fd()));
                    }
                    Watched::Client(number) => self.clients.serve(number),
                    Watched::Domain(number) => self.ledger.take_reports(number),
                    Watched::DomainEnd(number) => self.ledger.note_death(number),
                    Watched::Mount(number) => self.ledger.answer_keeper(number),
                    Watched::Upgrade => self.upgrade(),
                    Watched::Table => self.ledger.fronts.note_changes(),
                    Watched::Stop => {
                        if let Some(left) = self.left.lock().take() {
                            self.ledger.leave_mounts();
                            return Ok(left);
                        }
                        self.begin_to_stop();
                    }
                }
            }
        }
    }

    /// Listens for clients once all domains of an earlier broker are adopted, on another thread, while this one watches those that
    /// are.
    ///
    /// # Errors
    /// No thread can be started.
    fn begin_to_listen(&mut self) -> Result<(), Failure> {
        let (is_continued, asking) = (self.is_continued, self.asking.take());
        let activity = self.ledger.upgrade.activity();
        let (ledger, socket) = (Arc::clone(&self.ledger), Arc::clone(&self.socket));
        let users_socket = self.users_socket.clone();
        let work = move || {
            ledger.adopt_all();
            let watch_users = || users_socket.map_or(Ok(()), |socket| ledger.watch(&*socket, Watched::UsersListener));
            if let Err(error) = ledger.watch(&*socket, Watched::Listener).and_then(|()| watch_users()) {
                ledger.remark(format_args!("the service cannot listen: {error}"));
            }
            drop(activity);
            if is_continued && ledger.upgrade.begin() {
                let remarks = ledger.renew_domains();
                remarks.iter().for_each(|remark| ledger.remark(format_args!("{remark}")));
                ledger.upgrade.end();
                let answer = Answer::Upgraded { program: env!("CARGO_PKG_VERSION").to_owned(), remarks };
                asking.iter().for_each(|client| client.answer(&answer, None));
            }
        };
        let thread = thread::Builder::new().name("floe-adopt".to_owned()).spawn(work);
        thread.map(drop).map_err(|error| Failure::failed(format!("no thread can be started: {}", start_error(error))))
    }

    /// Replaces the program of this process, if one waits for that and nothing is in progress.
    fn upgrade(&mut self) {
        let Self { ledger, clients, socket, users_socket, .. } = self;
        ledger.try_to_execute(clients.requests_in_progress(), |asking, pass| {
            let users_socket = users_socket.as_ref().map(|socket| socket.pass(pass)).transpose()?;
            let sockets = (socket.pass(pass)?, users_socket);
            let clients = clients.pass(asking, pass)?;
            Succession::of(ledger, sockets, clients, pass)
        });
        self.clients.take_held();
    }

    /// Unmounts everything on another thread, while this one goes on.
    fn begin_to_stop(&self) {
        let mut count = [0; 8];
        let _ = read(&self.stop, &mut count);
        if self.ledger.is_stopping.swap(true, Relaxed) {
            return;
        }
        self.ledger.unwatch(&*self.socket);
        self.users_socket.iter().for_each(|socket| self.ledger.unwatch(&**socket));
        let (ledger, left, stopper) = (Arc::clone(&self.ledger), Arc::clone(&self.left), self.stopper());
        let work = move || {
            let stays = ledger.unmount_all();
            *left.lock() = Some(stays);
            stopper.stop();
        };
        if thread::Builder::new().name("floe-stop".to_owned()).spawn(work).is_err() {
            *self.left.lock() = Some(vec!["no thread can be started to unmount: the mounts stay".to_owned()]);
            self.stopper().stop();
        }
    }
}

impl Stopper {
    /// Makes [`Broker::run`] return.
    pub fn stop(&self) {
        // If the counter is full, the broker has not read it, and will.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Broker").finish_non_exhaustive()
    }
}
