//! Where mounts are made for clients.

use std::{os::fd::OwnedFd, path::PathBuf, sync::Arc};

use floe_fuse::{MountError, Mountpoint};
use floe_ipc::protocol::{MountTarget, PATH_BYTES_MAX, RefusalKind};
use floe_keeper::{
    DetachedMount, Directory, FrontTarget, KernelOptions, Mounted, Peer, PeerNamespaces, Place, RingPermission,
};
use rustix::{
    fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

use super::{
    ledger::Ledger,
    messages::Order,
    record::path,
    refusal::{Refusal, no_descriptors, refusal},
    user_fronts::Admission,
    users::{Caller, Owner, check_options},
};
use crate::{front::Front, options::Settings};

/// The device number of `/dev/fuse`.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// The last descriptor of a request.
pub(super) enum TargetFile {
    /// A directory.
    Directory(Directory),
    /// The connection of a mount that the client has made, with what the client says of it.
    Connection { device: OwnedFd, directory: PathBuf, number: (u32, u32) },
    /// The client attaches the mount itself.
    Detached(PathBuf),
}

/// Where a mount is made.
pub(super) enum Target<'caller> {
    /// On a directory of this mount namespace.
    Directory(Directory),
    /// On a directory of another user, in the mount namespace of its process.
    OfUser(Directory, &'caller Peer, PeerNamespaces),
    /// The client has made it.
    Connection { device: OwnedFd, directory: PathBuf, number: (u32, u32) },
    /// Another user attaches it, in the user namespace of its process.
    Detached(PathBuf, PeerNamespaces),
}

/// A mount that no domain serves yet.
pub(super) struct Made {
    /// The connection to the kernel.
    pub(super) device: OwnedFd,
    pub(super) place: Place,
    /// Whether the client has made it, somewhere.
    pub(super) is_of_client: bool,
}

/// A mount that is attached to a directory once it is served.
pub(super) struct ToAttach<'caller> {
    /// `None` for a front, which is made once it is served.
    mount: Option<DetachedMount>,
    directory: Directory,
    peer: &'caller Peer,
    namespaces: PeerNamespaces,
}

impl TargetFile {
    /// Checks the descriptor of a target.
    ///
    /// # Errors
    /// It is no directory opened with `O_PATH`, or no connection.
    pub(super) fn check(target: &MountTarget, file: Option<OwnedFd>) -> Result<Self, Refusal> {
        let wrong = |message: &str| Err((RefusalKind::Usage, message.to_owned()));
        let is_path = |directory: &[u8]| directory.len() <= PATH_BYTES_MAX && !directory.contains(&0);
        let file = match (target, file) {
            (MountTarget::Detached { directory }, _) if is_path(directory) => {
                return Ok(Self::Detached(path(directory)));
            }
            (MountTarget::Detached { .. }, _) => return wrong("a path is too long, or has a zero byte"),
            (_, Some(file)) => file,
            (_, None) => return wrong("descriptors are missing"),
        };
        match target {
            MountTarget::Detached { directory } => Ok(Self::Detached(path(directory))),
            MountTarget::Directory => {
                if !fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::PATH)) {
                    return wrong("the directory must be opened with O_PATH");
                }
                match Directory::of_descriptor(file) {
                    Ok(directory) => Ok(Self::Directory(directory)),
                    Err(error) => Err((RefusalKind::Failed, format!("cannot find the directory: {error}"))),
                }
            }
            MountTarget::Connection { directory, device: [major, minor] } => {
                if !is_path(directory) {
                    return wrong("a path is too long, or has a zero byte");
                }
                // O_PATH descriptors have no access mode.
                let is_open = fcntl_getfl(&file)
                    .is_ok_and(|flags| !flags.contains(OFlags::PATH) && flags & OFlags::RWMODE == OFlags::RDWR);
                if !is_open || !is_fuse_device(&file) {
                    return wrong(
                        "the connection must be that of a FUSE mount: /dev/fuse, open for reading and writing",
                    );
                }
                Ok(Self::Connection { device: file, directory: path(directory), number: (*major, *minor) })
            }
        }
    }
}

impl<'caller> Target<'caller> {
    /// Makes the mount, over io_uring if it `has_rings`. Returns it, and what is to be attached once it is served.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn make(
        self,
        options: &KernelOptions,
        has_rings: bool,
    ) -> Result<(Made, Option<ToAttach<'caller>>), Refusal> {
        match self {
            Self::Directory(directory) => {
                let shown = directory.path().to_owned();
                let mountpoint = mountpoint_of(directory)?;
                // For the first message of the kernel. Without it, the process that serves the mount says why there are no rings.
                let _permission = has_rings.then(RingPermission::give);
                let made = Mounted::on(&mountpoint, options)
                    .map_err(|failure| refusal(MountError::of(&shown, failure).into()))?;
                let Mounted { device, place, .. } = made;
                Ok((Made { device, place, is_of_client: false }, None))
            }
            Self::OfUser(directory, peer, namespaces) => {
                let (mount, device) = DetachedMount::for_user(peer, options)
                    .map_err(|failure| refusal(MountError::of(directory.path(), failure).into()))?;
                let made = Made { device, place: mount.place_on(&directory), is_of_client: false };
                Ok((made, Some(ToAttach { mount: Some(mount), directory, peer, namespaces })))
            }
            Self::Connection { device, directory, number } => {
                let place = Place::elsewhere(directory, number);
                Ok((Made { device, place, is_of_client: true }, None))
            }
            Self::Detached(..) => Err((RefusalKind::NotOffered, "only a front can be handed over".to_owned())),
        }
    }

    /// Where a front for this target is mounted, and whom of users it admits if it is for another user. Otherwise, the reason why there
    /// is none.
    pub(super) fn of_front(
        &self,
        owner: Owner,
        settings: &Settings,
    ) -> Result<(FrontTarget, Option<Admission>), String> {
        let text = |error: std::io::Error| error.to_string();
        match (self, owner) {
            (Self::Directory(directory), Owner::Service) => {
                Ok((FrontTarget::Directory(directory.try_clone().map_err(text)?), None))
            }
            (Self::OfUser(directory, ..), Owner::User(user)) => {
                let admission = Admission::of(user, settings, false)?;
                Ok((FrontTarget::Detached { path: directory.path().to_owned(), owners: None }, Some(admission)))
            }
            (Self::Detached(path, namespaces), Owner::User(user)) => {
                let admission = Admission::of(user, settings, true)?;
                let owners = Some(namespaces.users().try_clone_to_owned().map_err(text)?);
                Ok((FrontTarget::Detached { path: path.clone(), owners }, Some(admission)))
            }
            _ => Err("another process has mounted it".to_owned()),
        }
    }

    /// Whom the front of a later mount by this client admits, if that attaches one.
    pub(super) fn front_of_later(&self, owner: Owner, settings: &Settings) -> Option<Admission> {
        match (self, owner) {
            (Self::Connection { .. }, Owner::User(user)) if settings.front == Front::Auto => {
                Admission::of(user, settings, true).ok()
            }
            _ => None,
        }
    }

    /// What attaches a front for this target once it is served.
    pub(super) fn into_attaching(self) -> Option<ToAttach<'caller>> {
        match self {
            Self::OfUser(directory, peer, namespaces) => Some(ToAttach { mount: None, directory, peer, namespaces }),
            Self::Directory(_) | Self::Connection { .. } | Self::Detached(..) => None,
        }
    }

    /// Whether the client attaches it.
    pub(super) fn is_detached(&self) -> bool {
        matches!(self, Self::Detached(..))
    }
}

impl ToAttach<'_> {
    /// Attaches the mount to its directory, or the front that was made.
    ///
    /// # Errors
    /// The user may not mount there any more, or the kernel refuses. The mount ends then.
    pub(super) fn attach(self, front: impl FnOnce() -> Option<DetachedMount>) -> Result<(), Refusal> {
        let Self { mount, directory, peer, namespaces } = self;
        let Some(mount) = mount.or_else(front) else { return Err(no_front()) };
        mount.attach(&directory, peer, &namespaces).map_err(|error| refused_on(&directory, &error))
    }
}

impl Ledger {
    /// Where a mount for this client is made, if it may be; settings of other users become as strict as theirs must be.
    ///
    /// # Errors
    /// The user may not mount there, or with these options, or has reached a limit.
    pub(super) fn target_for<'caller>(
        &self,
        caller: &'caller Caller,
        file: TargetFile,
        settings: &mut Settings,
    ) -> Result<Target<'caller>, Refusal> {
        let (Owner::User(user), Some(limits)) = (caller.owner, &self.users) else {
            return match file {
                TargetFile::Directory(directory) => Ok(Target::Directory(directory)),
                TargetFile::Connection { device, directory, number } => {
                    Ok(Target::Connection { device, directory, number })
                }
                TargetFile::Detached(_) => {
                    Err((RefusalKind::Usage, "root attaches mounts without the service's help".to_owned()))
                }
            };
        };
        {
            let state = self.state.lock();
            limits.check(user, state.mounts_of(user.account), state.domains.values().map(|domain| domain.owner))?;
        }
        check_options(settings, limits, !matches!(file, TargetFile::Directory(_)))?;
        let directory = match file {
            TargetFile::Directory(directory) => directory,
            TargetFile::Detached(directory) => {
                return match caller.namespaces()? {
                    Some((_, namespaces)) if !namespaces.admit_mounts() => Ok(Target::Detached(directory, namespaces)),
                    _ => Err((RefusalKind::Usage, "the service attaches mounts in this mount namespace".to_owned())),
                };
            }
            TargetFile::Connection { device, directory, number } => {
                return Ok(Target::Connection { device, directory, number });
            }
        };
        let Some((peer, namespaces)) = caller.namespaces()? else {
            return Err((RefusalKind::Failed, "the client is unknown".to_owned()));
        };
        if !namespaces.admit_mounts() {
            let message = "the mount namespace belongs to a user, who mounts there without the service's help";
            return Err((RefusalKind::NotOffered, message.to_owned()));
        }
        directory.check_for(peer, &namespaces).map_err(|error| refused_on(&directory, &error))?;
        Ok(Target::OfUser(directory, peer, namespaces))
    }

    /// A connection over which the domain of a mount answers questions.
    ///
    /// # Errors
    /// There is no such mount that `owner` may change, or its domain does not take messages.
    pub(super) fn control_for_client(self: &Arc<Self>, owner: Owner, device: [u32; 2]) -> Result<OwnedFd, Refusal> {
        let unknown = || (RefusalKind::UnknownMount, "the service has no such mount of this user".to_owned());
        let number = self.number_of(owner, device).ok_or_else(unknown)?;
        let process = {
            let state = self.state.lock();
            let domain = state.mounts.get(&number).and_then(|kept| state.domains.get(&kept.domain));
            Arc::clone(&domain.ok_or_else(unknown)?.process)
        };
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| refusal(no_descriptors(error.into())))?;
        use std::os::fd::AsFd;
        process.tell(&Order::Converse { number }, &[theirs.as_fd()]).map_err(|error| {
            (RefusalKind::Failed, format!("the process that serves the mount does not answer: {error}"))
        })?;
        Ok(ours)
    }

    /// The options of a domain, in the notation of `-o`.
    pub(super) fn options_for(&self, owner: Owner) -> String {
        match (owner, &self.users) {
            (Owner::User(_), Some(limits)) => limits.options(&self.options),
            _ => self.options.clone(),
        }
    }
}

/// The refusal of a front that its process has not asked for.
pub(super) fn no_front() -> Refusal {
    (RefusalKind::Failed, "the process that reads images breaks the protocol".to_owned())
}

/// Checks that a directory can be mounted on.
pub(super) fn mountpoint_of(directory: Directory) -> Result<Directory, Refusal> {
    let shown = directory.path().to_owned();
    match Mountpoint::of_open(directory, &shown).map_err(|error| refusal(error.into()))? {
        Mountpoint::Directory(directory) => Ok(directory),
        Mountpoint::Descriptor(_) => Err((RefusalKind::Usage, "it is no directory".to_owned())),
    }
}

fn refused_on(directory: &Directory, error: &std::io::Error) -> Refusal {
    use floe_image::ShownName;
    (RefusalKind::Failed, format!("cannot mount on {}: {error}", directory.path().shown()))
}

fn is_fuse_device(file: &OwnedFd) -> bool {
    fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == FUSE_DEVICE
    })
}
