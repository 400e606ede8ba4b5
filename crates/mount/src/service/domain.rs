//! A domain: the confined process that serves mounts of the service.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStringExt, net::UnixListener},
    },
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
};

use floe::{Engine, Image, ImageFiles, NamedFiles, OpenError, OpenOptions};
use floe_fuse::{MountError, Sessions};
use floe_image::Error;
use floe_ipc::{protocol::RefusalKind, receive, send};
use floe_keeper::{KeeperSocket, Mounted as MadeMount, Place};
use floe_sandbox::{Enforced, Sandbox};
use floe_sync::{Condvar, Mutex};
use rustix::net::{RecvFlags, SendFlags};

use super::{
    messages::{ATTACHMENT_DESCRIPTORS, Attachment, Order, Report},
    settings::{settings_of_mount, settings_of_service},
};
use crate::{
    Confined, Ended, Mounted,
    confined::below,
    control::Listeners,
    failure::Failure,
    handover::Taken,
    held::Held,
    launch::{LaunchPlan, ProfileChoice},
    log::MountLog,
    prepared::{Mounting, mount_setup, serving_any},
    target::Target,
    transport::{Continuity, TransportPlan},
};

/// The hidden command of the program `floe` that serves mounts of a service, whose broker is at the other end of the standard
/// input.
pub const DOMAIN_COMMAND: &str = "serve-for-another";

/// A domain.
struct Domain {
    broker: OwnedFd,
    engine: Arc<Engine>,
    sessions: Sessions,
    enforced: Enforced,
    listeners: Listeners,
    /// Takes the numbers of mounts that have ended.
    ends: mpsc::Sender<u64>,
    mounts: Mutex<HashMap<u64, State>>,
    /// Notified when a mount is removed.
    removed: Condvar,
}

/// The state of a mount of a domain.
enum State {
    /// Its image is being opened.
    Attaching {
        /// Whether the mount has ended meanwhile.
        has_ended: bool,
    },
    Mounted(Box<Mounted>),
    /// It has ended, and is being closed.
    Ending,
}

/// Serves mounts for the broker at the other end of a socket, until it says that there are none left, or, if it is gone, until all
/// have ended. This process must have no other threads.
///
/// # Errors
/// The broker breaks the protocol, this process cannot be confined, or there is no memory or no thread for it.
pub fn serve_for_broker(socket: OwnedFd) -> Result<(), Failure> {
    let lost = |error: io::Error| Failure::failed(format!("lost the service: {error}"));
    let Some((Order::Begin { options }, _)) = receive(&socket, RecvFlags::empty()).map_err(lost)? else {
        return Err(Failure::failed("the service breaks the protocol"));
    };
    let settings = settings_of_service(&options)?;
    #[cfg(debug_assertions)]
    crate::compromised::prepare();
    // All files come from the broker: this process opens none that belongs to an image.
    let (sandbox, ()) = Sandbox::enter(serving_any(), settings.sandbox, || ())?;
    let enforced = sandbox.seal()?;
    let engine = Engine::new(&settings.open.engine)
        .map_err(|error| Failure::failed(format!("cannot start the engine of the service: {error}")))?;
    let no_threads = |error: io::Error| Failure::failed(format!("cannot start the threads of the service: {error}"));
    let sessions = Sessions::start(&engine, settings.mount.threads, settings.mount.busy_polling).map_err(no_threads)?;
    let listeners = Listeners::start().map_err(no_threads)?;
    let (ends, ended) = mpsc::channel();
    let (mounts, removed) = (Mutex::default(), Condvar::new());
    let domain = Arc::new(Domain { broker: socket, engine, sessions, enforced, listeners, ends, mounts, removed });
    let closing = Arc::clone(&domain);
    let work = move || ended.iter().for_each(|number| closing.close_later(number));
    thread::Builder::new().name("floe-ends".to_owned()).spawn(work).map_err(no_threads)?;
    send(&domain.broker, &Report::Ready, &[], SendFlags::empty()).map_err(|error| lost(error.into()))?;
    loop {
        match receive(&domain.broker, RecvFlags::empty()) {
            Ok(Some((Order::Attach { attachment }, descriptors))) => domain.attach_later(attachment, descriptors),
            Ok(Some((Order::End, _))) => return Ok(()),
            Ok(Some((Order::Begin { .. }, _))) | Ok(None) | Err(_) => break,
        }
    }
    // The mounts outlive the broker.
    let mut mounts = domain.mounts.lock();
    while !mounts.is_empty() {
        mounts = domain.removed.wait(mounts);
    }
    Ok(())
}

impl Domain {
    /// Serves a mount, on a thread of its own until the image is open: its source may be slow.
    fn attach_later(self: &Arc<Self>, attachment: Attachment, descriptors: Vec<OwnedFd>) {
        let number = attachment.number;
        self.mounts.lock().insert(number, State::Attaching { has_ended: false });
        let domain = Arc::clone(self);
        let work = move || domain.attach(&attachment, descriptors);
        if let Err(error) = thread::Builder::new().name("floe-attach".to_owned()).spawn(work) {
            self.fail(number, &Failure::failed(format!("no thread can be started: {error}")));
        }
    }

    fn attach(self: &Arc<Self>, attachment: &Attachment, descriptors: Vec<OwnedFd>) {
        let number = attachment.number;
        let mounted = match self.mount(attachment, descriptors) {
            Ok(mounted) => mounted,
            Err(failure) => return self.fail(number, &failure),
        };
        let format = mounted.source.image.format().to_string();
        let mut mounts = self.mounts.lock();
        let has_ended = matches!(mounts.get(&number), Some(State::Attaching { has_ended: true }));
        mounts.insert(number, State::Mounted(Box::new(mounted)));
        drop(mounts);
        self.tell(&Report::Attached { number, format });
        if has_ended {
            self.close_later(number);
        }
    }

    /// Serves a mount.
    fn mount(self: &Arc<Self>, attachment: &Attachment, descriptors: Vec<OwnedFd>) -> Result<Mounted, Failure> {
        let path = |bytes: &Vec<u8>| PathBuf::from(std::ffi::OsString::from_vec(bytes.clone()));
        let Attachment { number, options, place, is_continued, .. } = attachment;
        let (image_path, directory) = (path(&attachment.image), path(&attachment.directory));
        let device_paths: Vec<PathBuf> = attachment.devices.iter().map(path).collect();
        if descriptors.len() != ATTACHMENT_DESCRIPTORS + device_paths.len() {
            return Err(Failure::failed("the domain has too many open files: raise the limit (ulimit -n)"));
        }
        let mut descriptors = descriptors.into_iter();
        let [device, state_file, keeper, control, image] = std::array::from_fn(|_| descriptors.next());
        let parts = device.zip(state_file).zip(keeper.zip(control).zip(image));
        let Some(((device, state_file), ((keeper, control), image))) = parts else {
            return Err(Failure::failed("the service breaks the protocol"));
        };
        let settings = settings_of_mount(options, &image_path, device_paths)?;
        let settings = match is_continued {
            // A launch is over by then.
            true => crate::options::Settings { profile: ProfileChoice::Off, ..settings },
            false => settings,
        };
        let place = Place::from_numbers(*place, directory.clone());
        let log = Arc::new(MountLog::of_remarks(&image_path, &directory, self.remarks(*number)));
        let (target, state_file) = match is_continued {
            true => {
                let failed = |error: io::Error| Failure::failed(format!("the record of the mount is damaged: {error}"));
                let mut taken = Taken::of_kept(device, File::from(state_file), place).map_err(failed)?;
                let state_file = taken.take_state_file();
                (Target::Taken(Box::new(taken)), state_file)
            }
            false => {
                let made = MadeMount { device, auto_unmount: None, place };
                (Target::Made(Box::new(made)), Some(File::from(state_file)))
            }
        };
        let held = Held {
            image: image_path.clone(),
            keeper: Arc::new(KeeperSocket::new(keeper).into_keeper()),
            log: Arc::clone(&log),
            manager: None,
            notify_pipe: None,
            idle: None,
            spill_directory: None,
        };
        let transport = TransportPlan::new(settings.transport, &settings.mount, Continuity::Kept, settings.front)?;
        let launch = LaunchPlan::prepare(&image_path, &settings, None, &log)?;
        let mut setup = mount_setup(&settings, &held, &transport, &launch);
        setup.handles.sessions = Some(self.sessions.clone());
        let (ends, ended) = (self.ends.clone(), *number);
        setup.hooks.ended = Some(Arc::new(move || {
            // The receiver lives as long as the process.
            let _ = ends.send(ended);
        }));
        let open = OpenOptions { volume: launch.volume_options(settings.open.volume.clone()), ..settings.open.clone() };
        let named = NamedFiles::of_descriptors(&image_path, image, descriptors)?;
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
        let confined = Confined { image, enforced: self.enforced.clone(), remote: None, mounting, held };
        let mounted = confined.mount()?;
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
                // A broker that does not read must not stop a mount.
                let report = Report::Remark { number, text: text.to_owned() };
                let _ = send(&domain.broker, &report, &[], SendFlags::DONTWAIT);
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
        self.tell(&Report::Failed { number, kind: kind_of(failure), message });
    }

    /// Closes a mount that has ended, on a thread of its own: its last requests may wait for the source.
    fn close_later(self: &Arc<Self>, number: u64) {
        let mut mounts = self.mounts.lock();
        let mounted = match mounts.get_mut(&number) {
            Some(State::Attaching { has_ended }) => {
                *has_ended = true;
                return;
            }
            Some(state @ State::Mounted(_)) => std::mem::replace(state, State::Ending),
            Some(State::Ending) | None => return,
        };
        drop(mounts);
        let State::Mounted(mounted) = mounted else { return };
        let domain = Arc::clone(self);
        let work = move || domain.close(number, *mounted);
        // Without a thread, the closure is dropped, which closes the image, too.
        if thread::Builder::new().name("floe-close".to_owned()).spawn(work).is_err() {
            self.listeners.remove(number);
            self.forget(number);
            self.tell(&Report::Ended { number, is_released: true });
        }
    }

    fn close(&self, number: u64, mounted: Mounted) {
        self.listeners.remove(number);
        let is_released = match mounted.wait() {
            Ok(ended) => ended != Ended::Stuck,
            Err(failure) => {
                self.tell(&Report::Remark { number, text: failure.to_string() });
                true
            }
        };
        self.tell(&Report::Ended { number, is_released });
        self.forget(number);
    }

    fn forget(&self, number: u64) {
        self.mounts.lock().remove(&number);
        self.removed.notify_all();
    }

    /// Tells the broker something, if it still exists.
    fn tell(&self, report: &Report) {
        let _ = send(self.broker.as_fd(), report, &[], SendFlags::empty());
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
