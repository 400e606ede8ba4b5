//! A process that fetches several images, for several processes.
//!
//! One epoll watches all connections. A thread that has taken an event serves it, and another one listens meanwhile, so that idle
//! images cost no threads.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_image::start_error;
use floe_sync::{Condvar, Mutex};
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
    io::retry_on_intr,
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, socketpair,
        sockopt::{Timeout, set_socket_timeout},
    },
};

use super::{
    message::{
        Failure, LANE_COUNT, MESSAGE_BYTES_MAX, Order, Question, Report, Wanted, receive, receive_with, send, send_with,
    },
    server::{STACK_BYTES, answer},
};
use crate::{Network, RemoteImage, RemoteOptions};

/// The maximum number of threads that serve connections. As many reads can wait for servers.
const THREADS_MAX: usize = 1024;

/// A thread that has listened beside another one for this time ends.
const IDLE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// How long a client may take for the rest of a message that it has begun, and to take an answer.
const RECEIVE_TIME_MAX: Duration = Duration::from_secs(5);
const SEND_TIME_MAX: Duration = Duration::from_secs(30);

/// A larger buffer is not kept between questions, in bytes.
const KEPT_BUFFER_BYTES_MAX: usize = 256 << 10;

/// Serves the images that the process at the other end of `orders` asks for, each to the process at the other end of the connection
/// that comes with the question. Returns once that process has ended and all images are closed. `notice` receives messages for
/// users.
///
/// # Errors
/// No thread can be started, or the process violates the protocol.
pub fn serve_several(orders: OwnedFd, notice: fn(&str)) -> io::Result<()> {
    let fetcher = Arc::new(Fetcher {
        notice,
        epoll: epoll::create(CreateFlags::CLOEXEC)?,
        state: Mutex::new(State { threads: 1, ..State::default() }),
        closed: Condvar::new(),
    });
    fetcher.start_thread()?;
    loop {
        let (bytes, descriptors) = receive_with(&orders, MESSAGE_BYTES_MAX)?;
        if bytes.is_empty() {
            break;
        }
        let wanted: Wanted = serde_json::from_slice(&bytes)?;
        let [connection] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidData)?;
        fetcher.open_later(wanted, connection);
    }
    let is_used = |state: &mut State| state.opening_count > 0 || !state.images.is_empty();
    drop(fetcher.closed.wait_while(fetcher.state.lock(), is_used));
    Ok(())
}

struct Fetcher {
    notice: fn(&str),
    epoll: OwnedFd,
    state: Mutex<State>,
    /// Notified when an image is closed.
    closed: Condvar,
}

#[derive(Default)]
struct State {
    connections: HashMap<u64, Arc<Connection>>,
    images: HashMap<Arc<str>, Opened>,
    networks: Vec<(RemoteOptions, Network)>,
    last_number: u64,
    /// The number of images that are being opened.
    opening_count: usize,
    threads: usize,
    /// The number of threads that listen.
    listening: usize,
}

/// An image, which may have several clients.
struct Opened {
    image: Arc<RemoteImage>,
    client_count: usize,
}

/// A connection to a client.
struct Connection {
    file: File,
    image: Arc<RemoteImage>,
    role: Role,
}

enum Role {
    /// The control socket of an image with this key.
    Control {
        key: Arc<str>,
        lane_count: AtomicUsize,
    },
    Lane,
}

impl Fetcher {
    /// Opens an image on a thread of its own, and tells the client.
    fn open_later(self: &Arc<Self>, wanted: Wanted, connection: OwnedFd) {
        let fetcher = Arc::clone(self);
        self.state.lock().opening_count += 1;
        let work = move || {
            fetcher.open(&wanted, connection);
            fetcher.state.lock().opening_count -= 1;
            fetcher.closed.notify_all();
        };
        let thread = thread::Builder::new().name("floe-open".to_owned()).stack_size(STACK_BYTES).spawn(work);
        if thread.is_err() {
            // The client learns it from the end of the connection.
            self.state.lock().opening_count -= 1;
        }
    }

    fn open(&self, wanted: &Wanted, connection: OwnedFd) {
        let file = File::from(connection);
        let opened = limit_waits(&file).and_then(|()| Ok((file.try_clone()?, self.image(wanted)?)));
        let (answers, (key, image)) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The client may have ended.
                let _ = send(&file, &Report::Failed(Failure::of(&error)));
                return;
            }
        };
        let about = image.about().clone();
        let role = Role::Control { key: Arc::clone(&key), lane_count: AtomicUsize::new(0) };
        match self.add(Connection { file, image, role }) {
            // The end of the client is an event of its own.
            Ok(()) => drop(send(&answers, &Report::Opened(about))),
            Err(_) => self.leave(&key),
        }
    }

    /// The image, which is opened unless it is open, with one client more.
    fn image(&self, wanted: &Wanted) -> io::Result<(Arc<str>, Arc<RemoteImage>)> {
        let key: Arc<str> = serde_json::to_string(wanted)?.into();
        let join = |opened: &mut Opened| {
            opened.client_count += 1;
            (Arc::clone(&key), Arc::clone(&opened.image))
        };
        if let Some(opened) = self.state.lock().images.get_mut(&key) {
            return Ok(join(opened));
        }
        let network = self.network(&wanted.options.remote)?;
        let image = RemoteImage::open_over(network, &wanted.location, &wanted.options, self.notice)?;
        let opened = || Opened { image: Arc::new(image), client_count: 0 };
        Ok(join(self.state.lock().images.entry(Arc::clone(&key)).or_insert_with(opened)))
    }

    fn network(&self, options: &RemoteOptions) -> io::Result<Network> {
        let mut state = self.state.lock();
        if let Some((_, network)) = state.networks.iter().find(|(others, _)| others == options) {
            return Ok(network.sibling());
        }
        let network = Network::new(options.clone())?;
        let sibling = network.sibling();
        state.networks.push((options.clone(), network));
        Ok(sibling)
    }

    /// Watches a connection.
    fn add(&self, connection: Connection) -> io::Result<()> {
        let connection = Arc::new(connection);
        let number = {
            let mut state = self.state.lock();
            state.last_number += 1;
            let number = state.last_number;
            state.connections.insert(number, Arc::clone(&connection));
            number
        };
        let added = epoll::add(&self.epoll, &connection.file, EventData::new_u64(number), EVENTS);
        Ok(added.inspect_err(|_| drop(self.state.lock().connections.remove(&number)))?)
    }

    /// Removes a connection.
    fn remove(&self, number: u64) {
        let Some(connection) = self.state.lock().connections.remove(&number) else { return };
        let _ = epoll::delete(&self.epoll, &connection.file);
        if let Role::Control { key, .. } = &connection.role {
            self.leave(key);
        }
    }

    /// Closes an image if this was its last client. Reads that wait fail then.
    fn leave(&self, key: &Arc<str>) {
        let closed = {
            let mut state = self.state.lock();
            let Some(opened) = state.images.get_mut(key) else { return };
            opened.client_count -= 1;
            if opened.client_count > 0 {
                return;
            }
            let closed = state.images.remove(key);
            if state.images.is_empty() {
                // Their threads end with the last image.
                state.networks.clear();
            }
            closed
        };
        if let Some(Opened { image, .. }) = closed {
            image.close();
        }
        self.closed.notify_all();
    }

    /// Starts a thread that serves connections, which has been counted.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let fetcher = Arc::clone(self);
        let thread = thread::Builder::new().name("floe-lanes".to_owned()).stack_size(STACK_BYTES);
        let started = thread.spawn(move || fetcher.work());
        started.map(drop).map_err(|error| {
            self.state.lock().threads -= 1;
            start_error(error)
        })
    }

    fn work(self: &Arc<Self>) {
        let mut buffer = Vec::new();
        loop {
            self.state.lock().listening += 1;
            let number = self.next_event();
            let mut state = self.state.lock();
            state.listening -= 1;
            let Some(number) = number else {
                if state.listening > 0 {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            let connection = state.connections.get(&number).cloned();
            let needs_another = state.listening == 0 && state.threads < THREADS_MAX;
            state.threads += usize::from(needs_another);
            drop(state);
            if needs_another {
                // Without it, the other connections wait.
                let _ = self.start_thread();
            }
            let Some(connection) = connection else { continue };
            let served = self.serve(&connection, &mut buffer);
            let again = || epoll::modify(&self.epoll, &connection.file, EventData::new_u64(number), EVENTS);
            if !served.unwrap_or(false) || again().is_err() {
                self.remove(number);
            }
            if buffer.capacity() > KEPT_BUFFER_BYTES_MAX {
                buffer = Vec::new();
            }
        }
    }

    /// The number of a connection with a message; `None` after a time without one.
    fn next_event(&self) -> Option<u64> {
        let mut events = Vec::with_capacity(1);
        let waited = retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&IDLE)));
        waited.ok()?;
        events.first().map(|event| event.data.u64())
    }

    /// Serves one message. Returns whether the connection goes on.
    fn serve(&self, connection: &Connection, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let Connection { file, image, role } = connection;
        let Role::Control { lane_count, .. } = role else {
            return match Question::receive(file)? {
                Some(question) => answer(question, file, image, buffer).map(|()| true),
                None => Ok(false),
            };
        };
        match receive(file)? {
            Some(Order::Counts) => send(file, &Report::Counts(image.counts()))?,
            Some(Order::Lane) if lane_count.fetch_add(1, Relaxed) < LANE_COUNT => {
                let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
                let lane = File::from(ours);
                limit_waits(&lane)?;
                self.add(Connection { file: lane, image: Arc::clone(image), role: Role::Lane })?;
                send_with(file, b"L", &[theirs.as_fd()], SendFlags::empty())?;
            }
            Some(Order::Open { .. } | Order::Lane) | None => return Ok(false),
        }
        Ok(true)
    }
}

/// The events of a connection that are awaited: one, until it is served.
const EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ONESHOT);

/// A client must not stop a thread for long.
fn limit_waits(file: &File) -> io::Result<()> {
    set_socket_timeout(file, Timeout::Recv, Some(RECEIVE_TIME_MAX))?;
    Ok(set_socket_timeout(file, Timeout::Send, Some(SEND_TIME_MAX))?)
}
