//! Mounts: mounted images that are being served.

use std::{
    io,
    num::NonZero,
    os::fd::{AsFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use floe_engine::{Reader, Sink};
use floe_fuse_wire::{self as wire, Channel, Notifier};
use floe_image::ByteRange;

use crate::{
    Access, Detach, FrontImage, FrontRefusal, Keeper, MountError, MountOptions, Mountpoint, RequestCounts, Touch,
    Unmounter,
    connection::pending::ConnectionEnd,
    connection::rescue::Rescue,
    edge::FuseEdge,
    edge::front_pages::FrontPages,
    edge::kernel_pages::KernelPages,
    mounting::front::HiddenMount,
    mounting::front_readahead::{FrontReadahead, FrontReader},
    mounting::fusermount::AutoUnmount,
    mounting::mountpoint::{Connected, connect},
    mounting::read_ahead,
    requests::deadline::Deadlines,
};

/// The interval at which the watchdog refuses requests while all session threads are stuck.
const RESCUE_INTERVAL: Duration = Duration::from_millis(50);

/// The longest interval at which the watchdog checks that the mount still exists. Short deadlines shorten it.
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// How long session threads may take to end after the mount ended.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// How the service of a mount ended.
#[derive(Debug)]
pub enum Ended {
    /// The mount was unmounted.
    Unmounted,
    /// The mount was unmounted, but threads stuck in the source of the image did not end.
    Stuck,
    /// The connection to the kernel failed.
    Failed(io::Error),
}

/// A mounted image that is being served. Dropping it unmounts it, lazily if it is in use.
#[derive(Debug)]
pub struct Mount {
    unmounter: Unmounter,
    /// A mutex only to make the mount `Sync`. It is locked only by `wait`, which consumes the mount.
    ended: Mutex<Receiver<Ended>>,
    read_ahead: Option<io::Error>,
    counts: RequestCounts,
    _auto_unmount: Option<AutoUnmount>,
}

impl Mount {
    /// Mounts and starts to serve. The mount works when this returns.
    ///
    /// # Errors
    /// Mounting fails, or the root of the image cannot be read.
    pub fn new(reader: Reader, mountpoint: Mountpoint, options: &MountOptions) -> Result<Self, MountError> {
        let thread_count = NonZero::get(options.threads);
        let deadlines = Arc::new(Deadlines::new(options.deadline, thread_count));
        let checks_permissions = options.checks_permissions && matches!(mountpoint, Mountpoint::Directory(_));
        let edge =
            FuseEdge::new(reader, options, checks_permissions, Arc::clone(&deadlines)).map_err(MountError::Image)?;
        let (_, served, connection) = edge.parts();
        let counts = served.counts.clone();
        let (connected, directory) = match mountpoint {
            Mountpoint::Directory(directory) => {
                let connected = match &options.keeper {
                    Some(keeper) => keeper.connect(&directory)?,
                    None => connect(&directory, options)?,
                };
                (connected, Some(directory))
            }
            Mountpoint::Descriptor(device) => (Connected { device, auto_unmount: None }, None),
        };
        let Connected { device, auto_unmount } = connected;
        let unmounter = Unmounter::new(directory, Arc::downgrade(&connection), options.keeper.clone());
        let result = serve(edge, device, deadlines, options, &unmounter, |pages| Box::new(pages));
        if result.is_err() {
            let _ = unmounter.unmount(Detach::Lazily);
        }
        let ended = result?;
        let read_ahead = match (options.read_ahead_bytes, unmounter.device()) {
            (Some(bytes), Some(device)) => match &options.keeper {
                Some(keeper) => keeper.set_read_ahead().err(),
                None => read_ahead::set(device, bytes).err(),
            },
            (Some(_), None) => Some(io::ErrorKind::Unsupported.into()),
            (None, _) => None,
        };
        Ok(Self { unmounter, ended: Mutex::new(ended), read_ahead, counts, _auto_unmount: auto_unmount })
    }

    /// Mounts the kernel's EROFS on `directory`, in front of `image`, a file in the root of `reader`. The image is served over
    /// a hidden FUSE mount, which is attached to no directory and ends with the front.
    ///
    /// # Errors
    /// The file cannot be served, or the kernel cannot mount it ([`MountError::Front`]). Nothing stays mounted.
    pub fn in_front(
        reader: Reader,
        directory: PathBuf,
        options: &MountOptions,
        image: Arc<dyn FrontImage>,
    ) -> Result<Self, MountError> {
        let (noted_image, noted_reader, reads) = (Arc::clone(&image), reader.clone(), options.reads.clone());
        let touches = options.touches.clone();
        let keeper = options.keeper.as_ref();
        let serving = &MountOptions {
            access: Some(Access::All),
            checks_permissions: false,
            // The keeper waits for the session threads while it mounts the front, so they must not wait for the keeper.
            keeper: None,
            reads: Some(Arc::new(move |nid, offset, len| {
                if let Some(ranges) = noted_image.metadata_ahead(ByteRange::new(offset, len.into())) {
                    noted_reader.store_ahead(nid, ranges);
                }
                if let Some(reads) = &reads {
                    reads(nid, offset, len);
                }
                if let Some(touches) = &touches {
                    let parts = noted_image.originals_in(ByteRange::new(offset, len.into()));
                    parts.into_iter().for_each(|(nid, range)| touches(Touch::Read(nid, range)));
                }
            })),
            touches: None,
            ..options.clone()
        };
        let deadlines = Arc::new(Deadlines::new(options.deadline, NonZero::get(options.threads)));
        let edge = FuseEdge::new(reader, serving, false, Arc::clone(&deadlines)).map_err(MountError::Image)?;
        let (_, served, connection) = edge.parts();
        let counts = served.counts.clone();
        let (device, hidden) = match keeper {
            Some(keeper) => (keeper.hide()?, Hidden::Kept(keeper)),
            None => {
                let device = wire::open().map_err(MountError::Device)?;
                let hidden = HiddenMount::new(device.as_fd()).map_err(|error| refused(&error))?;
                (device, Hidden::Own(hidden))
            }
        };
        let unmounter = Unmounter::new(None, Arc::downgrade(&connection), keeper.cloned());
        let asking: Arc<OnceLock<FrontReadahead>> = Arc::default();
        let readahead = Arc::clone(&asking);
        let pages = move |hidden| -> Box<dyn Sink> { Box::new(FrontPages { hidden, image, readahead }) };
        let ended = serve(edge, device, deadlines, serving, &unmounter, pages)?;
        let readahead = match hidden {
            Hidden::Own(hidden) => {
                let readahead = hidden.put_front(&directory, options).map_err(|error| refused(&error))?;
                // The front works without readahead, so a thread that cannot be started is no error.
                readahead.and_then(|(asking, reader)| {
                    let mounted = Unmounter::new(Some(directory.clone()), Weak::new(), None);
                    spawn(FrontReader::THREAD.to_owned(), move || reader.run(&mounted)).ok().map(|()| asking)
                })
            }
            Hidden::Kept(keeper) => keeper.put_front()?,
        };
        if let Some(readahead) = readahead {
            let _ = asking.set(readahead);
        }
        let unmounter = unmounter.of(directory);
        let not_for_fronts = |_| io::Error::new(io::ErrorKind::Unsupported, "the kernel's EROFS in front decides");
        let read_ahead = options.read_ahead_bytes.map(not_for_fronts);
        Ok(Self { unmounter, ended: Mutex::new(ended), read_ahead, counts, _auto_unmount: None })
    }

    /// Why the kernel's readahead was not set as requested.
    pub fn read_ahead_refusal(&self) -> Option<&io::Error> {
        self.read_ahead.as_ref()
    }

    /// Returns the live counters of requests.
    pub fn request_counts(&self) -> RequestCounts {
        self.counts.clone()
    }

    /// Returns a handle that unmounts this mount from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Waits until the mount is unmounted.
    pub fn wait(self) -> Ended {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap_or(Ended::Stuck)
    }
}

/// The holder of the hidden mount behind a front: this process or the keeper.
enum Hidden<'options> {
    Own(HiddenMount),
    Kept(&'options Keeper),
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), MountError> {
    thread::Builder::new().name(name).spawn(work).map(drop).map_err(MountError::Threads)
}

fn refused(error: &io::Error) -> MountError {
    MountError::Front(FrontRefusal::new(error))
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.unmounter.is_mounted() && self.unmounter.unmount(Detach::Never).is_err() {
            let _ = self.unmounter.unmount(Detach::Lazily);
        }
    }
}

/// Negotiates with the kernel, and starts the session threads and the watchdog.
fn serve(
    mut edge: FuseEdge,
    device: OwnedFd,
    deadlines: Arc<Deadlines>,
    options: &MountOptions,
    unmounter: &Unmounter,
    page_cache: impl FnOnce(KernelPages) -> Box<dyn Sink>,
) -> Result<Receiver<Ended>, MountError> {
    let channel = Channel::new(device);
    edge.negotiate(&channel).map_err(MountError::Handshake)?;
    let (reader, served, pending) = edge.parts();
    let counts = served.counts.clone();
    let file_system = Arc::clone(reader.file_system());
    let pages = KernelPages { notifier: Notifier::new(channel.clone()), served, file_system };
    reader.set_page_cache(page_cache(pages));
    let rescue = channel.join_without_waiting().ok().map(Rescue::new);
    if let Ok(channel) = channel.join_without_waiting() {
        pending.look_at(channel);
    }
    let (ended, receiver) = mpsc::channel();
    let (session_ended, session_end) = mpsc::channel();
    let (watchdog_unmounter, watchdog_ended) = (unmounter.clone(), ended.clone());
    let work = move || {
        if watch(&deadlines, &counts, rescue, &session_end) == SessionEnd::Stuck {
            // An aborted connection leaves a dead mount, which must still be unmounted.
            if pending.connection_end() != Some(ConnectionEnd::Aborted) {
                watchdog_unmounter.note_end();
            }
            let _ = watchdog_ended.send(Ended::Stuck);
        }
    };
    spawn("floe-watch".to_owned(), work)?;
    let session = Arc::new(Session {
        edge,
        failure: Mutex::new(None),
        unmounter: unmounter.clone(),
        ended,
        _watched: session_ended,
    });
    for thread in 0..NonZero::get(options.threads) {
        let channel = match options.clone_fd {
            true => channel.join().map_err(MountError::Handshake)?,
            false => channel.clone(),
        };
        let session = Arc::clone(&session);
        spawn(format!("floe-fuse/{thread}"), move || session.serve(&channel, thread))?;
    }
    Ok(receiver)
}

/// The shared state of the session threads. The last thread drops it, which signals the end of the session.
struct Session {
    edge: FuseEdge,
    /// The error of the first thread that failed.
    failure: Mutex<Option<io::Error>>,
    unmounter: Unmounter,
    ended: Sender<Ended>,
    /// Dropping it notifies the watchdog.
    _watched: Sender<()>,
}

impl Session {
    fn serve(&self, channel: &Channel, thread: usize) {
        let served = catch_unwind(AssertUnwindSafe(|| self.edge.serve(channel, thread)));
        if let Err(error) = served.unwrap_or_else(|_| Err(io::Error::other("a session thread panicked"))) {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let failure = self.failure.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if failure.is_none() {
            self.unmounter.note_end();
        }
        // There may be no waiter any more.
        let _ = self.ended.send(failure.map_or(Ended::Unmounted, Ended::Failed));
    }
}

/// How a watched session ended.
#[derive(PartialEq, Eq)]
enum SessionEnd {
    /// All session threads ended.
    Ended,
    /// The kernel ended the connection, but session threads did not end.
    Stuck,
}

/// Enforces deadlines until the session ends, or is found stuck after the connection ended.
fn watch(
    deadlines: &Deadlines,
    counts: &RequestCounts,
    rescue: Option<Rescue>,
    session_end: &Receiver<()>,
) -> SessionEnd {
    let tick = deadlines.tick_interval();
    let mut since_tick = Duration::ZERO;
    let mut since_disconnected = Duration::ZERO;
    loop {
        let is_stuck = deadlines.all_threads_are_stuck();
        let calm = tick.unwrap_or(LOOK_INTERVAL_MAX).min(LOOK_INTERVAL_MAX);
        let interval = if is_stuck { calm.min(RESCUE_INTERVAL) } else { calm };
        if session_end.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
            return SessionEnd::Ended;
        }
        since_tick += interval;
        if tick.is_some_and(|tick| since_tick >= tick) {
            since_tick = Duration::ZERO;
            counts.note_overdue(deadlines.tick());
        }
        let Some(rescue) = &rescue else { continue };
        if rescue.is_disconnected() {
            since_disconnected += interval;
            if since_disconnected >= END_PATIENCE {
                return SessionEnd::Stuck;
            }
        } else if deadlines.all_threads_are_stuck() {
            rescue.refuse_pending();
        }
    }
}
