//! Mounts and unmounts for clients.

use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    time::Duration,
};

use floe_fuse::Mountpoint;
use floe_image::ShownName;
use floe_ipc::protocol::{DEVICES_MAX, MountRequest, PATH_BYTES_MAX, RefusalKind, ServedMount};
use floe_keeper::{Detach, Directory, KeeperSocket, KeptMount, Mounted, Place, UnmountError, UnmountReason};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};

use super::{
    domain_process::DomainProcess,
    kept_image::{Attaching, KeptFiles, KeptImage, Refusal, Stage},
    ledger::{Domain, Ledger, Watched, no_descriptors},
    messages::Order,
    record::{Record, path},
    settings::settings_of_request,
};
use crate::{
    control, failure::Failure, handover::StateFile, launch::ProfileChoice, options::Settings, prepared::schedule_of,
};

/// How long a domain may take to open an image. Its client waits a little longer.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(100);

/// How long an unmounted image may take to be closed.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// A domain whose predecessors have died this often gets no new mounts.
const EARLY_DEATHS_MAX: u32 = 2;

/// The open files of a request.
struct RequestFiles {
    image: OwnedFd,
    devices: Vec<OwnedFd>,
    directory: Directory,
}

impl Ledger {
    /// Mounts an image for a client. Returns the mount, and what is not quite as requested.
    ///
    /// # Errors
    /// The request is wrong, the kernel refuses the mount, or a domain cannot open the image. Nothing stays mounted.
    pub(super) fn mount(
        self: &Arc<Self>,
        request: MountRequest,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(ServedMount, Vec<String>), Refusal> {
        if self.is_stopping.load(Relaxed) {
            return Err((RefusalKind::Failed, "the service is being stopped".to_owned()));
        }
        let image = path(&request.image);
        let files = RequestFiles::check(&request, descriptors)?;
        let settings = settings_of_request(&request).map_err(refusal)?;
        let number = self.next_number();
        let domain = self.domain_for_new()?;
        let waiter = self.make_mount(number, domain, request, files, &settings);
        self.release(domain);
        let waiter = waiter?;
        let attached = waiter.recv_timeout(ATTACH_TIME_MAX);
        let refused = match attached {
            Ok(Ok(())) => {
                let mut state = self.state.lock();
                let domains = state.domains.clone();
                match state.mounts.get_mut(&number) {
                    Some(kept) => {
                        let process = domains.get(&kept.domain).map_or(0, |domain| domain.process.id);
                        return Ok((kept.shown(number, process), std::mem::take(&mut kept.remarks)));
                    }
                    None => return Err((RefusalKind::Failed, "it was unmounted at once".to_owned())),
                }
            }
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

    /// Mounts, and asks a domain to serve the mount. Returns the receiver of its answer.
    fn make_mount(
        self: &Arc<Self>,
        number: u64,
        domain: u64,
        request: MountRequest,
        files: RequestFiles,
        settings: &Settings,
    ) -> Result<Attaching, Refusal> {
        let RequestFiles { image, devices, directory } = files;
        let shown = directory.path().to_owned();
        let mountpoint = match Mountpoint::of_open(directory, &shown).map_err(|error| refusal(error.into()))? {
            Mountpoint::Directory(directory) => directory,
            Mountpoint::Descriptor(_) => return Err((RefusalKind::Usage, "it is no directory".to_owned())),
        };
        let prepared = || -> std::io::Result<(OwnedFd, control::UnnamedSocket)> {
            Ok((StateFile::create()?.into(), control::UnnamedSocket::new()?))
        };
        let (state, control) = prepared().map_err(|error| refusal(no_descriptors(error)))?;
        let options = &settings.mount.kernel;
        let made = Mounted::on(&mountpoint, options)
            .map_err(|failure| refusal(floe_fuse::MountError::of(&shown, failure).into()))?;
        // Its file system would be busy.
        drop(mountpoint);
        let Mounted { device, place, .. } = made;
        let unmounting = place.clone();
        let kept = || -> std::io::Result<(KeptImage, KeeperSocket, Attaching)> {
            let number_of_files = place.device().ok_or(std::io::ErrorKind::Unsupported)?;
            let (control_name, control) = control.named(number_of_files)?;
            let record = record_of(number, &request, &place, &control_name).seal()?.into();
            let may_walk = settings.profile != ProfileChoice::Off;
            let (keeper, socket) = KeptMount::new(place, options.clone(), schedule_of(self.priority), may_walk)?;
            let (sender, waiter) = mpsc::channel();
            let files = KeptFiles { device, state, control: control.into(), record, image, devices };
            let kept = KeptImage {
                domain,
                stage: Stage::Attaching(sender),
                keeper,
                request,
                files,
                format: String::new(),
                remarks: Vec::new(),
                end_waiters: Vec::new(),
                control_name,
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
        let gone = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let (process, attachment, files) = {
            let state = self.state.lock();
            let kept = state.mounts.get(&number).ok_or_else(gone)?;
            let domain = state.domains.get(&kept.domain).ok_or_else(gone)?;
            (Arc::clone(&domain.process), kept.attachment(number), kept.files.try_clone()?)
        };
        let descriptors: Vec<_> = [keeper.as_fd()].into_iter().chain(files.descriptors()).collect();
        process.tell(&Order::Attach { attachment }, &descriptors)
    }

    /// The number of a domain for a new mount. It does not end before it is [released](Self::release).
    fn domain_for_new(&self) -> Result<u64, Refusal> {
        let running = || {
            let mut state = self.state.lock();
            let good = state.domains.iter_mut().filter(|(_, domain)| domain.early_deaths < EARLY_DEATHS_MAX);
            good.min_by_key(|(number, _)| **number).map(|(number, domain)| {
                domain.expected += 1;
                *number
            })
        };
        if let Some(number) = running() {
            return Ok(number);
        }
        let _starting = self.starting.lock();
        if let Some(number) = running() {
            return Ok(number);
        }
        self.start_domain(0, 1).map_err(refusal)
    }

    /// Notes that a mount of a domain is made, or will not be.
    pub(super) fn release(&self, domain: u64) {
        if let Some(domain) = self.state.lock().domains.get_mut(&domain) {
            domain.expected -= 1;
        }
        self.end_if_unused(domain);
    }

    /// Starts a domain, for `expected` mounts that are being made. Returns its number.
    ///
    /// # Errors
    /// Its process cannot be started, or cannot be confined.
    pub(super) fn start_domain(&self, early_deaths: u32, expected: u32) -> Result<u64, Failure> {
        let number = self.next_number();
        let listener = self.directory.as_ref().map(|directory| directory.create(number));
        let listener = listener.transpose().unwrap_or_else(|error| {
            self.remark(format_args!("the next service will not know the mounts of process {number}: {error}"));
            None
        });
        let process = DomainProcess::start(&self.options, listener.as_ref().map(AsFd::as_fd));
        let process = Arc::new(process.inspect_err(|_| self.remove_name(number))?);
        let domain = Domain::new(Arc::clone(&process), early_deaths, expected);
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
    pub(super) fn take_back(&self, number: u64) {
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
        place.check_unmountable()?;
        place.unmount(detach)?;
        Ok(detach == Detach::Lazily || ended.recv_timeout(CLOSE_TIME_MAX).unwrap_or(false))
    }
}

impl RequestFiles {
    /// Checks the descriptors of a request: their number, their types, and what they are open for. The broker reads none of them.
    fn check(request: &MountRequest, descriptors: Vec<OwnedFd>) -> Result<Self, Refusal> {
        let wrong = |message: String| Err((RefusalKind::Usage, message));
        let MountRequest { image, devices, .. } = request;
        if devices.len() > DEVICES_MAX || descriptors.len() != devices.len() + 2 {
            return wrong("the request needs descriptors of the image, its devices and the directory".to_owned());
        }
        let mut paths = devices.iter().chain([image]);
        if paths.any(|path| path.len() > PATH_BYTES_MAX || path.contains(&0)) {
            return wrong("a path is too long, or has a zero byte".to_owned());
        }
        let mut descriptors = descriptors.into_iter();
        let (first, last) = (descriptors.next(), descriptors.next_back());
        let Some((image, directory)) = first.zip(last) else { return wrong("descriptors are missing".to_owned()) };
        let devices: Vec<OwnedFd> = descriptors.collect();
        let names = [&request.image].into_iter().chain(&request.devices);
        for (name, file) in names.zip([&image].into_iter().chain(&devices)) {
            if let Err(reason) = check_file(file) {
                return wrong(format!("{}: {reason}", Path::new(std::ffi::OsStr::from_bytes(name)).shown()));
            }
        }
        let is_path = fcntl_getfl(&directory).is_ok_and(|flags| flags.contains(OFlags::PATH));
        if !is_path {
            return wrong("the directory must be opened with O_PATH".to_owned());
        }
        match Directory::of_descriptor(directory) {
            Ok(directory) => Ok(Self { image, devices, directory }),
            Err(error) => Err((RefusalKind::Failed, format!("cannot find the directory: {error}"))),
        }
    }
}

/// What the next broker must know about a mount.
fn record_of(number: u64, request: &MountRequest, place: &Place, control: &control::Server) -> Record {
    let (control, (device, inode)) = control.name();
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    Record {
        number,
        request: request.clone(),
        directory: bytes(place.directory()),
        place: place.to_numbers(),
        control: bytes(control),
        control_inode: [device, inode],
    }
}

/// Checks that a descriptor is one of a regular file or a block device, open for reading alone.
pub(super) fn check_file(file: &OwnedFd) -> Result<(), String> {
    let stat = fstat(file).map_err(|error| error.to_string())?;
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::BlockDevice) {
        return Err("it is not a regular file or a block device".to_owned());
    }
    let flags = fcntl_getfl(file.as_fd()).map_err(|error| error.to_string())?;
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE != OFlags::RDONLY {
        return Err("it must be open for reading, and not for writing".to_owned());
    }
    Ok(())
}

/// The refusal of a request because of a failure in this process.
fn refusal(failure: Failure) -> Refusal {
    let kind = if let Failure::Usage(_) = failure { RefusalKind::Usage } else { RefusalKind::Failed };
    (kind, failure.to_string())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, openat};

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
            let checked = RequestFiles::check(&request(device_count), descriptors);
            assert_eq!(checked.is_ok(), is_right, "row {row}: {:?}", checked.err());
        }
    }
}
