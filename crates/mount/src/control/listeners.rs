//! The thread that answers questions about the mounts of this process.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
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
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::{read, retry_on_intr, write},
};

use super::server::{Rights, Server, Service, UnnamedSocket, converse};

/// The maximum number of questions that have a thread.
const QUESTIONS_MAX: usize = 8;

/// The pause after a connection could not be accepted, usually because no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listening sockets of the mounts of this process. One thread answers on all of them.
#[derive(Clone)]
pub(crate) struct Listeners(Arc<Shared>);

struct Shared {
    open: Mutex<Vec<(u64, Arc<Listener>)>>,
    /// Readable when the list has changed; `None` if it never does.
    changed: Option<OwnedFd>,
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
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Self::start_with(Shared { open: Mutex::default(), changed: Some(changed), questions: AtomicUsize::new(0) })
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
        let open = Mutex::new(vec![(0, Arc::new(Listener { socket, service }))]);
        Self::start_with(Shared { open, changed: None, questions: AtomicUsize::new(0) })?;
        Ok(server)
    }

    /// Answers on a socket from now on, for the mount with this number.
    ///
    /// # Errors
    /// The socket cannot be changed.
    pub(crate) fn add(&self, number: u64, socket: UnixListener, service: Arc<dyn Service>) -> io::Result<()> {
        // Another process that holds the socket may be first.
        socket.set_nonblocking(true)?;
        self.0.open.lock().push((number, Arc::new(Listener { socket, service })));
        self.0.note_change();
        Ok(())
    }

    /// Answers a question about the mount with this number, on a thread of its own. At the other end of the connection is a client
    /// who may ask everything.
    pub(crate) fn converse(&self, number: u64, connection: UnixStream) {
        let listener = {
            let open = self.0.open.lock();
            let found = open.iter().find(|(other, _)| *other == number);
            found.map(|(_, listener)| Arc::clone(listener))
        };
        // Without an answer, the client asks again.
        let Some(listener) = listener else { return };
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
        self.0.open.lock().retain(|(other, _)| *other != number);
        self.0.note_change();
    }
}

impl Shared {
    fn note_change(&self) {
        if let Some(changed) = &self.changed {
            // If the counter is full, the thread has not read it, and will.
            let _ = write(changed, &1_u64.to_ne_bytes());
        }
    }

    fn serve(&self) {
        loop {
            let open: Vec<Arc<Listener>> = self.open.lock().iter().map(|(_, listener)| Arc::clone(listener)).collect();
            let sockets = open.iter().map(|listener| listener.socket.as_fd());
            let watched = sockets.chain(self.changed.as_ref().map(AsFd::as_fd));
            let mut watched: Vec<PollFd<'_>> =
                watched.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
            if retry_on_intr(|| poll(&mut watched, None)).is_err() {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
            let ready = watched.iter().map(|entry| !entry.revents().is_empty()).collect::<Vec<bool>>();
            if let (Some(changed), Some(true)) = (&self.changed, ready.get(open.len())) {
                let _ = read(changed, &mut [0; 8]);
            }
            for (listener, _) in open.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
                match listener.socket.accept() {
                    // A client that disconnects or sends nonsense does not affect other clients.
                    Ok((connection, _)) => drop(converse(connection, &listener.service, Rights::OfUser)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => thread::sleep(ACCEPT_PAUSE),
                }
            }
        }
    }
}
