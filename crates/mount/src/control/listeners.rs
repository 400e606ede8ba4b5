//! The thread that answers questions about the mounts of this process.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_image::start_error;
use floe_sync::Mutex;
use rustix::{
    buffer::spare_capacity,
    event::{
        PollFd, PollFlags,
        epoll::{self, CreateFlags, EventData, EventFlags},
        poll,
    },
    io::{Errno, retry_on_intr},
};

use super::server::{Rights, Server, Service, UnnamedSocket, converse};

/// The maximum number of questions that have a thread.
const QUESTIONS_MAX: usize = 8;

/// The number of waiting clients that one system call reports.
const ARRIVALS_MAX: usize = 16;

/// The pause after a connection could not be accepted, usually because no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listening sockets of the mounts of this process. One thread answers on all of them.
#[derive(Clone)]
pub(crate) struct Listeners(Arc<Shared>);

struct Shared {
    open: Mutex<HashMap<u64, Arc<Listener>>>,
    /// The sockets of all mounts; `None` if there is only one.
    arrivals: Option<OwnedFd>,
    /// The number of questions that have a thread.
    questions: AtomicUsize,
}

struct Listener {
    socket: UnixListener,
    service: Arc<dyn Service>,
}

impl Listeners {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started, or there are no descriptors left.
    pub(crate) fn start() -> io::Result<Self> {
        let arrivals = epoll::create(CreateFlags::CLOEXEC)?;
        Self::start_with(Shared { open: Mutex::default(), arrivals: Some(arrivals), questions: AtomicUsize::new(0) })
    }

    fn start_with(shared: Shared) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let served = Arc::clone(&shared);
        thread::Builder::new().name("floe-control".to_owned()).spawn(move || served.serve()).map_err(start_error)?;
        Ok(Self(shared))
    }

    /// Names the socket of a mount, the only one of this process, after its device number, and starts the thread that answers there.
    ///
    /// # Errors
    /// The socket cannot be renamed, or no thread can be started.
    pub(crate) fn serve_alone(
        socket: UnnamedSocket,
        device: (u32, u32),
        service: Arc<dyn Service>,
    ) -> io::Result<Server> {
        let (server, socket) = socket.named(device)?;
        // There may be no descriptors left.
        let open = Mutex::new(HashMap::from([(0, Arc::new(Listener { socket, service }))]));
        Self::start_with(Shared { open, arrivals: None, questions: AtomicUsize::new(0) })?;
        Ok(server)
    }

    /// Answers on a socket from now on, for the mount with this number.
    ///
    /// # Errors
    /// The socket cannot be changed.
    pub(crate) fn add(&self, number: u64, socket: UnixListener, service: Arc<dyn Service>) -> io::Result<()> {
        // Another process that holds the socket may be first.
        socket.set_nonblocking(true)?;
        let listener = Arc::new(Listener { socket, service });
        self.0.open.lock().insert(number, Arc::clone(&listener));
        if let Some(arrivals) = &self.0.arrivals {
            epoll::add(arrivals, &listener.socket, EventData::new_u64(number), EventFlags::IN)?;
        }
        Ok(())
    }

    /// Answers a question about the mount with this number, on a thread of its own. At the other end of the connection is a client
    /// who may ask everything.
    pub(crate) fn converse(&self, number: u64, connection: UnixStream) {
        // Without an answer, the client asks again.
        let Some(listener) = self.0.listener(number) else { return };
        if self.0.questions.fetch_add(1, Relaxed) >= QUESTIONS_MAX {
            self.0.questions.fetch_sub(1, Relaxed);
            return;
        }
        let shared = Arc::clone(&self.0);
        let work = move || {
            let _ = converse(connection, &listener.service, Rights::All);
            shared.questions.fetch_sub(1, Relaxed);
        };
        if thread::Builder::new().name("floe-question".to_owned()).spawn(work).is_err() {
            self.0.questions.fetch_sub(1, Relaxed);
        }
    }

    /// Closes the socket of a mount, and forgets the mount.
    pub(crate) fn remove(&self, number: u64) {
        let Some(listener) = self.0.open.lock().remove(&number) else { return };
        if let Some(arrivals) = &self.0.arrivals {
            // The broker has the socket, too, so closing it here would not end this.
            let _ = epoll::delete(arrivals, &listener.socket);
        }
    }
}

impl Shared {
    fn listener(&self, number: u64) -> Option<Arc<Listener>> {
        self.open.lock().get(&number).map(Arc::clone)
    }

    fn serve(&self) {
        loop {
            match self.wait() {
                Ok(numbers) => numbers.into_iter().filter_map(|number| self.listener(number)).for_each(Self::answer),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Waits for clients. Returns the numbers of the mounts that they ask about.
    fn wait(&self) -> Result<Vec<u64>, Errno> {
        match &self.arrivals {
            Some(arrivals) => {
                let mut events = Vec::with_capacity(ARRIVALS_MAX);
                retry_on_intr(|| epoll::wait(arrivals, spare_capacity(&mut events), None))?;
                Ok(events.iter().map(|event: &epoll::Event| event.data.u64()).collect())
            }
            None => {
                let open: Vec<(u64, Arc<Listener>)> =
                    self.open.lock().iter().map(|(number, listener)| (*number, Arc::clone(listener))).collect();
                let sockets = open.iter().map(|(_, listener)| PollFd::new(&listener.socket, PollFlags::IN));
                retry_on_intr(|| poll(&mut sockets.clone().collect::<Vec<_>>(), None))?;
                Ok(open.iter().map(|(number, _)| *number).collect())
            }
        }
    }

    fn answer(listener: Arc<Listener>) {
        match listener.socket.accept() {
            // A client that disconnects or sends nonsense does not affect other clients.
            Ok((connection, _)) => drop(converse(connection, &listener.service, Rights::OfUser)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}
