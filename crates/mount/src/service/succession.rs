//! What the broker leaves to its next program, which is executed in the same process: descriptors, and a file that tells what they are.
//!
//! The file is JSON, so that programs of other versions understand it: they ignore what they do not know, and what is new has a default.

use std::{
    env, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    path::PathBuf,
    sync::Arc,
};

use floe_fuse::InheritedDescriptors;
use floe_image::ShownName;
use floe_ipc::protocol::{self, MountRequest, MountTarget};
use floe_keeper::{FrontDescriptors, KeptMount, Place};
use serde::{Deserialize, Serialize};

use super::{
    domain_process::{DomainProcess, PassedProcess, STATE_VARIABLE},
    kept_image::{FrontForUser, KeptFiles, KeptImage, Stage},
    ledger::{Domain, Ledger, Watched},
    messages::NegotiatedTerms,
    mounting::record_of,
    settings::settings_of_request,
    users::Owner,
};
use crate::{control, failure::Failure, prepared::schedule_of, sealed_file::SealedFile};

/// The value of [`STATE_VARIABLE`] for a program that is to check whether it could continue the service whose file is its standard input.
pub(super) const CHECK: &str = "check";

/// What it prints if it could.
pub(super) const CHECKED: &str = "can continue";

/// The version of the file. A program that could not make sense of an earlier one increases it.
const SCHEMA: u32 = 1;

/// The maximum length of the file in bytes.
const BYTES_MAX: u64 = 1 << 30;

/// The state that a program leaves to the next one.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Succession {
    schema: u32,
    /// The version of the messages to clients.
    protocol: u32,
    pub(super) socket: Option<PassedSocket>,
    pub(super) users_socket: Option<PassedSocket>,
    pub(super) last_number: u64,
    pub(super) domains: Vec<PassedDomain>,
    pub(super) mounts: Vec<PassedMount>,
    pub(super) fronts: Vec<PassedFront>,
    pub(super) clients: Vec<PassedClient>,
    /// The processes that fetch remote images. They are left to themselves, but not as zombies.
    #[serde(default)]
    fetching: Vec<u32>,
}

/// A listening socket.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct PassedSocket {
    pub(super) listener: RawFd,
    /// Its name, with its device and inode numbers, if it is to be removed.
    pub(super) name: Option<(PathBuf, u64, u64)>,
}

/// A domain.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct PassedDomain {
    pub(super) number: u64,
    pub(super) owner: Owner,
    pub(super) process: PassedProcess<RawFd>,
    pub(super) has_unmanaged: bool,
    #[serde(default)]
    has_rings: bool,
}

/// A mount that a domain serves.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct PassedMount {
    pub(super) number: u64,
    domain: u64,
    owner: Owner,
    image_path: Vec<u8>,
    device_paths: Vec<Vec<u8>>,
    options: String,
    target: PassedTarget,
    directory: PathBuf,
    place: [u64; 7],
    control: PathBuf,
    control_inode: (u64, u64),
    format: String,
    obstacle: String,
    /// The minor version and the features of the protocol, if the broker has negotiated them.
    #[serde(default)]
    terms: Option<(u32, u64)>,
    connection: RawFd,
    state: RawFd,
    control_socket: RawFd,
    image: RawFd,
    devices: Vec<RawFd>,
    metadata: Option<RawFd>,
}

/// Where a client wanted its mount.
#[derive(Clone, Serialize, Deserialize, Debug)]
enum PassedTarget {
    Directory,
    Connection { directory: Vec<u8>, device: [u32; 2] },
    Detached { directory: Vec<u8> },
}

/// The readahead in a front.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct PassedFront {
    pub(super) number: u64,
    socket: RawFd,
    image: RawFd,
    root: Option<RawFd>,
}

/// A connected client.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct PassedClient {
    pub(super) socket: RawFd,
    pub(super) has_greeted: bool,
    /// Whether it has asked for this program, and waits for the answer.
    pub(super) has_asked: bool,
}

impl Ledger {
    /// Takes the domains and mounts of an earlier program of this process. What cannot be taken is reported.
    pub(super) fn continue_all(&self, succession: &mut Succession, inherited: &mut InheritedDescriptors) {
        self.reserve_numbers(succession.last_number);
        self.fetching.take_children(std::mem::take(&mut succession.fetching));
        for PassedDomain { number, owner, process, has_unmanaged, has_rings } in std::mem::take(&mut succession.domains)
        {
            let (id, added) = (process.id, process.take(inherited).map(DomainProcess::passed));
            let added = added.and_then(|process| {
                let mut domain = Domain::new(Arc::new(process), owner, 0);
                (domain.has_unmanaged, domain.has_rings) = (has_unmanaged, has_rings);
                self.state.lock().domains.insert(number, domain.clone());
                self.watch(domain.process.socket(), Watched::Domain(number))?;
                Ok(self.watch(domain.process.end(), Watched::DomainEnd(number))?)
            });
            if let Err(error) = added {
                self.remark(format_args!("process {id}: its mounts are served, but not managed: {error}"));
            }
        }
        for mount in std::mem::take(&mut succession.mounts) {
            if let Err(error) = self.continue_passed(&mount, inherited) {
                if let Some(domain) = self.state.lock().domains.get_mut(&mount.domain) {
                    domain.has_unmanaged = true;
                }
                let directory = mount.directory.shown();
                self.remark(format_args!("{directory}: the mount is served, but not managed: {error}"));
            }
        }
        for front in std::mem::take(&mut succession.fronts) {
            // The front works without readahead.
            let _ = self.continue_front(&front, inherited);
        }
    }

    fn continue_passed(&self, mount: &PassedMount, inherited: &mut InheritedDescriptors) -> io::Result<()> {
        let (request, place) = (mount.request(), mount.place());
        let settings = settings_of_request(&request).map_err(|failure| io::Error::other(failure.to_string()))?;
        // Until another domain serves the mount, it has no keeper.
        let (keeper, _) = KeptMount::new(place, settings.mount.kernel, schedule_of(self.priority), false)?;
        let control_name = control::Server::of_named(mount.control.clone(), mount.control_inode);
        let terms = mount.terms.map(|(minor, features)| NegotiatedTerms { minor, features });
        let for_user = FrontForUser { detached: None, terms };
        let (of, front) = ((mount.number, mount.owner), mount.metadata.as_ref().map(|_| &for_user));
        let record = record_of(of, &request, keeper.place(), &control_name, front);
        let files = mount.take(inherited, record.seal(&self.key)?.into())?;
        let kept = KeptImage {
            domain: mount.domain,
            owner: mount.owner,
            stage: Stage::Served,
            heir: None,
            keeper,
            request,
            files,
            launch: None,
            format: mount.format.clone(),
            obstacle: mount.obstacle.clone(),
            remarks: Vec::new(),
            end_waiters: Vec::new(),
            control_name,
            for_user,
        };
        self.state.lock().mounts.insert(mount.number, kept);
        Ok(())
    }

    fn continue_front(&self, front: &PassedFront, inherited: &mut InheritedDescriptors) -> io::Result<()> {
        let PassedFront { number, socket, image, root } = *front;
        let mut take = |number: RawFd| inherited.take(number);
        let descriptors =
            FrontDescriptors { socket: take(socket)?, image: take(image)?, root: root.map(take).transpose()? };
        let place = self.state.lock().mounts.get(&number).map(|kept| kept.place().clone());
        let place = place.ok_or(io::ErrorKind::NotFound)?;
        let readaheads = self.fronts.readaheads(&schedule_of(self.priority), |table| self.watch_changes(table))?;
        readaheads.add_passed(number, place, descriptors)
    }
}

/// A service that an earlier program of this process has left to this one.
#[derive(Debug)]
pub struct Continued {
    pub(super) succession: Succession,
    pub(super) inherited: InheritedDescriptors,
}

impl Continued {
    /// The service that an earlier program of this process has left to this one; `None` if there was none. Must be called once, before
    /// this process has opened any file but those of its start.
    ///
    /// # Errors
    /// What it has left is damaged, or of another version.
    pub fn find() -> Result<Option<Self>, Failure> {
        let Some(number) = env::var(STATE_VARIABLE).ok().filter(|value| value != CHECK) else { return Ok(None) };
        let failed = |error: io::Error| Failure::failed(format!("cannot continue the service: {error}"));
        let number = number.parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let Some((inherited, file)) = InheritedDescriptors::find(number).map_err(failed)? else { return Ok(None) };
        let succession = Succession::read(file).map_err(failed)?;
        Ok(Some(Self { succession, inherited }))
    }

    /// Whether other users are served.
    pub fn has_users(&self) -> bool {
        self.succession.users_socket.is_some()
    }
}

impl Succession {
    /// What `ledger` leaves. `pass` gets all descriptors and returns the numbers under which the next program has them.
    ///
    /// # Errors
    /// Those of `pass`.
    pub(super) fn of(
        ledger: &Ledger,
        sockets: (PassedSocket, Option<PassedSocket>),
        clients: Vec<PassedClient>,
        pass: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<RawFd>,
    ) -> io::Result<Self> {
        let fronts = ledger.fronts.pass(&mut *pass)?;
        let state = ledger.state.lock();
        let mut domains = Vec::new();
        for (number, domain) in &state.domains {
            domains.push(PassedDomain {
                number: *number,
                owner: domain.owner,
                process: domain.process.pass(&mut *pass)?,
                has_unmanaged: domain.has_unmanaged,
                has_rings: domain.has_rings,
            });
        }
        let mounts = state.mounts.iter().map(|(number, kept)| PassedMount::of(*number, kept, &mut *pass));
        let mounts = mounts.collect::<io::Result<_>>()?;
        let last_number = state.last_number();
        let (socket, users_socket) = sockets;
        let fronts = fronts.into_iter().map(|(number, front)| {
            let FrontDescriptors { socket, image, root } = front;
            PassedFront { number, socket, image, root }
        });
        Ok(Self {
            schema: SCHEMA,
            protocol: protocol::VERSION,
            socket: Some(socket),
            users_socket,
            last_number,
            domains,
            mounts,
            fronts: fronts.collect(),
            clients,
            fetching: ledger.fetching.children(),
        })
    }

    /// The file.
    ///
    /// # Errors
    /// There is no memory, or there are no descriptors left.
    pub(super) fn seal(&self) -> io::Result<SealedFile> {
        SealedFile::new("floe-service", &serde_json::to_vec(self)?)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It is damaged, or of another version.
    pub(super) fn read(file: OwnedFd) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Beginning {
            schema: u32,
        }
        let bytes = SealedFile::of(file)?.bytes(BYTES_MAX)?;
        match serde_json::from_slice::<Beginning>(&bytes)?.schema {
            SCHEMA => Ok(serde_json::from_slice(&bytes)?),
            _ => Err(io::Error::other("its version is another one: stop it, and start the other program")),
        }
    }

    /// Whether the clients speak the version of the messages that this program does.
    pub(super) fn has_same_clients(&self) -> bool {
        self.protocol == protocol::VERSION
    }
}

impl PassedMount {
    fn of(
        number: u64,
        kept: &KeptImage,
        pass: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<RawFd>,
    ) -> io::Result<Self> {
        let KeptImage { domain, owner, stage, request, files, format, obstacle, control_name, for_user, .. } = kept;
        if !matches!(stage, Stage::Served) || for_user.detached.is_some() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // The next program writes a record of its own version.
        let KeptFiles { device, state, control, record: _, image, devices, metadata } = files;
        let target = match request.target.clone() {
            MountTarget::Directory => PassedTarget::Directory,
            MountTarget::Connection { directory, device } => PassedTarget::Connection { directory, device },
            MountTarget::Detached { directory } => PassedTarget::Detached { directory },
        };
        let (control_path, control_inode) = control_name.name();
        Ok(Self {
            number,
            domain: *domain,
            owner: *owner,
            image_path: request.image.clone(),
            device_paths: request.devices.clone(),
            options: request.options.clone(),
            target,
            directory: kept.place().directory().to_owned(),
            place: kept.place().to_numbers(),
            control: control_path.to_owned(),
            control_inode,
            format: format.clone(),
            obstacle: obstacle.clone(),
            terms: for_user.terms.map(|terms| (terms.minor, terms.features)),
            connection: pass(device.as_fd())?,
            state: pass(state.as_fd())?,
            control_socket: pass(control.as_fd())?,
            image: pass(image.as_fd())?,
            devices: devices.iter().map(|device| pass(device.as_fd())).collect::<io::Result<_>>()?,
            metadata: metadata.as_ref().map(|metadata| pass(metadata.as_fd())).transpose()?,
        })
    }

    /// What its client has requested.
    pub(super) fn request(&self) -> MountRequest {
        let target = match self.target.clone() {
            PassedTarget::Directory => MountTarget::Directory,
            PassedTarget::Connection { directory, device } => MountTarget::Connection { directory, device },
            PassedTarget::Detached { directory } => MountTarget::Detached { directory },
        };
        let (image, devices) = (self.image_path.clone(), self.device_paths.clone());
        MountRequest { image, devices, options: self.options.clone(), target }
    }

    /// Where it is.
    pub(super) fn place(&self) -> Place {
        Place::from_numbers(self.place, self.directory.clone())
    }

    /// Takes its descriptors. `record` is its record for the next broker.
    ///
    /// # Errors
    /// One of them is not open.
    pub(super) fn take(&self, inherited: &mut InheritedDescriptors, record: OwnedFd) -> io::Result<KeptFiles> {
        let mut take = |number: RawFd| inherited.take(number);
        Ok(KeptFiles {
            device: take(self.connection)?,
            state: take(self.state)?,
            control: take(self.control_socket)?,
            record,
            image: take(self.image)?,
            devices: self.devices.iter().map(|number| take(*number)).collect::<io::Result<_>>()?,
            metadata: self.metadata.map(take).transpose()?,
        })
    }
}

impl PassedProcess<RawFd> {
    /// Takes its descriptors.
    ///
    /// # Errors
    /// One of them is not open.
    pub(super) fn take(self, inherited: &mut InheritedDescriptors) -> io::Result<PassedProcess<OwnedFd>> {
        let Self { socket, process, main_thread, id, version, group } = self;
        Ok(PassedProcess {
            socket: inherited.take(socket)?,
            process: inherited.take(process)?,
            main_thread: inherited.take(main_thread)?,
            id,
            version,
            group,
        })
    }
}
