//! A domain: the confined process that serves mounts of the service.

mod moves;
mod own_rings;

use std::{
    collections::HashMap,
    fs::File,
    io,
    num::NonZero,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use floe::{
    Engine, Image, ImageFiles, NamedFiles, OpenError, OpenOptions,
    remote::{RemoteProcess, Renewal},
};
use floe_front::KeptImage;
use floe_fuse::{ConnectionTerms, MountError, Sessions};
use floe_image::Error;
use floe_ipc::{protocol::RefusalKind, receive};
use floe_keeper::{FrontTransfer, Keeper, KeeperSocket, LaunchWalk, Mounted as MadeMount, Place};
use floe_sandbox::{Enforced, Sandbox};
use floe_sync::Mutex;
use rustix::{net::RecvFlags, process::setsid};

use self::own_rings::OwnRings;
use super::{
    broker_link::BrokerLink,
    kept_image::KeptFiles,
    messages::{Attachment, NegotiatedTerms, Order, Rendering, Report},
    record::path,
    rendering::render,
    settings::{settings_of_request, settings_of_service},
};
use crate::{
    Confined, Ended, Mounted,
    confined::below,
    control::Listeners,
    failure::Failure,
    front::Hidden,
    handover::{Taken, TakenFront},
    held::Held,
    launch::{GivenLaunch, LaunchPlan, ProfileChoice},
    log::MountLog,
    prepared::{Mounting, mount_setup, serving_any},
    remote::{self, RemoteFiles},
    target::Target,
    transport::TransportPlan,
};

/// The hidden command of the program `floe` that serves mounts of a service, whose broker is at the other end of the standard
/// input.
pub const DOMAIN_COMMAND: &str = "serve-for-another";

/// A domain.
struct Domain {
    broker: BrokerLink,
    engine: Arc<Engine>,
    /// The session threads that its mounts share; `None` if it serves one mount, over io_uring.
    sessions: Option<Sessions>,
    /// The rings of that mount.
    rings: Option<OwnRings>,
    /// The number of session threads of the service, and how long they poll.
    threads: (NonZero<usize>, Option<Duration>),
    enforced: Enforced,
    listeners: Listeners,
    /// Takes the numbers of mounts that have ended.
    ends: mpsc::Sender<u64>,
    mounts: Mutex<HashMap<u64, Entry>>,
    /// Locked while metadata is rendered for later mounts.
    rendering_later: Mutex<()>,
}

/// What leads into a mount that is attached.
struct Leading {
    /// The transfer into its front, if that is mounted.
    transfer: Option<FrontTransfer>,
    /// The connection to the process that serves it until it is told to stop.
    from: Option<UnixStream>,
    /// The launch to replay, if the options name it.
    launch: GivenLaunch,
}

/// A mount of a domain.
struct Entry {
    state: State,
    /// The format of its image; empty until it has been opened.
    format: String,
    /// Whether it is being handed over, or is.
    is_moving: bool,
    keeper: Arc<Keeper>,
    /// The image, if another process fetches it and it has been opened.
    remote: Option<Arc<RemoteProcess>>,
    /// For the next broker.
    files: KeptFiles,
}

/// The state of a mount of a domain.
enum State {
    /// Its image is being opened.
    Attaching {
        /// Whether the mount has ended meanwhile.
        has_ended: bool,
        /// Whether another process serves it until then.
        is_taken: bool,
    },
    Mounted(Box<Mounted>),
    /// It has ended, and is being closed.
    Ending,
}

/// Serves mounts for the broker at the other end of a socket, until it says that there are none left. If it is gone, serves them
/// until all have ended, or for the next broker. This process must have no other threads.
///
/// # Errors
/// The broker breaks the protocol, this process cannot be confined, or there is no memory or no thread for it.
pub fn serve_for_broker(socket: OwnedFd) -> Result<(), Failure> {
    // A session of its own gets no signals of a terminal, and none if the broker dies.
    let _ = setsid();
    let lost = |error: io::Error| Failure::failed(format!("lost the service: {error}"));
    let Some((Order::Begin { options, user, has_rings }, descriptors)) =
        receive(&socket, RecvFlags::empty()).map_err(lost)?
    else {
        return Err(Failure::failed("the service breaks the protocol"));
    };
    let settings = settings_of_service(&options)?;
    let broker = BrokerLink::new(socket, descriptors.into_iter().next()).map_err(lost)?;
    if let Some(user) = user {
        user.assume()
            .map_err(|error| Failure::failed(format!("cannot become a process of user {}: {error}", user.uid)))?;
    }
    #[cfg(debug_assertions)]
    crate::compromised::prepare();
    let rings = has_rings.then(OwnRings::new);
    // All files come from the broker: this process opens none that belongs to an image.
    let mut policy = serving_any();
    policy.calls.rings = has_rings;
    let (sandbox, ()) = Sandbox::enter(policy, settings.sandbox, || ())?;
    let enforced = sandbox.seal()?;
    let engine = Engine::new(&settings.open.engine)
        .map_err(|error| Failure::failed(format!("cannot start the engine of the service: {error}")))?;
    let no_threads = |error: io::Error| Failure::failed(format!("cannot start the threads of the service: {error}"));
    let threads = (settings.mount.threads, settings.mount.busy_polling);
    let sessions = (!has_rings).then(|| Sessions::start(&engine, threads.0, threads.1));
    let sessions = sessions.transpose().map_err(no_threads)?;
    let listeners = Listeners::start().map_err(no_threads)?;
    let (ends, ended) = mpsc::channel();
    let domain = Arc::new(Domain {
        broker,
        engine,
        sessions,
        rings,
        threads,
        enforced,
        listeners,
        ends,
        mounts: Mutex::default(),
        rendering_later: Mutex::default(),
    });
    let closing = Arc::clone(&domain);
    let work = move || ended.iter().for_each(|number| closing.close_later(number));
    thread::Builder::new().name("floe-ends".to_owned()).spawn(work).map_err(no_threads)?;
    domain.broker.tell(&Report::Ready);
    loop {
        while let Some((order, descriptors)) = domain.broker.order() {
            match order {
                Order::Attach { attachment } => domain.attach_later(attachment, descriptors),
                Order::Keeper { number } => domain.renew_keeper(number, descriptors),
                Order::Converse { number } => {
                    let connection = descriptors.into_iter().next();
                    connection.into_iter().for_each(|it| domain.listeners.converse(number, it.into()));
                }
                Order::Render { rendering } => domain.render_later(rendering, descriptors),
                Order::Record { number } => domain.renew_record(number, descriptors),
                Order::Source { number } => domain.renew_source(number, descriptors),
                Order::HandOver { number } => domain.hand_over_later(number, descriptors),
                Order::End => return Ok(()),
                Order::Begin { .. } | Order::Adopt { .. } => break,
            }
        }
        // The mounts outlive the broker.
        let Some(next) = domain.broker.next_broker(|| !domain.mounts.lock().is_empty()) else { return Ok(()) };
        domain.introduce_itself(next);
    }
}

impl Domain {
    /// Serves a mount, on a thread of its own until the image is open: its source may be slow.
    fn attach_later(self: &Arc<Self>, attachment: Attachment, mut descriptors: Vec<OwnedFd>) {
        let number = attachment.number;
        let mut first = || (!descriptors.is_empty()).then(|| descriptors.remove(0));
        let keeper = first();
        let thread = attachment.front.as_ref().and_then(|front| front.thread);
        let transfer = thread.and_then(|thread| Some(FrontTransfer::new(first()?, thread)));
        let from = if attachment.is_taken { first().map(UnixStream::from) } else { None };
        let profile = if attachment.has_profile { first().map(File::from) } else { None };
        let walk = if attachment.has_walk { first().map(|socket| LaunchWalk::new(socket, 0)) } else { None };
        let leading = Leading { transfer, from, launch: GivenLaunch { profile, walk } };
        let files = KeptFiles::of(descriptors, attachment.request.devices.len());
        let copies = files.as_ref().and_then(|files| files.try_clone().ok());
        let Some(((keeper, files), copies)) = keeper.zip(files).zip(copies) else {
            let message = "the domain has too many open files: raise the limit (ulimit -n)";
            return self.fail(number, &Failure::failed(message));
        };
        let keeper = Arc::new(KeeperSocket::new(keeper).into_keeper());
        let is_taken = attachment.is_taken;
        let (state, format) = (State::Attaching { has_ended: false, is_taken }, attachment.format.clone());
        let entry = Entry { state, format, is_moving: false, keeper: Arc::clone(&keeper), remote: None, files };
        self.mounts.lock().insert(number, entry);
        let domain = Arc::clone(self);
        let work = move || domain.attach(&attachment, copies, keeper, leading);
        if let Err(error) = thread::Builder::new().name("floe-attach".to_owned()).spawn(work) {
            self.fail(number, &Failure::failed(format!("no thread can be started: {error}")));
        }
    }

    /// Renders metadata, on a thread of its own.
    fn render_later(self: &Arc<Self>, rendering: Rendering, descriptors: Vec<OwnedFd>) {
        let number = rendering.number;
        let domain = Arc::clone(self);
        let work = move || {
            // A mount through FUSE tells what is wrong with the image.
            let is_done = render(&domain.engine, &domain.rendering_later, &rendering, descriptors).unwrap_or(false);
            domain.broker.tell(&Report::Rendered { number, is_done });
        };
        if thread::Builder::new().name("floe-keep".to_owned()).spawn(work).is_err() {
            self.broker.tell(&Report::Rendered { number, is_done: false });
        }
    }

    fn attach(self: &Arc<Self>, attachment: &Attachment, files: KeptFiles, keeper: Arc<Keeper>, leading: Leading) {
        let number = attachment.number;
        #[cfg(debug_assertions)]
        if crate::compromised::lies("order") {
            return self.broker.tell(&Report::Attached { number, format: "EROFS".to_owned() });
        }
        let mounted = match self.mount(attachment, files, keeper, leading) {
            Ok(mounted) => mounted,
            Err(failure) => return self.fail(number, &failure),
        };
        let format = mounted.source.image.format().to_string();
        let mut has_ended = false;
        if let Some(entry) = self.mounts.lock().get_mut(&number) {
            has_ended = matches!(entry.state, State::Attaching { has_ended: true, .. });
            (entry.state, entry.format) = (State::Mounted(Box::new(mounted)), format.clone());
        }
        self.broker.tell(&Report::Attached { number, format });
        if has_ended {
            self.close_later(number);
        }
    }

    /// Another process is the keeper of a mount from now on.
    fn renew_keeper(&self, number: u64, descriptors: Vec<OwnedFd>) {
        let keeper = self.mounts.lock().get(&number).map(|entry| Arc::clone(&entry.keeper));
        if let Some((keeper, socket)) = keeper.zip(descriptors.into_iter().next()) {
            keeper.renew(KeeperSocket::new(socket));
        }
    }

    /// Another record is the one for the next broker.
    fn renew_record(&self, number: u64, descriptors: Vec<OwnedFd>) {
        let mut mounts = self.mounts.lock();
        if let Some((entry, record)) = mounts.get_mut(&number).zip(descriptors.into_iter().next()) {
            entry.files.record = record;
        }
    }

    /// Another process fetches the image of a mount from now on. It opens the image first, so a thread waits for that.
    fn renew_source(&self, number: u64, descriptors: Vec<OwnedFd>) {
        let Some(source) = descriptors.into_iter().next() else { return };
        let remote = {
            let mut mounts = self.mounts.lock();
            let Some(entry) = mounts.get_mut(&number) else { return };
            let (Some(remote), Ok(kept)) = (&entry.remote, source.try_clone()) else { return };
            entry.files.image = kept;
            Arc::clone(remote)
        };
        // Without a thread, the reads that wait ask again.
        let _ = thread::Builder::new().name("floe-source".to_owned()).spawn(move || remote.renew(source));
    }

    /// The image at the other end of a connection to the process that fetches it.
    ///
    /// # Errors
    /// It cannot be opened.
    fn remote(
        self: &Arc<Self>,
        number: u64,
        connection: OwnedFd,
        options: &OpenOptions,
    ) -> Result<Arc<RemoteProcess>, Failure> {
        let domain = Arc::downgrade(self);
        let ask = Box::new(move || {
            if let Some(domain) = domain.upgrade() {
                domain.broker.tell_if_it_reads(&Report::SourceLost { number });
            }
        });
        let renewal = Renewal { ask, patience: options.remote.remote.outage.patience() };
        let remote = RemoteProcess::connected(connection, renewal).map_err(remote::failure)?;
        let remote = Arc::new(remote);
        if let Some(entry) = self.mounts.lock().get_mut(&number) {
            entry.remote = Some(Arc::clone(&remote));
        }
        Ok(remote)
    }

    /// Serves a mount.
    fn mount(
        self: &Arc<Self>,
        attachment: &Attachment,
        files: KeptFiles,
        keeper: Arc<Keeper>,
        Leading { transfer, from, launch }: Leading,
    ) -> Result<Mounted, Failure> {
        let Attachment { number, request, place, .. } = attachment;
        let (location, directory) = (path(&request.image), path(&attachment.directory));
        let image_path = remote::without_credentials(&location);
        let KeptFiles { device, state, control, image, devices, metadata, .. } = files;
        let (state_file, is_continued) = (File::from(state), !attachment.format.is_empty());
        let front = match metadata {
            None => None,
            Some(metadata) => {
                let kept = KeptImage::verified_elsewhere(File::from(metadata));
                let failed = |error| Failure::failed(format!("cannot read the kept metadata of the front: {error}"));
                Some(TakenFront { kept: kept.map_err(failed)?, transfer })
            }
        };
        let settings = settings_of_request(request)?;
        let settings = match is_continued {
            // A launch is over by then.
            true => crate::options::Settings { profile: ProfileChoice::Off, ..settings },
            false => settings,
        };
        let place = Place::from_numbers(*place, directory.clone());
        let log = Arc::new(MountLog::of_remarks(&image_path, &directory, self.remarks(*number)));
        let (target, state_file) = match (is_continued, front) {
            (true, front) => {
                let failed = |error: io::Error| Failure::failed(format!("the record of the mount is damaged: {error}"));
                let mut taken = Taken::of_kept(device, state_file, place, front, from).map_err(failed)?;
                let state_file = taken.take_state_file();
                (Target::Taken(Box::new(taken)), state_file)
            }
            (false, Some(front)) => {
                let terms = attachment.front.as_ref().and_then(|front| front.terms);
                let terms = terms.map(|NegotiatedTerms { minor, features }| ConnectionTerms { minor, features });
                let hidden = Hidden { device, terms, directory, kept: front.kept };
                (Target::Hidden(Box::new(hidden)), Some(state_file))
            }
            (false, None) => {
                let made = MadeMount { device, auto_unmount: None, place };
                let target = Target::Made(Box::new(made), attachment.obstacle.clone());
                (target, Some(state_file))
            }
        };
        let held = Held {
            image: image_path.clone(),
            keeper,
            log: Arc::clone(&log),
            manager: None,
            notify_pipe: None,
            idle: None,
            spill_directory: None,
        };
        let transport = TransportPlan::of_service(settings.transport, self.rings.as_ref().map(OwnRings::take))?;
        let (image, remote) = match remote::is_url(&location) {
            true => (None, Some(self.remote(*number, image, &settings.open)?)),
            false => (Some(image), None),
        };
        let launch = LaunchPlan::prepare(&image_path, &settings, launch, remote.as_deref(), &log)?;
        let mut setup = mount_setup(&settings, &held, &transport, &launch);
        setup.handles.sessions.clone_from(&self.sessions);
        (setup.options.threads, setup.options.busy_polling) = self.threads;
        let (ends, ended) = (self.ends.clone(), *number);
        setup.hooks.ended = Some(Arc::new(move || {
            // The receiver lives as long as the process.
            let _ = ends.send(ended);
        }));
        let open = OpenOptions { volume: launch.volume_options(settings.open.volume.clone()), ..settings.open.clone() };
        let named = match (image, &remote) {
            (Some(image), _) => NamedFiles::of_descriptors(&image_path, image, devices)?,
            (None, Some(remote)) => RemoteFiles::of_image(remote).named_files(&image_path, &open).0?,
            (None, None) => return Err(Failure::failed("the image is missing")),
        };
        let image = Image::of_in(&self.engine, ImageFiles::of_named(named, &open)?, &open)?;
        let image = match &settings.subdirectory {
            None => image,
            Some(subdirectory) => below(&image, subdirectory, &image_path)?,
        };
        let tuned = target.taken().map_or_else(Vec::new, |taken| taken.state.tuned.clone());
        let mounting = Mounting {
            settings,
            shown_image: image_path,
            target,
            setup,
            transport,
            kept_front: None,
            launch,
            control_socket: None,
            invocation: None,
            state_file,
        };
        let confined = Confined { image, enforced: self.enforced.clone(), remote, mounting, held };
        let mounted = confined.mount()?;
        self.rings.iter().for_each(OwnRings::close);
        if !tuned.is_empty()
            && let Err(refusal) = mounted.source.tune(&tuned)
        {
            log.remark(format_args!("an earlier change of options is lost: {refusal}"));
        }
        let listener = UnixListener::from(control);
        if let Err(error) = self.listeners.add(*number, listener, Arc::clone(&mounted.source) as Arc<_>) {
            log.remark(format_args!("the mount works, but floe status and floe tune will not: {error}"));
        }
        Ok(mounted)
    }

    /// What tells a mount's user something.
    fn remarks(self: &Arc<Self>, number: u64) -> crate::Remarks {
        let domain = Arc::downgrade(self);
        Arc::new(move |text| {
            if let Some(domain) = domain.upgrade() {
                domain.broker.tell_if_it_reads(&Report::Remark { number, text: text.to_owned() });
            }
        })
    }

    /// Reports that a mount is not served.
    fn fail(&self, number: u64, failure: &Failure) {
        self.forget(number);
        let mut message = failure.to_string();
        if let Failure::Open(OpenError::NotAnImage { found_at: Some(at), .. }) = failure {
            message = format!("{message}: mount it with -o offset={at}");
        }
        self.broker.tell(&Report::Failed { number, kind: kind_of(failure), message });
    }

    /// Closes a mount that has ended, on a thread of its own: its last requests may wait for the source.
    fn close_later(self: &Arc<Self>, number: u64) {
        let mut mounts = self.mounts.lock();
        let Some(Entry { state, .. }) = mounts.get_mut(&number) else { return };
        let mounted = match state {
            State::Attaching { has_ended, .. } => {
                *has_ended = true;
                return;
            }
            State::Mounted(_) => std::mem::replace(state, State::Ending),
            State::Ending => return,
        };
        drop(mounts);
        let State::Mounted(mounted) = mounted else { return };
        let domain = Arc::clone(self);
        let work = move || domain.close(number, *mounted);
        // Without a thread, the closure is dropped, which closes the image, too.
        if thread::Builder::new().name("floe-close".to_owned()).spawn(work).is_err() {
            self.listeners.remove(number);
            self.forget(number);
            self.broker.tell(&Report::Ended { number, is_released: true });
        }
    }

    fn close(&self, number: u64, mounted: Mounted) {
        self.listeners.remove(number);
        let is_released = match mounted.wait() {
            Ok(Ended::HandedOver) => return self.forget(number),
            Ok(ended) => ended != Ended::Stuck,
            Err(failure) => {
                self.broker.tell(&Report::Remark { number, text: failure.to_string() });
                true
            }
        };
        // In this order: a broker that learns of the mount, because it is not forgotten yet, learns of its end afterwards.
        self.forget(number);
        self.broker.tell(&Report::Ended { number, is_released });
    }

    fn forget(&self, number: u64) {
        let forgotten = self.mounts.lock().remove(&number);
        drop(forgotten);
        self.broker.note_removal();
    }
}

/// The kind of a failure, for the exit code of the client.
fn kind_of(failure: &Failure) -> RefusalKind {
    let of_error = |error: &Error| if error.is_transient() { RefusalKind::Failed } else { RefusalKind::BadImage };
    match failure {
        Failure::Usage(_) => RefusalKind::Usage,
        Failure::Open(OpenError::NotAnImage { .. }) => RefusalKind::BadImage,
        Failure::Open(OpenError::Image { error, .. }) | Failure::Mount(MountError::Image(error)) => of_error(error),
        Failure::Open(_) | Failure::Mount(_) | Failure::Failed(_) => RefusalKind::Failed,
    }
}
