//! Mounts: mounted images that are being served.

pub(crate) mod handover;
mod session;
pub(crate) mod transport;

use std::{
    io,
    num::NonZero,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use floe_engine::{Reader, Sink};
use floe_fuse_wire::{Agreement, Channel, Notifier};
use floe_image::{ByteRange, start_error};

use crate::{
    Access, Detach, FrontImage, MountError, MountOptions, Mountpoint, RequestCounts, Touch, Unmounter,
    connection::pending::ConnectionEnd,
    connection::rescue::Rescue,
    edge::FuseEdge,
    edge::front_pages::FrontPages,
    edge::kernel_pages::KernelPages,
    mounting::front_transfer::FrontTransfer,
    mounting::fusermount::AutoUnmount,
    mounting::mountpoint::{Connected, connect},
    mounting::place::Place,
    mounting::read_ahead,
    requests::deadline::{Deadlines, Progress},
    session_pool::gate::Gate,
};

use self::{
    handover::{Handover, Inherited, PausedMount},
    session::{Session, SessionEnd, watch},
    transport::Transport,
};

/// How the service of a mount ended.
#[derive(Debug)]
pub enum Ended {
    /// The mount was unmounted.
    Unmounted,
    /// The mount was unmounted, but threads or requests stuck in the source of the image did not end.
    Stuck,
    /// Another process serves the mount now.
    HandedOver,
    /// The connection to the kernel failed. If a ring failed, other threads still serve, but the requests of that ring wait
    /// until this process exits.
    Failed(io::Error),
}

/// A mounted image that is being served. Dropping it unmounts it, lazily if it is in use.
#[derive(Debug)]
pub struct Mount {
    unmounter: Unmounter,
    /// A mutex only to make the mount `Sync`. It is locked only by `wait`, which consumes the mount.
    ended: Mutex<Receiver<Ended>>,
    sender: Sender<Ended>,
    read_ahead: Option<io::Error>,
    counts: RequestCounts,
    deadlines: Arc<Deadlines>,
    /// None for a front, over io_uring, and if another program mounts.
    handover: Option<Handover>,
    transport: Transport,
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
        let edge = FuseEdge::new(reader, options, checks_permissions, Arc::clone(&deadlines), false)
            .map_err(MountError::Image)?;
        let (_, served, connection) = edge.parts();
        let counts = served.counts.clone();
        if let Some(rings) = &options.rings {
            // Only a hidden mount gets a permission of its own.
            rings.permit(false);
        }
        let (connected, place) = match mountpoint {
            Mountpoint::Directory(directory) => {
                let (connected, place) = match &options.keeper {
                    Some(keeper) => keeper.connect(directory.path())?,
                    None => connect(&directory, options)?,
                };
                (connected, Some(place))
            }
            Mountpoint::Descriptor(device) => (Connected { device, auto_unmount: None }, None),
        };
        let Connected { device, auto_unmount } = connected;
        let is_on_directory = place.is_some();
        let unmounter = Unmounter::new(place, Arc::downgrade(&connection), options.keeper.clone());
        let result =
            serve(edge, Link::new(device), Arc::clone(&deadlines), options, &unmounter, |pages| Box::new(pages));
        if result.is_err() {
            let _ = unmounter.unmount(Detach::Lazily);
        }
        let mut session = result?;
        let is_kept = is_on_directory && !matches!(session.transport, Transport::Rings(_));
        let handover = is_kept.then(|| session.handover(auto_unmount, &unmounter));
        let read_ahead = match (options.read_ahead_bytes, unmounter.device()) {
            (Some(bytes), Some(device)) => match &options.keeper {
                Some(keeper) => keeper.set_read_ahead().err(),
                None => read_ahead::set(device, bytes).err(),
            },
            (Some(_), None) => Some(io::ErrorKind::Unsupported.into()),
            (None, _) => None,
        };
        let Running { ended, sender, transport, .. } = session;
        Ok(Self { unmounter, ended: Mutex::new(ended), sender, read_ahead, counts, deadlines, handover, transport })
    }

    /// Takes over a mount that another process has served, with the same image and the same options. The mount is served
    /// once [`PausedMount::serve`] is called; until then the other process may serve it.
    ///
    /// # Errors
    /// The root of the image cannot be read, or no threads can be started. The mount stays.
    pub fn resume(reader: Reader, inherited: Inherited, options: &MountOptions) -> Result<PausedMount, MountError> {
        let Inherited { devices, auto_unmount, directory, terms } = inherited;
        let deadlines = Arc::new(Deadlines::new(options.deadline, NonZero::get(options.threads)));
        let edge = FuseEdge::new(reader, options, options.checks_permissions, Arc::clone(&deadlines), true)
            .map_err(MountError::Image)?;
        let (_, served, connection) = edge.parts();
        let counts = served.counts.clone();
        let place = match &options.keeper {
            Some(keeper) => keeper.adopt(&directory)?,
            None => Place::with_id(None, &directory),
        };
        let unmounter = Unmounter::new(Some(place), Arc::downgrade(&connection), options.keeper.clone());
        let link = Link::inherited(devices, terms.agreement(), options)?;
        let channel = link.channel.clone();
        let spare = link.spare.clone();
        let mut session = serve(edge, link, Arc::clone(&deadlines), options, &unmounter, |pages| Box::new(pages))?;
        let handover = Some(session.handover(auto_unmount.map(AutoUnmount::new), &unmounter));
        let Running { ended, sender, transport, .. } = session;
        let ended = Mutex::new(ended);
        let mount = Self { unmounter, ended, sender, read_ahead: None, counts, deadlines, handover, transport };
        Ok(PausedMount::new(mount, channel, spare))
    }

    /// Mounts the kernel's EROFS on `directory`, in front of `image`, a file in the root of `reader`. The image is served over
    /// a hidden FUSE mount, which is attached to no directory and ends with the front. The keeper mounts both: a thread of this
    /// process that waited for the front, for example in an unmount, could keep the process from ending.
    ///
    /// # Errors
    /// The options have no keeper, the file cannot be served, or the kernel cannot mount it ([`MountError::Front`]). Nothing stays
    /// mounted.
    pub fn in_front(
        reader: Reader,
        directory: &Path,
        options: &MountOptions,
        image: Arc<dyn FrontImage>,
    ) -> Result<Self, MountError> {
        let (noted_image, noted_reader, reads) = (Arc::clone(&image), reader.clone(), options.reads.clone());
        let transfer: Arc<OnceLock<FrontTransfer>> = Arc::default();
        let noted_transfer = Arc::clone(&transfer);
        let (touches, has_direct_io) = (options.touches.clone(), options.front_direct_io);
        let holds_metadata = Arc::clone(&options.holds_metadata);
        let no_keeper = || MountError::Front("it needs a keeper, a process that mounts it".to_owned().into());
        let keeper = options.keeper.as_ref().ok_or_else(no_keeper)?;
        let serving = &MountOptions {
            access: Some(Access::All),
            checks_permissions: false,
            // The keeper waits for the session threads while it mounts the front, so they must not wait for the keeper.
            keeper: None,
            reads: Some(Arc::new(move |nid, offset, len| {
                let range = ByteRange::new(noted_image.address(nid, offset), len.into());
                let is_large = nid == noted_image.large_file();
                let has_ahead = !is_large && !holds_metadata.load(Relaxed);
                if let Some(ranges) = noted_image.metadata_ahead(range).filter(|_| has_ahead) {
                    noted_reader.store_ahead(nid, ranges);
                }
                if let Some(transfer) = noted_transfer.get().filter(|_| !is_large) {
                    transfer.note_read(noted_image.file_data_in(range).into_iter());
                }
                if let Some(reads) = &reads {
                    reads(nid, offset, len);
                }
                if let Some(touches) = &touches {
                    // A request of the kernel's readahead can continue into files that no program has read.
                    let count = if has_direct_io { usize::MAX } else { 1 };
                    let parts = noted_image.originals_in(range);
                    parts.into_iter().take(count).for_each(|(nid, range)| touches(Touch::Read(nid, range)));
                }
            })),
            touches: None,
            direct_io: Some(image.large_file()),
            ..options.clone()
        };
        let deadlines = Arc::new(Deadlines::new(options.deadline, NonZero::get(options.threads)));
        let priority = reader.engine().options().priority;
        let edge = FuseEdge::new(reader, serving, false, Arc::clone(&deadlines), false).map_err(MountError::Image)?;
        let (_, served, connection) = edge.parts();
        let prefetch_thread = edge.prefetch_thread();
        let counts = served.counts.clone();
        let (device, has_permission) = keeper.hide(options.rings.is_some())?;
        if let Some(rings) = &options.rings {
            rings.permit(has_permission);
        }
        let unmounter = Unmounter::new(None, Arc::downgrade(&connection), Some(Arc::clone(keeper)));
        let stored_transfer = Arc::clone(&transfer);
        let pages =
            move |hidden| -> Box<dyn Sink> { Box::new(FrontPages { hidden, image, transfer: stored_transfer }) };
        let session = serve(edge, Link::new(device), Arc::clone(&deadlines), serving, &unmounter, pages)?;
        let (place, sending) = keeper.put_front(directory, priority)?;
        if let Some(sending) = sending {
            prefetch_thread.store(sending.thread(), Relaxed);
            let _ = transfer.set(sending);
        }
        let unmounter = unmounter.of(place);
        let not_for_fronts = |_| io::Error::new(io::ErrorKind::Unsupported, "the kernel's EROFS in front decides");
        let read_ahead = options.read_ahead_bytes.map(not_for_fronts);
        let Running { ended, sender, transport, .. } = session;
        Ok(Self {
            unmounter,
            ended: Mutex::new(ended),
            sender,
            read_ahead,
            counts,
            deadlines,
            handover: None,
            transport,
        })
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

    /// Returns a handle that abandons this mount from any thread.
    pub fn abandoner(&self) -> Abandoner {
        Abandoner { sender: self.sender.clone(), deadlines: Arc::clone(&self.deadlines) }
    }

    /// How requests come from the kernel.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Returns a handle that hands this mount over to another process. `None` for a front, over io_uring, and if another
    /// program mounts.
    pub fn handover(&self) -> Option<Handover> {
        self.handover.clone()
    }

    /// Waits until the mount is unmounted or handed over.
    pub fn wait(self) -> Ended {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv().unwrap_or(Ended::Stuck)
    }
}

/// Ends the wait for the end of a mount that is unmounted already.
#[derive(Debug)]
pub struct Abandoner {
    sender: Sender<Ended>,
    deadlines: Arc<Deadlines>,
}

impl Abandoner {
    /// How far the requests have come.
    pub fn progress(&self) -> Progress {
        self.deadlines.progress()
    }

    /// Makes [`Mount::wait`] return [`Ended::Stuck`]. The kernel's requests without a reply, which keep the unmount of a front from
    /// completing, fail when this process exits.
    pub fn abandon(&self) {
        // The waiter may be gone.
        let _ = self.sender.send(Ended::Stuck);
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), MountError> {
    thread::Builder::new().name(name).spawn(work).map(drop).map_err(|error| MountError::Threads(start_error(error)))
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.unmounter.is_mounted() && self.unmounter.unmount(Detach::Never).is_err() {
            let _ = self.unmounter.unmount(Detach::Lazily);
        }
    }
}

/// The descriptors of a connection to the kernel.
struct Link {
    channel: Channel,
    /// Additional channels for session threads with their own descriptors.
    of_threads: Vec<Channel>,
    /// Additional channels that no thread uses.
    spare: Vec<Channel>,
    /// The terms, if another process has agreed upon them.
    agreement: Option<Agreement>,
}

impl Link {
    /// A new connection.
    fn new(device: OwnedFd) -> Self {
        Self { channel: Channel::new(device), of_threads: Vec::new(), spare: Vec::new(), agreement: None }
    }

    /// The connection of another process.
    fn inherited(devices: Vec<OwnedFd>, agreement: Agreement, options: &MountOptions) -> Result<Self, MountError> {
        let mut channels = devices.into_iter().map(Channel::new);
        let none = || MountError::Handshake(io::Error::other("no descriptor of /dev/fuse was passed on"));
        let channel = channels.next().ok_or_else(none)?;
        let thread_count = if options.clone_fd { NonZero::get(options.threads) } else { 0 };
        let of_threads = channels.by_ref().take(thread_count).collect();
        Ok(Self { channel, of_threads, spare: channels.collect(), agreement: Some(agreement) })
    }
}

/// The handles that the mount keeps of a session once its threads run.
struct Running {
    ended: Receiver<Ended>,
    sender: Sender<Ended>,
    gate: Arc<Gate>,
    channels: Vec<Channel>,
    agreement: Agreement,
    transport: Transport,
}

impl Running {
    fn handover(&mut self, auto_unmount: Option<AutoUnmount>, unmounter: &Unmounter) -> Handover {
        let channels = std::mem::take(&mut self.channels);
        let (gate, sender) = (Arc::clone(&self.gate), self.sender.clone());
        Handover::new(gate, channels, self.agreement, auto_unmount.map(Arc::new), unmounter.clone(), sender)
    }
}

/// Negotiates with the kernel, unless that was done before, and starts the session threads and the watchdog.
fn serve(
    mut edge: FuseEdge,
    link: Link,
    deadlines: Arc<Deadlines>,
    options: &MountOptions,
    unmounter: &Unmounter,
    page_cache: impl FnOnce(KernelPages) -> Box<dyn Sink>,
) -> Result<Running, MountError> {
    let Link { channel, mut of_threads, agreement, .. } = link;
    let agreement = match agreement {
        Some(agreement) => {
            edge.resume(agreement);
            agreement
        }
        None => edge.negotiate(&channel).map_err(MountError::Handshake)?,
    };
    let gate = Arc::clone(edge.gate());
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
    let (watchdog_unmounter, watchdog_ended, watched_gate) = (unmounter.clone(), ended.clone(), Arc::clone(&gate));
    let work = move || {
        if watch(&deadlines, &counts, rescue, &watched_gate, &session_end) == SessionEnd::Stuck {
            // An aborted connection leaves a dead mount, which must still be unmounted.
            if pending.connection_end() != Some(ConnectionEnd::Aborted) {
                watchdog_unmounter.note_end();
            }
            let _ = watchdog_ended.send(Ended::Stuck);
        }
    };
    spawn("floe-watch".to_owned(), work)?;
    let session = Arc::new(Session::new(edge, unmounter.clone(), ended.clone(), session_ended));
    let transport = Transport::begin(&session, &channel, agreement, options)?;
    if let Some(rings) = &options.rings {
        rings.release_permission();
    }
    let thread_count = match transport {
        // The device delivers only FORGET and INTERRUPT.
        Transport::Rings(_) => 1,
        Transport::Device | Transport::DeviceWithout(_) => NonZero::get(options.threads),
    };
    if thread_count > 1 {
        session.edge.permit_blocking();
    }
    while options.clone_fd && of_threads.len() < thread_count {
        of_threads.push(channel.join().map_err(MountError::Handshake)?);
    }
    for thread in 0..thread_count {
        let channel = of_threads.get(thread).unwrap_or(&channel).clone();
        let session = Arc::clone(&session);
        let name = match transport {
            Transport::Rings(_) => "floe-fuse/dev".to_owned(),
            Transport::Device | Transport::DeviceWithout(_) => format!("floe-fuse/{thread}"),
        };
        spawn(name, move || session.note(|edge| edge.serve(&channel, thread)))?;
    }
    let channels = std::iter::once(channel).chain(of_threads).collect();
    Ok(Running { ended: receiver, sender: ended, gate, channels, agreement, transport })
}
