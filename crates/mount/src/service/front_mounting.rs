//! Mounts behind the kernel's EROFS.
//!
//! The broker makes the connection of a hidden FUSE mount, which a domain serves. The domain then asks for the front, and the broker
//! mounts it from kept metadata. A domain never writes the file that the kernel mounts: it renders to another one, and the broker keeps
//! a copy. Addresses follow from this file alone, so that the next domain can continue.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use floe_ipc::protocol::{MountRequest, RefusalKind, ServedMount};
use floe_keeper::{Access, Directory, FrontOrder, HiddenMount, KeptMount, MadeFront, PendingFront};
use rustix::process::geteuid;

use super::{
    fronts::Purpose,
    kept_image::{Attaching, KeptFiles, KeptImage, Stage},
    ledger::{Ledger, Watched},
    messages::{Haste, Order, Rendering},
    mounting::record_of,
    record::path,
    refusal::Refusal,
    targets::{Target, mountpoint_of},
    users::Owner,
};
use crate::{
    control, front::Front, handover::StateFile, kept_front::KeptFront, launch::ProfileChoice, options::Settings,
    prepared::schedule_of,
};

/// How long a mount with `front=kernel` waits for metadata to be rendered.
const RENDER_TIME_MAX: Duration = Duration::from_secs(60);

/// The metadata of a front.
pub(super) struct FrontFiles {
    metadata: OwnedFd,
    /// The original, if the kernel reads data there.
    original: Option<OwnedFd>,
}

impl Ledger {
    /// Mounts an image in a domain: behind the kernel's EROFS if that is possible, else through FUSE.
    ///
    /// # Errors
    /// As for [`Ledger::mount`].
    pub(super) fn mount_in(
        self: &Arc<Self>,
        (domain, owner): (u64, Owner),
        request: MountRequest,
        (image, devices): (OwnedFd, Vec<OwnedFd>),
        target: Target<'_>,
        settings: &Settings,
    ) -> Result<(ServedMount, Vec<String>), Refusal> {
        let shown = path(&request.image);
        let front = match &target {
            Target::Directory(directory) if owner == Owner::Service => {
                self.mount_front(domain, &request, &image, directory, settings)
            }
            _ => Err("the service mounts it for the user who runs it, on a directory".to_owned()),
        };
        let obstacle = match front {
            Ok(mounted) => return Ok(mounted),
            Err(obstacle) if settings.front == Front::Kernel => {
                return Err((RefusalKind::Failed, format!("cannot mount the kernel's EROFS in front: {obstacle}")));
            }
            Err(obstacle) => obstacle,
        };
        let number = self.next_number();
        let (made, to_attach) = target.make(&settings.mount.kernel)?;
        let waiter = self.keep(number, (domain, owner), request, (made, obstacle), (image, devices), settings)?;
        self.wait_for_mount(number, &shown, &waiter, to_attach)
    }

    /// Mounts an image behind the kernel's EROFS. Otherwise, the reason why that is not possible.
    fn mount_front(
        self: &Arc<Self>,
        domain: u64,
        request: &MountRequest,
        image: &OwnedFd,
        directory: &Directory,
        settings: &Settings,
    ) -> Result<(ServedMount, Vec<String>), String> {
        let front = self.find_front(domain, request, image, settings)?;
        let number = self.next_number();
        let files = || -> io::Result<_> { Ok((image.try_clone()?, directory.try_clone()?)) };
        let begun = files().and_then(|files| self.begin_front(number, domain, request, files, front, settings));
        let waiter = begun.map_err(|error| error.to_string())?;
        let mounted = self.wait_for_mount(number, &path(&request.image), &waiter, None);
        mounted.map_err(|(_, message)| message)
    }

    /// The kept metadata of an image for its front; it is rendered if it is missing and that is quick. Otherwise, the reason why there
    /// is none.
    fn find_front(
        &self,
        domain: u64,
        request: &MountRequest,
        image: &OwnedFd,
        settings: &Settings,
    ) -> Result<FrontFiles, String> {
        if settings.front == Front::Fuse {
            return Err(String::new());
        }
        if !matches!(settings.mount.kernel.access, None | Some(Access::All)) {
            return Err("the kernel's EROFS lets all users in, unlike private and allow_root".to_owned());
        }
        if !geteuid().is_root() {
            return Err("only root's service mounts the kernel's EROFS".to_owned());
        }
        let not_kept = |error: io::Error| format!("its metadata is not kept: {error}");
        let opened = image.try_clone().map_err(not_kept)?;
        let kept = KeptFront::of_open(&path(&request.image), File::from(opened), settings).map_err(not_kept)?;
        let Some(mut kept) = kept else {
            return Err(
                "the service mounts it only with kept metadata, which this image or its options exclude".to_owned()
            );
        };
        if !kept.has_kept() {
            let haste = if settings.front == Front::Kernel { Haste::Now } else { Haste::NowIfQuick };
            let rendered = self.render(domain, request, image, &kept, haste).map_err(not_kept)?;
            match rendered {
                Some(file) => kept.keep_copy(&file).map_err(not_kept)?,
                None if settings.front == Front::Kernel => return Err("its metadata cannot be kept".to_owned()),
                None => {
                    self.render_later(domain, request, image, kept);
                    return Err("its metadata is kept for the next mount".to_owned());
                }
            }
        }
        let found = kept.files().ok_or("the kernel cannot mount files in the cache directory")?;
        let original = found.original.map(|original| original.try_clone_to_owned()).transpose();
        let cloned = || -> io::Result<FrontFiles> {
            Ok(FrontFiles { metadata: found.metadata.try_clone_to_owned()?, original: original? })
        };
        cloned().map_err(not_kept)
    }

    /// Has a domain render the metadata of an image, and waits for it. Returns the file, to which that domain can still write; `None`
    /// if the image does not permit it, or it is not quick.
    fn render(
        &self,
        domain: u64,
        request: &MountRequest,
        image: &OwnedFd,
        kept: &KeptFront,
        haste: Haste,
    ) -> io::Result<Option<File>> {
        let rendering = self.rendering(request, kept, haste);
        let (number, file) = (rendering.number, kept.file_to_render()?);
        let (sender, waiter) = mpsc::channel();
        self.fronts.begin(number, domain, Purpose::Mount(sender));
        let ordered = self.order_rendering(domain, rendering, image, &file);
        let is_done = ordered.map(|()| waiter.recv_timeout(RENDER_TIME_MAX).unwrap_or(false));
        self.fronts.forget(number);
        Ok(is_done?.then_some(file))
    }

    /// Has a domain render the metadata of an image for later mounts. If that fails, the next mount tries again.
    fn render_later(&self, domain: u64, request: &MountRequest, image: &OwnedFd, kept: KeptFront) {
        let rendering = self.rendering(request, &kept, Haste::Later);
        let (number, file) = (rendering.number, kept.file_to_render());
        let Ok((file, for_domain)) = file.and_then(|file| Ok((file.try_clone()?, file))) else { return };
        if self.fronts.begin(number, domain, Purpose::Later(Box::new(kept), file))
            && self.order_rendering(domain, rendering, image, &for_domain).is_err()
        {
            self.fronts.forget(number);
        }
    }

    fn rendering(&self, request: &MountRequest, kept: &KeptFront, haste: Haste) -> Rendering {
        Rendering {
            number: self.next_number(),
            request: request.clone(),
            identity: kept.identity().to_vec(),
            algorithms: kept.algorithms().map(|algorithms| algorithms.to_number().into()),
            haste,
        }
    }

    fn order_rendering(&self, domain: u64, rendering: Rendering, image: &OwnedFd, file: &File) -> io::Result<()> {
        let process = self.state.lock().domains.get(&domain).map(|domain| Arc::clone(&domain.process));
        let process = process.ok_or(io::ErrorKind::BrokenPipe)?;
        process.tell(&Order::Render { rendering }, &[image.as_fd(), file.as_fd()])
    }

    /// Makes the connection of a hidden mount, and asks a domain to serve it and to ask for the front. Returns the receiver of its
    /// answer.
    fn begin_front(
        self: &Arc<Self>,
        number: u64,
        domain: u64,
        request: &MountRequest,
        (image, directory): (OwnedFd, Directory),
        front: FrontFiles,
        settings: &Settings,
    ) -> io::Result<Attaching> {
        let directory = mountpoint_of(directory).map_err(|(_, message)| io::Error::other(message))?;
        let state = StateFile::create()?.into();
        let (control_name, control) = control::UnnamedSocket::beside_others()?.into_parts();
        let (device, hidden) = HiddenMount::open()?;
        let FrontFiles { metadata, original } = front;
        let pending = PendingFront::new(hidden, directory, metadata.try_clone()?, original);
        let may_walk = settings.profile != ProfileChoice::Off;
        let options = settings.mount.kernel.clone();
        let (keeper, socket) = KeptMount::of_front(pending, options, schedule_of(self.priority), may_walk)?;
        // Until the front is mounted, there is nothing to be adopted.
        let record = record_of(number, request, keeper.place(), &control_name, true).seal()?.into();
        let (sender, waiter) = mpsc::channel();
        let kept = KeptImage {
            domain,
            owner: Owner::Service,
            stage: Stage::Attaching(sender),
            keeper,
            request: request.clone(),
            files: KeptFiles {
                device,
                state,
                control: control.into(),
                record,
                image,
                devices: Vec::new(),
                metadata: Some(metadata),
            },
            format: String::new(),
            obstacle: String::new(),
            remarks: Vec::new(),
            end_waiters: Vec::new(),
            control_name,
        };
        self.watch(kept.keeper.socket(), Watched::Mount(number))?;
        self.state.lock().mounts.insert(number, kept);
        let attached = self.attach(number, &socket).map(|()| waiter);
        attached.inspect_err(|_| self.take_back(number))
    }

    /// Notes that a front is mounted, and tells its domain for the next broker. Returns `false` if the mount is not wanted any more.
    fn note_front(&self, number: u64, made: &MadeFront) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(kept) = state.mounts.get_mut(&number) else { return false };
        kept.keeper.note_front(made);
        // Without its name, the mount works.
        let _ = made.place().device().map(|device| kept.control_name.name_after(device));
        let record = record_of(number, &kept.request, made.place(), &kept.control_name, true).seal();
        if let Some((record, domain)) = record.ok().zip(state.domains.get(&kept.domain)) {
            kept.files.record = record.into();
            // If it has ended, that is an event of its own.
            let _ = domain.process.tell(&Order::Record { number }, &[kept.files.record.as_fd()]);
        }
        true
    }

    /// Mounts a front on a thread of its own: the kernel asks the domain behind it, which may be stuck.
    pub(super) fn put_front(self: &Arc<Self>, number: u64, order: FrontOrder) {
        let ledger = Arc::clone(self);
        let work = move || {
            let Some(made) = order.mount() else { return };
            if !ledger.note_front(number, &made) {
                return made.take_back();
            }
            let readaheads =
                ledger.fronts.readaheads(&schedule_of(ledger.priority), |table| ledger.watch_changes(table));
            made.tell(readaheads.as_ref().ok(), number);
            // It may have been unmounted before changes were watched.
            ledger.fronts.note_changes();
        };
        // Without a thread, the order is dropped, and with it the connection.
        let _ = thread::Builder::new().name("floe-mounting".to_owned()).spawn(work);
    }
}
