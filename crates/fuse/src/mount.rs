//! Mounts: mounted images that are being served.

mod end_sender;
pub(crate) mod error;
pub(crate) mod handover;
pub(crate) mod hidden;
mod link;
pub(crate) mod mountpoint;
pub(crate) mod passed_sys;
mod running;
mod session;
pub(crate) mod transport;
pub(crate) mod unmounter;

use std::{
    io,
    num::NonZero,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc::Receiver},
};

use floe_engine::{Reader, Sink};
use floe_keeper::{Detach, FrontTransfer, Mounted, set_readahead};
use floe_sync::Mutex;

use self::{
    end_sender::EndSender,
    error::MountError,
    handover::{ConnectionTerms, Handover, Inherited, PausedConnection},
    link::{Connected, connect},
    mountpoint::Mountpoint,
    running::Running,
    transport::Transport,
    unmounter::Unmounter,
};
use crate::{
    FrontImage, MountSetup, RequestCounts,
    connection::Connection,
    edge::{FuseEdge, front_pages::BehindFront},
    requests::deadline::{Deadlines, Progress},
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

/// A mounted image that is being served. Dropping it unmounts it, lazily if it is in use; but a mount that was taken over and
/// is not served yet stays.
#[derive(Debug)]
pub struct Mount {
    unmounter: Unmounter,
    /// A mutex only to make the mount `Sync`. It is locked only by `wait`, which consumes the mount.
    ended: Mutex<Receiver<Ended>>,
    sender: EndSender,
    readahead: Option<io::Error>,
    counts: RequestCounts,
    deadlines: Arc<Deadlines>,
    /// None over io_uring, for a front whose connection no other process keeps, and if another program mounts.
    handover: Option<Handover>,
    transport: Transport,
    /// For a mount that was taken over, until it is served.
    paused: Option<PausedConnection>,
}

/// What a mount starts from.
pub enum MountStart {
    /// A directory, or a descriptor with which another program mounts.
    Mountpoint(Mountpoint),
    /// A mount that another process has just made and keeps.
    Made(Box<Mounted>),
    /// The connection of a mount that another process has served, with the same image and the same options.
    Inherited(Inherited),
    /// A directory on which the kernel's EROFS is mounted, in front of an image in the root of the reader. The image is served
    /// over a hidden FUSE mount, which is attached to no directory and ends with the front. The keeper mounts both: a thread of
    /// this process that waited for the front, for example in an unmount, could keep the process from ending.
    Front {
        /// The directory.
        directory: PathBuf,
        /// The image behind the front.
        image: Arc<dyn FrontImage>,
        /// The connection of the hidden mount, if the keeper has already made it, and its terms, if the keeper has negotiated them.
        hidden: Option<(OwnedFd, Option<ConnectionTerms>)>,
    },
    /// The connection of the hidden mount behind a front that is mounted, which another process has served.
    InheritedFront {
        /// The connection, and the place of the front.
        inherited: Inherited,
        /// The image behind the front.
        image: Arc<dyn FrontImage>,
        /// The transfer into the front, if the keeper reads ahead there.
        transfer: Option<FrontTransfer>,
    },
}

impl From<Mountpoint> for MountStart {
    fn from(mountpoint: Mountpoint) -> Self {
        Self::Mountpoint(mountpoint)
    }
}

impl From<Inherited> for MountStart {
    fn from(inherited: Inherited) -> Self {
        Self::Inherited(inherited)
    }
}

impl Mount {
    /// Mounts and starts to serve. The mount works when this returns, except that one from [`MountStart::Inherited`] is paused:
    /// it is served once [`Mount::serve`] is called. Until then the other process may serve it.
    ///
    /// # Errors
    /// Mounting fails, the root of the image cannot be read, or no threads can be started. Nothing stays mounted but an inherited
    /// mount. For a front, also if there is no keeper or the kernel cannot mount it ([`MountError::Front`]).
    pub fn new(reader: Reader, start: impl Into<MountStart>, setup: impl Into<MountSetup>) -> Result<Self, MountError> {
        let (mut start, setup) = (start.into(), setup.into());
        let MountSetup { options, handles, .. } = &setup;
        let behind = match &mut start {
            MountStart::Front { image, .. } => Some(BehindFront::new(Arc::clone(image))),
            MountStart::InheritedFront { image, transfer, .. } => {
                let behind = BehindFront::new(Arc::clone(image));
                behind.note_mounted(transfer.take());
                Some(behind)
            }
            MountStart::Mountpoint(_) | MountStart::Made(_) | MountStart::Inherited(_) => None,
        };
        let mut serving = behind.as_ref().map_or_else(|| setup.clone(), |behind| behind.setup(&setup, &reader));
        // Without a directory, another program has chosen the options of the kernel.
        let is_passed = matches!(start, MountStart::Mountpoint(Mountpoint::Descriptor(_)));
        serving.options.kernel.checks_permissions &= !is_passed;
        let (is_new, is_inherited) = (
            matches!(start, MountStart::Mountpoint(_) | MountStart::Made(_)),
            matches!(start, MountStart::Inherited(_) | MountStart::InheritedFront { .. }),
        );
        // The keeper has the connection, too.
        let is_hidden_kept = matches!(start, MountStart::Front { hidden: Some(_), .. });
        let pool_threads = handles.sessions.as_ref().map(|sessions| sessions.pool().thread_count_max());
        let thread_count = pool_threads.unwrap_or(NonZero::get(options.threads));
        let deadlines = Arc::new(Deadlines::new(options.deadline, thread_count));
        let edge = FuseEdge::new(reader, &serving, Arc::clone(&deadlines)).map_err(MountError::Image)?;
        let (_, served) = edge.parts();
        let (counts, prefetch_thread) = (served.counts.clone(), edge.prefetch_thread());
        let volume = Arc::clone(edge.volume());

        let Connected { link, place, auto_unmount, front_directory } = connect(start, &setup)?;
        let paused = is_inherited.then(|| link.paused());
        let can_have_next = place.is_some() || is_hidden_kept;
        let connection = Arc::new(Connection::new(link.channel.clone()));
        let mut unmounter = Unmounter::new(place, Arc::downgrade(&connection), handles.keeper.clone());
        let page_cache = |pages| -> Box<dyn Sink> {
            match &behind {
                Some(behind) => Box::new(behind.pages(pages)),
                None => Box::new(pages),
            }
        };
        let running = Running::start(edge, link, connection, &serving, &unmounter, page_cache);
        if is_new && running.is_err() {
            let _ = unmounter.unmount(Detach::Lazily);
        }
        let mut running = running?;

        let mut readahead = None;
        if let (Some(behind), Some(directory), Some(keeper)) = (&behind, front_directory, &handles.keeper) {
            let (place, transfer) = keeper
                .mount_front(&directory, behind.options(options, volume.look_at_cpus()))
                .map_err(|failure| MountError::of(&directory, failure))?;
            behind.note_mounted(transfer);
            unmounter = unmounter.of(place);
            let not_for_fronts = |_| io::Error::new(io::ErrorKind::Unsupported, "the kernel's EROFS in front decides");
            readahead = options.kernel.readahead_bytes.map(not_for_fronts);
        } else if is_new {
            readahead = apply_readahead(&setup, &unmounter).err();
        }
        if let Some(thread) = behind.as_ref().and_then(BehindFront::thread) {
            prefetch_thread.store(thread, Relaxed);
        }
        let can_have_next = can_have_next && !matches!(running.transport, Transport::Rings(_));
        let handover = can_have_next.then(|| running.handover(auto_unmount, &unmounter));
        let Running { ended, sender, transport, .. } = running;
        let ended = Mutex::new(ended);
        Ok(Self { unmounter, ended, sender, readahead, counts, deadlines, handover, transport, paused })
    }

    /// Starts to serve a mount that was taken over. No other process may serve the mount any more. The kernel resends the requests
    /// without a reply, if it can. Other mounts are served already.
    ///
    /// # Errors
    /// The connection has ended. The mount stays.
    pub fn serve(mut self) -> io::Result<Self> {
        if let Some((paused, handover)) = self.paused.take().zip(self.handover.as_ref()) {
            // On errors, the other process serves the mount, or will.
            paused.serve(handover).inspect_err(|_error| self.unmounter.note_end())?;
        }
        Ok(self)
    }

    /// Why the kernel's readahead was not set as requested.
    pub fn readahead_refusal(&self) -> Option<&io::Error> {
        self.readahead.as_ref()
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

    /// Returns a handle that hands this mount over to another process. `None` over io_uring, for a front whose hidden mount no other
    /// process has made, and if another program mounts.
    pub fn handover(&self) -> Option<Handover> {
        self.handover.clone()
    }

    /// Waits until the mount is unmounted or handed over.
    pub fn wait(self) -> Ended {
        self.ended.lock().recv().unwrap_or(Ended::Stuck)
    }
}

/// Ends the wait for the end of a mount that is unmounted already.
#[derive(Debug)]
pub struct Abandoner {
    sender: EndSender,
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
        self.sender.send(Ended::Stuck);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.paused.is_some() {
            // Another process serves it, or will.
            self.unmounter.note_end();
            return self.handover.iter().for_each(Handover::dismiss);
        }
        if self.unmounter.is_mounted() && self.unmounter.unmount(Detach::Never).is_err() {
            let _ = self.unmounter.unmount(Detach::Lazily);
        }
    }
}

/// Sets the kernel's readahead of a mount on a directory, if the options say so.
fn apply_readahead(setup: &MountSetup, unmounter: &Unmounter) -> io::Result<()> {
    let Some(bytes) = setup.options.kernel.readahead_bytes else { return Ok(()) };
    let device = unmounter.device().ok_or(io::ErrorKind::Unsupported)?;
    match &setup.handles.keeper {
        Some(keeper) => keeper.set_readahead(),
        None => set_readahead(device, bytes),
    }
}
