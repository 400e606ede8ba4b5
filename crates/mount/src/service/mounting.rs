//! Mounts and unmounts for clients.

use std::{
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    time::Duration,
};

use floe_image::ShownName;
use floe_ipc::protocol::{DEVICES_MAX, MountRequest, MountTarget, PATH_BYTES_MAX, RefusalKind, ServedMount};
use floe_keeper::{Detach, DetachedMount, KeeperSocket, KeptMount, Place, UnmountError, UnmountReason};
use rustix::{
    fs::{AtFlags, FileType, OFlags, StatxFlags, fcntl_getfl, statx},
    net::{SocketType, sockopt::socket_type},
};

use super::{
    domain_process::DomainProcess,
    kept_image::{Attaching, FrontForUser, KeptFiles, KeptImage, LaunchFiles, Stage},
    ledger::{Domain, Ledger, State, Watched},
    messages::Order,
    record::{Record, path},
    refusal::{Refusal, no_descriptors, refusal},
    settings::settings_of_request,
    targets::{Made, TargetFile, ToAttach},
    users::{Caller, Owner},
};
use crate::{
    control, failure::Failure, handover::StateFile, launch::ProfileChoice, options::Settings, prepared::schedule_of,
    remote,
};

/// How long a domain may take to open an image. Its client waits a little longer.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(100);

/// How long an unmounted image may take to be closed.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// A domain whose predecessors have died this often gets no new mounts.
const EARLY_DEATHS_MAX: u32 = 2;

/// `AT_STATX_DONT_SYNC`: statx reports what is known. rustix has no name for it with musl.
pub(super) const DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);

/// The open files of a request.
struct RequestFiles {
    /// `None` if it is remote.
    image: Option<OwnedFd>,
    devices: Vec<OwnedFd>,
    launch: Option<LaunchFiles>,
    target: TargetFile,
}

/// The open files that a mount needs.
pub(super) struct ImageFiles {
    /// The image, or a connection to it if it is remote.
    pub(super) image: OwnedFd,
    pub(super) devices: Vec<OwnedFd>,
    /// The launch to replay.
    pub(super) launch: Option<LaunchFiles>,
}

impl Ledger {
    /// Mounts an image for a client. Returns the mount, and what is not quite as requested.
    ///
    /// # Errors
    /// The request is wrong, the kernel refuses the mount, or a domain cannot open the image. Nothing stays mounted.
    pub(super) fn mount(
        self: &Arc<Self>,
        caller: &Caller,
        request: MountRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(ServedMount, Vec<String>), Refusal> {
        if self.is_stopping.load(Relaxed) {
            return Err((RefusalKind::Failed, "the service is being stopped".to_owned()));
        }
        let mut settings = settings_of_request(&request).map_err(refusal)?;
        let files = RequestFiles::check(&request, &settings.profile, descriptors)?;
        if caller.owner != Owner::Service || settings.open.remote.cache_directory.is_none() {
            // A path of another user is none for this process.
            settings.open.remote.cache_directory.clone_from(&self.cache_directory);
        }
        let RequestFiles { image, devices, launch, target } = files;
        let target = self.target_for(caller, target, &mut settings)?;
        let image = match image {
            Some(image) => image,
            None => self.open_remote(caller.owner, &request, &settings)?,
        };
        let domain = self.domain_for_new(caller.owner, settings.requires_rings())?;
        let files = ImageFiles { image, devices, launch };
        let mounted = self.mount_in((domain, caller.owner), request, files, target, &settings);
        self.release(domain);
        mounted
    }

    /// A connection to a remote image.
    fn open_remote(&self, owner: Owner, request: &MountRequest, settings: &Settings) -> Result<OwnedFd, Refusal> {
        let location = path(&request.image);
        if owner != Owner::Service {
            let message = "the service fetches images only for the user who runs it: mount with -o service=off";
            return Err((RefusalKind::NotOffered, message.to_owned()));
        }
        let opened = self.fetching.open(&location, &settings.open.remote);
        opened.map_err(|error| {
            let image = remote::without_credentials(&location);
            (RefusalKind::Failed, format!("{}: cannot start the process that fetches it: {error}", image.shown()))
        })
    }

    /// Waits until a domain serves a mount. Otherwise, nothing stays mounted.
    pub(super) fn wait_until_served(
        self: &Arc<Self>,
        number: u64,
        image: &Path,
        waiter: &Attaching,
    ) -> Result<(), Refusal> {
        let refused = match waiter.recv_timeout(ATTACH_TIME_MAX) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(refused)) => refused,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                (RefusalKind::Failed, format!("{}: it takes too long to open the image", image.shown()))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => (
                RefusalKind::Failed,
                format!("{}: the process that reads images died while it opened this one", image.shown()),
            ),
        };
        self.take_back(number);
        Err(refused)
    }

    /// Takes the front of another user, to attach it or to hand it over.
    pub(super) fn take_detached(&self, number: u64) -> Option<DetachedMount> {
        self.state.lock().mounts.get_mut(&number).and_then(|kept| kept.for_user.detached.take())
    }

    /// Attaches a mount that is served. Otherwise, nothing stays mounted.
    pub(super) fn attached(
        self: &Arc<Self>,
        number: u64,
        to_attach: Option<ToAttach<'_>>,
    ) -> Result<(ServedMount, Vec<String>), Refusal> {
        match to_attach.map_or(Ok(()), |to_attach| to_attach.attach(|| self.take_detached(number))) {
            Ok(()) => self.mounted(number),
            Err(refused) => {
                self.take_back(number);
                Err(refused)
            }
        }
    }

    /// A mount that works, with the remarks about it.
    pub(super) fn mounted(&self, number: u64) -> Result<(ServedMount, Vec<String>), Refusal> {
        let mut state = self.state.lock();
        let State { mounts, domains, .. } = &mut *state;
        match mounts.get_mut(&number) {
            Some(kept) => {
                let process = domains.get(&kept.domain).map_or(0, |domain| domain.process.id);
                Ok((kept.shown(number, process), std::mem::take(&mut kept.remarks)))
            }
            None => Err((RefusalKind::Failed, "it was unmounted at once".to_owned())),
        }
    }

    /// Keeps a mount that is no front because of an `obstacle`, and asks a domain to serve it. Returns the receiver of its answer.
    pub(super) fn keep(
        self: &Arc<Self>,
        number: u64,
        (domain, owner): (u64, Owner),
        request: MountRequest,
        (made, obstacle): (Made, String),
        ImageFiles { image, devices, launch }: ImageFiles,
        settings: &Settings,
    ) -> Result<Attaching, Refusal> {
        let Made { device, place, is_of_client } = made;
        let options = &settings.mount.kernel;
        let unmounting = place.clone();
        let kept = || -> std::io::Result<(KeptImage, KeeperSocket, Attaching)> {
            let (state, control) = (StateFile::create()?.into(), control::UnnamedSocket::beside_others()?);
            let (control_name, control) = match is_of_client {
                // A client can state any number.
                true => control.into_parts(),
                false => control.named(place.device().ok_or(std::io::ErrorKind::Unsupported)?)?,
            };
            let record = record_of((number, owner), &request, &place, &control_name, None).seal(&self.key)?.into();
            // Names are looked up with the rights of this process.
            let may_walk = owner == Owner::Service && settings.profile != ProfileChoice::Off;
            let (mut keeper, socket) = KeptMount::new(place, options.clone(), schedule_of(self.priority), may_walk)?;
            if settings.requires_rings() {
                keeper.permit_rings();
            }
            let (sender, waiter) = mpsc::channel();
            let files = KeptFiles { device, state, control: control.into(), record, image, devices, metadata: None };
            let kept = KeptImage {
                domain,
                owner,
                stage: Stage::Attaching(sender),
                heir: None,
                keeper,
                request,
                files,
                launch,
                format: String::new(),
                obstacle,
                remarks: Vec::new(),
                end_waiters: Vec::new(),
                control_name,
                for_user: FrontForUser::default(),
            };
            Ok((kept, socket, waiter))
        };
        let attached = kept().and_then(|(kept, socket, waiter)| {
            self.watch(kept.keeper.socket(), Watched::Mount(number))?;
            self.state.lock().mounts.insert(number, kept);
            self.attach(number, &socket).map(|()| waiter)
        });
        attached.map_err(|error| {
            self.take_back(number);
            // If there was no entry yet.
            let _ = unmounting.unmount(Detach::Lazily);
            (RefusalKind::Failed, format!("cannot pass the mount to the process that reads images: {error}"))
        })
    }

    /// Asks the domain of a mount to serve it.
    ///
    /// # Errors
    /// The mount or its domain is gone, or there are no descriptors left.
    pub(super) fn attach(&self, number: u64, keeper: &KeeperSocket) -> std::io::Result<()> {
        self.attach_in(number, None, keeper)
    }

    /// As [`Ledger::attach`], or asks another domain to take the mount over, with a connection to the process that serves it.
    ///
    /// # Errors
    /// As there.
    pub(super) fn attach_in(
        &self,
        number: u64,
        heir: Option<(u64, BorrowedFd<'_>)>,
        keeper: &KeeperSocket,
    ) -> std::io::Result<()> {
        let gone = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let (heir, from) = heir.unzip();
        let (process, mut attachment, launch, files) = {
            let mut state = self.state.lock();
            let State { mounts, domains, .. } = &mut *state;
            let kept = mounts.get_mut(&number).ok_or_else(gone)?;
            let domain = domains.get(&heir.unwrap_or(kept.domain)).ok_or_else(gone)?;
            (Arc::clone(&domain.process), kept.attachment(number), kept.launch.take(), kept.files.try_clone()?)
        };
        attachment.is_taken = from.is_some();
        // Only a front that another domain has served is mounted already.
        let is_continued = !attachment.format.is_empty();
        let renewed = attachment.front.as_mut().filter(|_| is_continued).and_then(|front| {
            let (transfer, thread) = self.fronts.renew(number)?;
            front.thread = Some(thread);
            Some(transfer.into_socket())
        });
        let first = [keeper.as_fd()].into_iter().chain(renewed.as_ref().map(AsFd::as_fd));
        let of_launch = launch.iter().flat_map(LaunchFiles::descriptors);
        let descriptors: Vec<_> = first.chain(from).chain(of_launch).chain(files.descriptors()).collect();
        process.tell(&Order::Attach { attachment }, &descriptors)
    }

    /// The number of a domain for a new mount; one for this mount alone if it `has_rings`. It does not end before it is
    /// [released](Self::release).
    fn domain_for_new(&self, owner: Owner, has_rings: bool) -> Result<u64, Refusal> {
        if has_rings {
            return self.start_domain(owner, true).map_err(refusal);
        }
        let running = || {
            let mut state = self.state.lock();
            let is_good = |domain: &Domain| {
                let is_shared = !domain.has_rings && !domain.is_retiring;
                domain.owner == owner && domain.early_deaths < EARLY_DEATHS_MAX && is_shared
            };
            let good = state.domains.iter_mut().filter(|(_, domain)| is_good(domain));
            good.min_by_key(|(number, _)| **number).map(|(number, domain)| {
                domain.expected += 1;
                *number
            })
        };
        if let Some(number) = running() {
            return Ok(number);
        }
        // The process of another user may take as long as that user likes.
        let _starting = (owner == Owner::Service).then(|| self.starting.lock());
        if let Some(number) = running() {
            return Ok(number);
        }
        self.start_domain(owner, false).map_err(refusal)
    }

    /// Notes that a mount of a domain is made, or will not be.
    pub(super) fn release(&self, domain: u64) {
        if let Some(domain) = self.state.lock().domains.get_mut(&domain) {
            domain.expected -= 1;
        }
        self.end_fetching_if_unused();
        self.end_if_unused(domain);
    }

    /// Starts a domain, for mounts that are being made until it is [released](Self::release); over io_uring if it `has_rings`. Returns
    /// its number.
    ///
    /// # Errors
    /// Its process cannot be started, or cannot be confined.
    pub(super) fn start_domain(&self, owner: Owner, has_rings: bool) -> Result<u64, Failure> {
        let number = self.next_number();
        let user = match (owner, &self.users) {
            (Owner::User(user), Some(limits)) => Some((limits.domain_user(user), limits)),
            _ => None,
        };
        let listener = self.directory.as_ref().map(|directory| directory.create(number));
        let listener = listener.transpose().unwrap_or_else(|error| {
            self.remark(format_args!("the next service will not know the mounts of process {number}: {error}"));
            None
        });
        let (options, listener) = (self.options_for(owner), listener.as_ref().map(AsFd::as_fd));
        let process = DomainProcess::start(&options, user, listener, has_rings);
        let process = Arc::new(process.inspect_err(|_| self.remove_name(number))?);
        let mut domain = Domain::new(Arc::clone(&process), owner, 1);
        domain.has_rings = has_rings;
        self.state.lock().domains.insert(number, domain);
        let watched = self
            .watch(process.socket(), Watched::Domain(number))
            .and_then(|()| self.watch(process.end(), Watched::DomainEnd(number)));
        watched.map_err(|error| {
            self.state.lock().domains.remove(&number);
            self.remove_name(number);
            process.kill();
            no_descriptors(error.into())
        })?;
        Ok(number)
    }

    /// Unmounts a mount that no domain serves, and forgets it.
    pub(super) fn take_back(self: &Arc<Self>, number: u64) {
        let place = self.state.lock().mounts.get(&number).map(|kept| kept.place().clone());
        if let Some(place) = place {
            let _ = place.unmount(Detach::Lazily);
            self.forget(number);
        }
    }

    /// Unmounts a mount, and waits until its image is closed, unless this is done lazily. Returns whether it is.
    ///
    /// # Errors
    /// It is not mounted there any more, covered by another mount, or in use.
    pub(super) fn unmount(&self, number: u64, detach: Detach) -> Result<bool, UnmountError> {
        self.unmount_by(number, detach, |place| {
            place.check_unmountable()?;
            place.unmount(detach)
        })
    }

    /// As [`Ledger::unmount`], by other means.
    ///
    /// # Errors
    /// As those.
    pub(super) fn unmount_by(
        &self,
        number: u64,
        detach: Detach,
        unmount: impl FnOnce(&Place) -> Result<(), UnmountError>,
    ) -> Result<bool, UnmountError> {
        let (sender, ended) = mpsc::channel();
        let place = {
            let mut state = self.state.lock();
            state.mounts.get_mut(&number).map(|kept| {
                kept.end_waiters.push(sender);
                kept.place().clone()
            })
        };
        let Some(place) = place else {
            return Err(UnmountError { path: PathBuf::new(), reason: UnmountReason::NotMounted });
        };
        unmount(&place)?;
        Ok(detach == Detach::Lazily || ended.recv_timeout(CLOSE_TIME_MAX).unwrap_or(false))
    }
}

impl ImageFiles {
    /// Copies of the descriptors.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self {
            image: self.image.try_clone()?,
            devices: self.devices.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>()?,
            launch: self.launch.as_ref().map(LaunchFiles::try_clone).transpose()?,
        })
    }
}

impl RequestFiles {
    /// Checks the descriptors of a request: their number, their types, and what they are open for. The broker reads none of them.
    fn check(request: &MountRequest, launch: &ProfileChoice, descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let wrong = |message: String| Err((RefusalKind::Usage, message));
        let MountRequest { image, devices, .. } = request;
        let is_remote = remote::is_url(&path(image));
        let target_count = usize::from(!matches!(request.target, MountTarget::Detached { .. }));
        let profile_path = match launch {
            ProfileChoice::File(path) => Some(path.as_os_str().as_bytes().to_vec()),
            _ => None,
        };
        let file_count = devices.len() + usize::from(!is_remote) + usize::from(profile_path.is_some());
        let has_walk = profile_path.is_some() && descriptors.len() == file_count + 1 + target_count;
        let walk_count = usize::from(has_walk);
        if devices.len() > DEVICES_MAX || descriptors.len() != file_count + walk_count + target_count {
            return wrong(
                "the request needs descriptors of the image, its devices, its profile and the target".to_owned(),
            );
        }
        let mut paths = devices.iter().chain([image]);
        if paths.any(|path| path.len() > PATH_BYTES_MAX || path.contains(&0)) {
            return wrong("a path is too long, or has a zero byte".to_owned());
        }
        let mut descriptors = descriptors.into_iter();
        let image = if is_remote { None } else { descriptors.next() };
        let devices: Vec<OwnedFd> = descriptors.by_ref().take(devices.len()).collect();
        let profile = profile_path.as_ref().and_then(|_| descriptors.next());
        let walk = if has_walk { descriptors.next() } else { None };
        let target = descriptors.next();
        let names = image.iter().map(|_| &request.image).chain(&request.devices).chain(&profile_path);
        for (name, file) in names.zip(image.iter().chain(&devices).chain(&profile)) {
            if let Err(reason) = check_file(file) {
                return wrong(format!("{}: {reason}", Path::new(std::ffi::OsStr::from_bytes(name)).shown()));
            }
        }
        if walk.as_ref().is_some_and(|walk| socket_type(walk) != Ok(SocketType::SEQPACKET)) {
            return wrong("the connection to the process that looks up names is no socket of packets".to_owned());
        }
        let target = TargetFile::check(&request.target, target)?;
        let launch = profile.map(|profile| LaunchFiles { profile, walk });
        Ok(Self { image, devices, launch, target })
    }
}

/// What the next broker must know about a mount of an owner. A `front` is behind the kernel's EROFS, possibly with terms of its connection.
pub(super) fn record_of(
    (number, owner): (u64, Owner),
    request: &MountRequest,
    place: &Place,
    control: &control::Server,
    front: Option<&FrontForUser>,
) -> Record {
    let (control, (device, inode)) = control.name();
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    Record {
        number,
        request: request.clone(),
        directory: bytes(place.directory()),
        place: place.to_numbers(),
        control: bytes(control),
        control_inode: [device, inode],
        is_front: front.is_some(),
        user: owner.user(),
        terms: front.and_then(|front| front.terms),
    }
}

/// Checks that a descriptor is one of a regular file or a block device, open for reading alone.
pub(super) fn check_file(file: &OwnedFd) -> Result<(), String> {
    // The program that serves the file may hang.
    let stat =
        statx(file, c"", AtFlags::EMPTY_PATH | DONT_SYNC, StatxFlags::TYPE).map_err(|error| error.to_string())?;
    if !matches!(FileType::from_raw_mode(stat.stx_mode.into()), FileType::RegularFile | FileType::BlockDevice) {
        return Err("it is not a regular file or a block device".to_owned());
    }
    let flags = fcntl_getfl(file.as_fd()).map_err(|error| error.to_string())?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE != OFlags::RDONLY {
        return Err("it must be open for reading, and not for writing".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{CWD, Mode, openat},
        net::{AddressFamily, SocketFlags, socketpair},
    };

    use super::*;

    #[test]
    fn descriptors_are_checked_for_what_they_are() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("image");
        std::fs::write(&file, "bytes").expect("ours");
        let open = |path: &Path, flags: OFlags| openat(CWD, path, flags, Mode::empty()).expect("it is there");
        let image = || open(&file, OFlags::RDONLY);
        let directory = || open(folder.path(), OFlags::PATH | OFlags::DIRECTORY);
        let request = |device_count: usize| MountRequest {
            image: b"/image".to_vec(),
            devices: vec![b"/device".to_vec(); device_count],
            options: String::new(),
            target: MountTarget::Directory,
        };
        let pipe = || OwnedFd::from(std::io::pipe().expect("a pipe").0);
        for (row, device_count, descriptors, is_right) in [
            (1, 0, vec![image(), directory()], true),
            (2, 1, vec![image(), image(), directory()], true),
            (3, 1, vec![image(), directory()], false),
            (4, 0, vec![image(), image(), directory()], false),
            (5, 0, vec![], false),
            (6, 0, vec![directory()], false),
            (7, 0, vec![directory(), image()], false),
            (8, 0, vec![pipe(), directory()], false),
            (9, 0, vec![open(Path::new("/dev/null"), OFlags::RDONLY), directory()], false),
            (10, 0, vec![open(&file, OFlags::RDWR), directory()], false),
            (11, 0, vec![open(&file, OFlags::WRONLY), directory()], false),
            (12, 0, vec![open(&file, OFlags::PATH), directory()], false),
            (13, 0, vec![image(), open(folder.path(), OFlags::RDONLY)], false),
            (14, 1, vec![image(), pipe(), directory()], false),
            (15, DEVICES_MAX + 1, vec![image(), directory()], false),
        ] {
            let checked = RequestFiles::check(&request(device_count), &ProfileChoice::Image, descriptors);
            assert_eq!(checked.is_ok(), is_right, "row {row}: {:?}", checked.err());
        }
        let launch = ProfileChoice::File("/profile".into());
        let socket =
            |kind: SocketType| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket").0;
        for (row, device_count, descriptors, is_right) in [
            (1, 0, vec![image(), image(), directory()], true),
            (2, 1, vec![image(), image(), image(), directory()], true),
            (3, 0, vec![image(), directory()], false),
            (4, 0, vec![image(), pipe(), directory()], false),
            (5, 0, vec![image(), open(&file, OFlags::PATH), directory()], false),
            (6, 0, vec![image(), image(), socket(SocketType::SEQPACKET), directory()], true),
            (7, 0, vec![image(), image(), socket(SocketType::STREAM), directory()], false),
            (8, 0, vec![image(), image(), pipe(), directory()], false),
            (9, 0, vec![image(), image(), socket(SocketType::SEQPACKET), pipe(), directory()], false),
        ] {
            let checked = RequestFiles::check(&request(device_count), &launch, descriptors);
            assert_eq!(checked.is_ok(), is_right, "row {row} with a profile: {:?}", checked.err());
        }
    }
}
