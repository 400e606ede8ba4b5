//! A mount that this process serves; it unmounts images that are not in use.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    mem,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_front::VirtualImage;
use floe_fuse::{Abandoner, Mount, RequestKind, Unmounter};
use floe_image::{FileSystem, ShownName};
use floe_keeper::{Detach, Keeper};

use crate::{
    confined::Confined,
    control,
    failure::Failure,
    front::{self, Fronted},
    handover::{Giver, is_upgrade},
    held::Held,
    kept_front::{Keeping, KeptFront},
    launch,
    log::MountLog,
    prepared::Mounting,
    status,
    target::Target,
};

/// A mount that this process serves.
pub struct Mounted {
    pub(crate) mount: Mount,
    pub(crate) source: Arc<status::Source>,
    /// The control socket, until it is served; `None` if another program has mounted.
    control_socket: Option<io::Result<control::UnnamedSocket>>,
    control: Option<control::Server>,
    /// The metadata of the front to be kept, of this file system with this virtual image.
    kept_front: Option<(KeptFront, Arc<dyn FileSystem>, Arc<VirtualImage>)>,
    keeping: Option<Keeping>,
    pub(crate) held: Held,
}

/// How a mount ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was unmounted.
    Unmounted,
    /// Another process serves it. This one should exit: it cleans nothing up.
    HandedOver,
    /// It was unmounted, but the source of the image is stuck. Only the exit of this process ends the threads that wait for it.
    Stuck,
}

impl Confined {
    /// Mounts the image and begins to serve it, or takes its mount over.
    ///
    /// # Errors
    /// The image cannot be mounted or taken over.
    pub fn mount(self) -> Result<Mounted, Failure> {
        let Self { image, enforced, remote, mounting, held } = self;
        let Mounting {
            settings,
            shown_image,
            target,
            setup,
            transport,
            kept_front,
            launch,
            control_socket,
            invocation,
            state_file,
        } = mounting;
        let is_kept = control_socket.is_none();
        let original = front::original(&image, &setup.options, None);
        let mountpoint = target.shown().to_owned();
        let (fronted, tuned) = match target {
            Target::Taken(taken) => {
                let tuned = taken.state.tuned.clone();
                (taken.mount(&image, setup)?, tuned)
            }
            Target::Made(made, obstacle) => (settings.front.of_made(&image, made, obstacle, setup)?, Vec::new()),
            Target::Hidden(hidden) => (settings.front.of_hidden(&image, *hidden, setup)?, Vec::new()),
            Target::New(mountpoint, _) => (
                settings.front.mount(&image, mountpoint, setup, kept_front.as_ref().and_then(KeptFront::kept))?,
                Vec::new(),
            ),
        };
        let Fronted { mount, reader, virtual_image, report: front } = fronted;
        let transport = transport.report(&mount)?;
        if let Some(refusal) = mount.readahead_refusal() {
            held.log.remark(format_args!("cannot change the kernel's read-ahead: {refusal}"));
        }
        if let Some(refusal) = image.reader().engine().spill_file_refusal() {
            held.log.remark(format_args!(
                "continuing without a spill file: {refusal}; name another directory with -o spill-file=SIZE:DIR"
            ));
        }
        let unmounter = mount.unmounter();
        let device = unmounter.device();
        let giver =
            device.and_then(|device| Giver::of(&mount, &image, device, front.clone(), &mountpoint, tuned, state_file));
        if let (Some(manager), Some(giver)) = (&held.manager, &giver) {
            giver.store(manager);
        }
        let kept_front = kept_front
            .filter(|place| !place.has_kept())
            .zip(virtual_image.clone())
            .map(|(place, virtual_image)| (place, original, virtual_image));
        let launches = launch.start(launch::Mounted {
            image: image.clone(),
            reader: reader.clone(),
            virtual_image,
            keeper: Arc::clone(&held.keeper),
            requests: mount.request_counts(),
        });
        let source = Arc::new(status::Source {
            devices: image.device_paths().to_vec(),
            image,
            reader,
            path: shown_image,
            mountpoint,
            device: device.unwrap_or_default(),
            settings: floe_sync::Mutex::new(settings),
            front,
            transport,
            requests: mount.request_counts(),
            unmounter,
            launches,
            started: Instant::now(),
            enforced,
            remote,
            invocation,
            giver,
            is_kept,
        });
        let control_socket = control_socket.filter(|_| device.is_some());
        Ok(Mounted { mount, source, control_socket, control: None, kept_front, keeping: None, held })
    }
}

impl Mounted {
    /// The mountpoint: absolute and without links.
    pub fn directory(&self) -> &Path {
        &self.source.mountpoint
    }

    /// A handle that unmounts from any thread.
    pub fn unmounter(&self) -> Unmounter {
        self.mount.unmounter()
    }

    /// A handle that gives up on the requests of an unmounted mount.
    pub fn abandoner(&self) -> Abandoner {
        self.mount.abandoner()
    }

    /// The process that mounts and unmounts for this one.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.held.keeper
    }

    /// Whether standard output is the journal, which has the message that the mount works already.
    pub fn logs_to_output(&self) -> bool {
        self.held.log.has_standard_output()
    }

    /// Answers questions on the control socket, waits for the replay of a launch that has a bundle, and reports that the
    /// mount works: to the caller by `say`, to the journal, the service manager and the pipe of the request. From the report
    /// on, the keeper does not unmount it when this process ends.
    ///
    /// # Errors
    /// `say` fails; the mount is unmounted then.
    pub fn announce(&mut self, say: impl FnOnce(&str) -> io::Result<()>) -> Result<(), Failure> {
        // After the threads that the caller needs: the mount works without this one.
        self.control = self.control_socket.take().and_then(|socket| self.start_control(socket));
        let Self { source, held, .. } = self;
        source.launches.wait_for_replay();
        // If the keeper is dead, the later unmount reports that.
        let _ = held.keeper.confirm_mount();
        let (format, directory) = (source.image.format(), source.mountpoint.shown());
        say(&format!("{} ({format}) is mounted on {directory}", held.image.shown())).map_err(|error| {
            let _ = source.unmounter.unmount(Detach::Lazily);
            Failure::failed(format!("the foreground process is gone: {error}"))
        })?;
        held.log.event(&format!("{} ({format}) is mounted on {directory}", source.path.shown()));
        if let Some(manager) = &held.manager {
            manager.ready();
        }
        if let Some(idle) = held.idle {
            unmount_when_idle(source, idle, &held.log);
        }
        if let Some(pipe) = &held.notify_pipe {
            notify(pipe.path(), true);
        }
        let start = |(place, original, virtual_image): (KeptFront, _, _)| {
            place.start(original, virtual_image, source.requests.clone(), Arc::clone(&held.log))
        };
        self.keeping = self.kept_front.take().map(start);
        Ok(())
    }

    /// Answers questions on the control socket. Without it, the mount works too.
    fn start_control(&self, socket: io::Result<control::UnnamedSocket>) -> Option<control::Server> {
        let source = Arc::clone(&self.source);
        let control = socket.and_then(|socket| control::Listeners::serve_alone(socket, source.device, source));
        let remark = |error: &io::Error| {
            let log = &self.held.log;
            log.remark(format_args!("the mount works, but floe status and floe tune will not: {error}"));
        };
        control.inspect_err(remark).ok()
    }

    /// Serves until the mount ends.
    ///
    /// # Errors
    /// The connection to the kernel is lost.
    pub fn wait(self) -> Result<Ended, Failure> {
        // Dropped last: this ends the keeper.
        let held = self.held;
        let (mount, source, control) = (self.mount, self.source, self.control);
        let ended = mount.wait();
        drop(self.keeping);
        source.launches.end();
        // After a takeover, requests may still be in progress here; and a stuck source cannot be closed.
        if matches!(ended, floe_fuse::Ended::Unmounted | floe_fuse::Ended::Failed(_)) {
            source.image.reader().volume().close();
        }
        let directory = source.mountpoint.shown();
        if matches!(ended, floe_fuse::Ended::HandedOver) {
            // The control socket and the mount are the other process's now.
            mem::forget(control);
            held.log.event(&format!("{directory} is served by another process"));
            return Ok(Ended::HandedOver);
        }
        if let Some(manager) = &held.manager {
            manager.forget();
        }
        drop(control);
        if let Some(remote) = &source.remote {
            remote.end_and_wait();
        }
        match ended {
            floe_fuse::Ended::Unmounted | floe_fuse::Ended::HandedOver => {
                held.log.event(&format!("{directory} is unmounted"));
                Ok(Ended::Unmounted)
            }
            floe_fuse::Ended::Stuck => {
                let image = source.path.shown();
                held.log.error(&format!("{image}: the source of the image is stuck; waiting requests are abandoned"));
                // The keeper stays until this process has ended, and aborts the connection if it cannot end.
                mem::forget(held);
                Ok(Ended::Stuck)
            }
            floe_fuse::Ended::Failed(error) => {
                Err(Failure::failed(format!("lost the connection to the kernel: {error}")))
            }
        }
    }
}

/// Reports the result to a process that reads from the pipe. Waits for such a process, as squashfuse does.
pub fn notify(pipe: &Path, works: bool) {
    if is_upgrade() {
        // The reader got its message long ago; opening the pipe would wait for another one.
        return;
    }
    if let Ok(mut pipe) = OpenOptions::new().write(true).open(pipe) {
        let _ = pipe.write_all(if works { b"s" } else { b"f" });
    }
}

/// The interval of the checks for reads.
const GLANCE: Duration = Duration::from_millis(250);

/// Unmounts after no bytes were read from the image for `idle`, if no program has a file of it open.
fn unmount_when_idle(source: &status::Source, idle: Duration, log: &MountLog) {
    let (image, unmounter, requests) = (source.image.clone(), source.unmounter.clone(), source.requests.clone());
    // The counters of the engine would change with reads of other images. The kernel forgets inodes on its own account.
    let counted = RequestKind::ALL.map(|kind| (kind != RequestKind::Forget).then_some(kind));
    let activity = move || {
        let requests = counted.map(|kind| kind.map_or(0, |kind| requests.of(kind)));
        (image.reader().volume().own_counters(), requests)
    };
    let work = move || {
        let mut counters = activity();
        let mut since = Instant::now();
        while unmounter.is_mounted() {
            thread::sleep(GLANCE.min(idle));
            let now = activity();
            if now != counters {
                (counters, since) = (now, Instant::now());
            } else if since.elapsed() >= idle {
                // Reads of cached bytes do not reach the mount. If a program still uses it, the unmount fails.
                if unmounter.unmount(Detach::Never).is_ok() {
                    return;
                }
                since = Instant::now();
            }
        }
    };
    // Without this thread the image stays mounted, as without the option.
    if let Err(error) = thread::Builder::new().name("floe-idle".to_owned()).spawn(work) {
        log.remark(format_args!("the image stays mounted when it is idle: no thread can be started: {error}"));
    }
}
