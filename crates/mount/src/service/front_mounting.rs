//! Mounts behind the kernel's EROFS.
//!
//! The broker makes the connection of a hidden FUSE mount, which a domain serves. The domain then asks for the front, and the broker
//! mounts it from kept metadata. A domain never writes the file that the kernel mounts: it renders to another one, and the broker keeps
//! a copy. Addresses follow from this file alone, so that the next domain can continue.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use floe_fuse::{ConnectionTerms, negotiate_hidden};
use floe_ipc::protocol::{MountRequest, RefusalKind, ServedMount};
use floe_keeper::{Access, FrontOrder, FrontTarget, HiddenMount, KeptMount, MadeFront, PendingFront, RingPermission};
use floe_remote_cache::CacheOptions;
use rustix::{fs::fstat, process::geteuid};

use super::{
    fronts::{KeptFor, Purpose},
    kept_image::{Attaching, FrontForUser, KeptFiles, KeptImage, Stage},
    ledger::{Ledger, Watched},
    messages::{Haste, NegotiatedTerms, Order, Rendering},
    mounting::{ImageFiles, record_of},
    record::path,
    refusal::Refusal,
    targets::{Target, mountpoint_of, no_front},
    user_fronts::{Admission, REQUEST_TIME_MAX, Room, UserFront},
    users::{Owner, UserLimits},
};
use crate::{
    control,
    front::{FOR_USER_OVERLAY, Front},
    handover::StateFile,
    kept_front::KeptFront,
    launch::ProfileChoice,
    options::Settings,
    prepared::schedule_of,
    remote,
};

/// How long a mount with `front=kernel` waits for metadata to be rendered.
const RENDER_TIME_MAX: Duration = Duration::from_secs(60);

/// Why the first mount of an image has no front.
const KEPT_LATER: &str = "its metadata is kept for the next mount";

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
        files: ImageFiles,
        target: Target<'_>,
        settings: &Settings,
    ) -> Result<(ServedMount, Vec<String>), Refusal> {
        let shown = path(&request.image);
        let is_remote = remote::is_url(&shown);
        let place = match is_remote {
            true => Err("the metadata of remote images is not kept".to_owned()),
            false => target.of_front(owner, settings),
        };
        let begun = place.and_then(|(place, admission)| {
            let front = self.find_front(domain, &request, &files.image, settings, admission)?;
            self.make_front((domain, owner), &request, &files, place, front, settings)
        });
        let obstacle = match begun {
            Ok(number) if target.is_detached() => {
                let has_front =
                    self.state.lock().mounts.get(&number).is_some_and(|kept| kept.for_user.detached.is_some());
                if !has_front {
                    self.take_back(number);
                    return Err(no_front());
                }
                return self.mounted(number);
            }
            Ok(number) => return self.attached(number, target.into_attaching()),
            Err(obstacle) if settings.front == Front::Kernel => {
                return Err((RefusalKind::Failed, format!("cannot mount the kernel's EROFS in front: {obstacle}")));
            }
            // The client has other ways.
            Err(obstacle) if target.is_detached() => return Err((RefusalKind::NotOffered, obstacle)),
            Err(obstacle) => obstacle,
        };
        // The client has mounted because there was no metadata yet.
        let later = target.front_of_later(owner, settings).filter(|_| !is_remote && !settings.mount.user_overlay);
        let later = later.and_then(|admission| Some((admission, request.clone(), files.image.try_clone().ok()?)));
        let obstacle = if later.is_some() { KEPT_LATER.to_owned() } else { obstacle };
        let number = self.next_number();
        let has_rings = settings.requires_rings();
        let (made, to_attach) = target.make(&settings.mount.kernel, has_rings)?;
        let waiter = self.keep(number, (domain, owner), request, (made, obstacle), files, settings)?;
        self.wait_until_served(number, &shown, &waiter)?;
        let mounted = self.attached(number, to_attach)?;
        if let Some((admission, request, image)) = later
            && let Ok(Some(kept)) = self.find_kept(&request, &image, settings, Some(admission))
            && !kept.has_kept()
            && self.fronts.refusal(&kept).is_none()
        {
            self.render_later(domain, &request, &image, kept);
        }
        Ok(mounted)
    }

    /// Mounts an image behind the kernel's EROFS, and returns the number of the mount. One of another user is attached to no directory
    /// yet. Otherwise, the reason why that is not possible.
    fn make_front(
        self: &Arc<Self>,
        of: (u64, Owner),
        request: &MountRequest,
        files: &ImageFiles,
        place: FrontTarget,
        front: FrontFiles,
        settings: &Settings,
    ) -> Result<u64, String> {
        let number = self.next_number();
        let begun =
            files.try_clone().and_then(|files| self.begin_front(number, of, request, (files, place), front, settings));
        let waiter = begun.map_err(|error| error.to_string())?;
        let served = self.wait_until_served(number, &path(&request.image), &waiter);
        served.map(|()| number).map_err(|(_, message)| message)
    }

    /// The kept metadata of an image for its front; it is rendered if it is missing and that is quick. Otherwise, the reason why there
    /// is none.
    fn find_front(
        &self,
        domain: u64,
        request: &MountRequest,
        image: &OwnedFd,
        settings: &Settings,
        admission: Option<Admission>,
    ) -> Result<FrontFiles, String> {
        if settings.front == Front::Fuse {
            return Err(String::new());
        }
        if settings.mount.user_overlay {
            return Err(FOR_USER_OVERLAY.to_owned());
        }
        if admission.is_none() && !matches!(settings.mount.kernel.access, None | Some(Access::All)) {
            return Err("the kernel's EROFS lets all users in, unlike private and allow_root".to_owned());
        }
        if !geteuid().is_root() {
            return Err("only root's service mounts the kernel's EROFS".to_owned());
        }
        let not_kept = |error: io::Error| format!("its metadata is not kept: {error}");
        let Some(mut kept) = self.find_kept(request, image, settings, admission).map_err(not_kept)? else {
            return Err(
                "the service mounts it only with kept metadata, which this image or its options exclude".to_owned()
            );
        };
        if !kept.has_kept() {
            if let Some(rule) = self.fronts.refusal(&kept) {
                return Err(format!("its metadata is not kept: {rule}"));
            }
            let haste = if settings.front == Front::Kernel { Haste::Now } else { Haste::NowIfQuick };
            let rendered = self.render(domain, request, image, &kept, haste).map_err(not_kept)?;
            match rendered {
                Some(file) => self.fronts.keep(&mut kept, &file).map_err(not_kept)?,
                None if settings.front == Front::Kernel => return Err("its metadata cannot be kept".to_owned()),
                None => {
                    self.render_later(domain, request, image, kept);
                    return Err(KEPT_LATER.to_owned());
                }
            }
        }
        let files = kept.files().map_err(not_kept)?;
        let (metadata, original) = files.ok_or("the kernel cannot mount files in the cache directory")?;
        Ok(FrontFiles { metadata, original })
    }

    /// The place of the kept metadata of an image, and what is there. `None` if nothing is kept.
    fn find_kept(
        &self,
        request: &MountRequest,
        image: &OwnedFd,
        settings: &Settings,
        admission: Option<Admission>,
    ) -> io::Result<Option<KeptFor>> {
        let (shown, image) = (path(&request.image), image.try_clone()?);
        let Some(admission) = admission else {
            let kept = KeptFront::of_open(&shown, File::from(image), settings)?;
            return Ok(kept.map(|kept| KeptFor::Service(Box::new(kept))));
        };
        let cache = settings.open.remote.cache_directory.clone().or_else(CacheOptions::default_directory);
        let Some(cache) = cache else { return Ok(None) };
        let bytes_max = self.users.as_ref().and_then(UserLimits::fronts_bytes).unwrap_or(0);
        let room = Room { bytes_max, held_bytes: self.nameless_bytes(admission.account) };
        let kept = UserFront::find((&shown, image), &cache, (admission, room), settings)?;
        Ok(Some(KeptFor::User(Box::new(kept))))
    }

    /// The size of the kept metadata that mounts of a user hold, and that has no name any more.
    fn nameless_bytes(&self, account: u32) -> u64 {
        let state = self.state.lock();
        let of_user = state.mounts.values().filter(|kept| kept.owner.account() == Some(account));
        let stats = of_user.filter_map(|kept| fstat(kept.files.metadata.as_ref()?).ok());
        let nameless: HashMap<u64, u64> =
            stats.filter(|stat| stat.st_nlink == 0).map(|stat| (stat.st_ino, stat.st_size.unsigned_abs())).collect();
        nameless.values().sum()
    }

    /// Has a domain render the metadata of an image, and waits for it. Returns the file, to which that domain can still write; `None`
    /// if the image does not permit it, or it is not quick.
    fn render(
        &self,
        domain: u64,
        request: &MountRequest,
        image: &OwnedFd,
        kept: &KeptFor,
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
    fn render_later(&self, domain: u64, request: &MountRequest, image: &OwnedFd, kept: KeptFor) {
        let rendering = self.rendering(request, &kept, Haste::Later);
        let (number, file) = (rendering.number, kept.file_to_render());
        let Ok((file, for_domain)) = file.and_then(|file| Ok((file.try_clone()?, file))) else { return };
        if self.fronts.begin(number, domain, Purpose::Later(kept, file))
            && self.order_rendering(domain, rendering, image, &for_domain).is_err()
        {
            self.fronts.forget(number);
        }
    }

    fn rendering(&self, request: &MountRequest, kept: &KeptFor, haste: Haste) -> Rendering {
        Rendering {
            number: self.next_number(),
            request: request.clone(),
            identity: kept.identity().to_vec(),
            algorithms: kept.algorithms().map(|algorithms| algorithms.to_number().into()),
            only_user: kept.admission().and_then(|admission| admission.rules.only_user),
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
        (domain, owner): (u64, Owner),
        request: &MountRequest,
        (files, place): (ImageFiles, FrontTarget),
        front: FrontFiles,
        settings: &Settings,
    ) -> io::Result<Attaching> {
        let place = match place {
            FrontTarget::Directory(directory) => {
                FrontTarget::Directory(mountpoint_of(directory).map_err(|(_, message)| io::Error::other(message))?)
            }
            detached @ FrontTarget::Detached { .. } => detached,
        };
        let state = StateFile::create()?.into();
        let (control_name, control) = control::UnnamedSocket::beside_others()?.into_parts();
        let has_rings = settings.requires_rings();
        let (device, hidden) = {
            let _permission = has_rings.then(RingPermission::give);
            HiddenMount::open()?
        };
        let terms = match owner {
            Owner::Service => None,
            // A process of the user must not keep others waiting.
            Owner::User(_) => Some(negotiate_hidden(device.try_clone()?, &settings.mount, REQUEST_TIME_MAX)?),
        };
        let terms = terms.map(|ConnectionTerms { minor, features }| NegotiatedTerms { minor, features });
        let FrontFiles { metadata, original } = front;
        let pending = PendingFront::new(hidden, place, metadata.try_clone()?, original);
        // Names are looked up with the rights of this process.
        let may_walk = owner == Owner::Service && settings.profile != ProfileChoice::Off;
        let mut options = settings.mount.kernel.clone();
        if owner != Owner::Service {
            // They cost no request here.
            options.acl = options.acl.or(Some(true));
        }
        let (schedule, connections) = (schedule_of(self.priority), &self.fronts.connections);
        let (mut keeper, socket) = KeptMount::of_front(pending, options, schedule, may_walk, connections)?;
        if has_rings {
            keeper.permit_rings();
        }
        // Until the front is mounted, there is nothing to be adopted.
        let for_user = FrontForUser { detached: None, terms };
        let record = record_of((number, owner), request, keeper.place(), &control_name, Some(&for_user));
        let record = record.seal(&self.key)?.into();
        let (sender, waiter) = mpsc::channel();
        let kept = KeptImage {
            domain,
            owner,
            stage: Stage::Attaching(sender),
            heir: None,
            keeper,
            request: request.clone(),
            files: KeptFiles {
                device,
                state,
                control: control.into(),
                record,
                image: files.image,
                devices: Vec::new(),
                metadata: Some(metadata),
            },
            launch: files.launch,
            format: String::new(),
            obstacle: String::new(),
            remarks: Vec::new(),
            end_waiters: Vec::new(),
            control_name,
            for_user,
        };
        self.watch(kept.keeper.socket(), Watched::Mount(number))?;
        self.state.lock().mounts.insert(number, kept);
        let attached = self.attach(number, &socket).map(|()| waiter);
        attached.inspect_err(|_| self.take_back(number))
    }

    /// Notes that a front is mounted, and tells its domain for the next broker. Returns `false` if the mount is not wanted any more.
    fn note_front(&self, number: u64, made: &mut MadeFront) -> bool {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(kept) = state.mounts.get_mut(&number) else { return false };
        kept.keeper.note_front(made);
        kept.for_user.detached = made.take_detached();
        // Without its name, the mount works.
        let _ = made.place().device().map(|device| kept.control_name.name_after(device));
        let of = (number, kept.owner);
        let record = record_of(of, &kept.request, made.place(), &kept.control_name, Some(&kept.for_user));
        if let Some((record, domain)) = record.seal(&self.key).ok().zip(state.domains.get(&kept.domain)) {
            kept.files.record = record.into();
            // If it has ended, that is an event of its own.
            let _ = domain.process.tell(&Order::Record { number }, &[kept.files.record.as_fd()]);
        }
        true
    }

    /// Mounts a front on a thread of its own: the kernel asks the domain behind it, which may be stuck.
    pub(super) fn put_front(self: &Arc<Self>, number: u64, order: FrontOrder) {
        let ledger = Arc::clone(self);
        let activity = self.upgrade.activity();
        let work = move || {
            let _activity = activity;
            let Some(mut made) = order.mount() else { return };
            if !ledger.note_front(number, &mut made) {
                return made.take_back();
            }
            if !made.can_read_ahead() {
                return made.tell(None, number);
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
