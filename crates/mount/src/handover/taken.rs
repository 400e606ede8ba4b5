//! The process that takes a mount over.

use std::{
    env,
    ffi::OsString,
    fs::File,
    io,
    os::fd::OwnedFd,
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use floe::Image;
use floe_front::KeptImage;
use floe_fuse::{Inherited, Mount, MountSetup, MountStart, passed_descriptors};
use floe_image::ShownName;
use floe_keeper::{FrontTransfer, MountTable, Place};

use super::{
    Invocation, ServiceManager, State, StateFile,
    service_manager::{AUTO_UNMOUNT, DEVICE, STATE},
    state::{file_of, identity},
};
use crate::{
    control::{Answer, Client, Question, read_answer, read_answer_with_descriptors, write_line},
    daemon,
    failure::Failure,
    front::{Behind, Fronted, behind_kept},
};

/// The environment variable that tells a process to take over a mount from the process that serves it. Its value is the device
/// number of the mount, `major:minor`: the directory in the arguments may lead to another mount by now.
const VARIABLE: &str = "FLOE_UPGRADES";

/// How long the serving process may take for each answer. It waits for requests in progress before the last one.
const PATIENCE: Duration = Duration::from_secs(40);

/// A mount that this process takes over.
pub(crate) struct Taken {
    pub state: State,
    inherited: Inherited,
    state_file: Option<File>,
    /// The connection to the process that serves it, unless that process has crashed.
    from: Option<UnixStream>,
    /// The front, if the connection is that of a hidden mount.
    front: Option<TakenFront>,
}

/// A front that another process has served.
pub(crate) struct TakenFront {
    /// Its metadata.
    pub(crate) kept: KeptImage,
    /// The transfer into it, if the service reads ahead there.
    pub(crate) transfer: Option<FrontTransfer>,
}

/// Whether this process was started by `floe upgrade`.
pub fn is_upgrade() -> bool {
    env::var_os(VARIABLE).is_some()
}

/// Starts `program` in place of the process that was started with `invocation` and serves `mounted`, and waits until it serves
/// that mount. Returns what it wrote to standard error.
///
/// # Errors
/// The program fails; the other process serves the mount as before.
pub fn start_successor(program: &Path, invocation: &Invocation, mounted: &Client) -> Result<String, Failure> {
    let mut arguments = invocation.arguments.clone().into_iter();
    let mut command = Command::new(program);
    command.arg0(arguments.next().unwrap_or_else(|| OsString::from("floe"))).args(arguments);
    let (major, minor) = mounted.device();
    command.current_dir(&invocation.working_directory).env(VARIABLE, format!("{major}:{minor}"));
    daemon::launch(command)
}

impl Taken {
    /// Finds the mount on `directory` that this process is to take over, if there is one: from the process that serves it
    /// now, or from the service manager. Never accesses the mount, which may have no server.
    ///
    /// # Errors
    /// The process that serves the mount refuses.
    pub(crate) fn find(directory: &Path, manager: Option<&ServiceManager>) -> Result<Option<Self>, Failure> {
        if is_upgrade() {
            let renamed = mountpoint_of_upgrade();
            return Self::from_process(renamed.as_deref().unwrap_or(directory)).map(Some);
        }
        let passed = passed_descriptors();
        if passed.is_empty() {
            return Ok(None);
        }
        let taken = Self::from_passed(passed).and_then(|taken| taken.on(directory));
        if let (None, Some(manager)) = (&taken, manager) {
            // The mount was unmounted, or is another one.
            manager.forget();
        }
        Ok(taken)
    }

    /// A mount that the service keeps. Its process has ended, or stops when it is asked over the connection `from`.
    ///
    /// # Errors
    /// The memory file has no valid state.
    pub(crate) fn of_kept(
        device: OwnedFd,
        state_file: File,
        place: Place,
        front: Option<TakenFront>,
        from: Option<UnixStream>,
    ) -> io::Result<Self> {
        let state = StateFile::read(&state_file)?;
        if !state.is_understood() {
            return Err(io::Error::other("its state is of another version of Floe"));
        }
        if let Some(from) = &from {
            from.set_read_timeout(Some(PATIENCE))?;
            from.set_write_timeout(Some(PATIENCE))?;
        }
        let mut taken = Self::new(state, vec![device], None, Some(state_file), from);
        (taken.inherited.place, taken.front) = (Some(place), front);
        Ok(taken)
    }

    fn from_process(directory: &Path) -> Result<Self, Failure> {
        let mounted = Client::find(directory)?;
        let shown = directory.shown();
        let failed = |error: io::Error| Failure::failed(format!("cannot take over {shown}: {error}"));
        let connection = mounted.connect()?;
        connection.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        connection.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        write_line(&connection, &Question::HandOver).map_err(failed)?;
        let (answer, descriptors) = read_answer_with_descriptors(&connection).map_err(failed)?;
        let (state, has_auto_unmount, has_state_file) = match answer {
            Answer::State { state, has_auto_unmount, has_state_file } => (*state, has_auto_unmount, has_state_file),
            Answer::Refused(reason) => return Err(Failure::failed(format!("{shown}: {reason}"))),
            _ => return Err(another_version(directory)),
        };
        if !state.is_understood() {
            return Err(another_version(directory));
        }
        let mut devices = descriptors;
        let state_file = if has_state_file { devices.pop() } else { None };
        let auto_unmount = if has_auto_unmount { devices.pop() } else { None };
        let taken = Self::new(state, devices, auto_unmount, state_file.map(file_of), Some(connection));
        // What this process adopts, it also unmounts.
        let another = || Failure::failed(format!("{shown}: the process that serves it hands over another mount"));
        taken.on(directory).ok_or_else(another)
    }

    fn from_passed(passed: Vec<(String, OwnedFd)>) -> Option<Self> {
        let (mut devices, mut auto_unmount, mut state_file) = (Vec::new(), None, None);
        for (name, descriptor) in passed {
            match name.as_str() {
                DEVICE => devices.push(descriptor),
                AUTO_UNMOUNT => auto_unmount = Some(descriptor),
                STATE => state_file = Some(file_of(descriptor)),
                _ => {}
            }
        }
        let state = StateFile::read(state_file.as_ref()?).ok().filter(State::is_understood)?;
        (!devices.is_empty()).then(|| Self::new(state, devices, auto_unmount, state_file, None))
    }

    fn new(
        state: State,
        devices: Vec<OwnedFd>,
        auto_unmount: Option<OwnedFd>,
        state_file: Option<File>,
        from: Option<UnixStream>,
    ) -> Self {
        let (directory, terms) = (PathBuf::from(&state.directory), state.terms());
        Self {
            state,
            inherited: Inherited { devices, auto_unmount, directory, place: None, terms },
            state_file,
            from,
            front: None,
        }
    }

    /// The same mount with the path that leads to it now, as a directory above may have another name; `None` if another mount is
    /// on `directory`.
    fn on(mut self, directory: &Path) -> Option<Self> {
        let table = MountTable::read().unwrap_or_default();
        self.inherited.directory = table.find(directory).ok()??.mountpoint.clone();
        self.inherited.is_mounted(self.state.device).then_some(self)
    }

    /// The directory of the mount: absolute and without links.
    pub(crate) fn directory(&self) -> &Path {
        &self.inherited.directory
    }

    /// The memory file with the state.
    pub(crate) fn take_state_file(&mut self) -> Option<File> {
        self.state_file.take()
    }

    /// Takes the mount over: lets the other process stop, and starts to serve.
    ///
    /// # Errors
    /// The image has changed, or the other process does not stop. That process continues to serve the mount.
    pub(crate) fn mount(self, image: &Image, setup: MountSetup) -> Result<Fronted, Failure> {
        let directory = self.directory().to_owned();
        let shown = directory.shown();
        let identity =
            identity(image).map_err(|error| Failure::failed(format!("cannot take over {shown}: {error}")))?;
        if identity != self.state.image {
            return Err(Failure::failed(format!(
                "the image has changed since it was mounted on {shown}: run floe umount {shown}, and mount it again"
            )));
        }
        let report = self.state.front.clone();
        let (start, reader, virtual_image) = match self.front {
            None => (MountStart::Inherited(self.inherited), image.reader().clone(), None),
            Some(TakenFront { kept, transfer }) => {
                let Behind { reader, image, virtual_image } = behind_kept(image, &setup.options, &kept)?;
                let start = MountStart::InheritedFront { inherited: self.inherited, image, transfer };
                (start, reader, Some(virtual_image))
            }
        };
        let paused = Mount::new(reader.clone(), start, setup)?;
        let failed = |error: io::Error| Failure::failed(format!("cannot take over {shown}: {error}"));
        if let Some(connection) = self.from {
            write_line(&connection, &Question::Stop).map_err(failed)?;
            match read_answer(&connection).map_err(failed)? {
                Answer::Stopped => {}
                Answer::Refused(reason) => return Err(Failure::failed(format!("{shown}: {reason}"))),
                _ => return Err(another_version(&directory)),
            }
            write_line(&connection, &Question::Serves).map_err(failed)?;
        }
        let mount = paused.serve().map_err(failed)?;
        Ok(Fronted { mount, reader, virtual_image, report })
    }
}

/// The path that leads now to the mount that this process is to take over; `None` if an older version has started it.
fn mountpoint_of_upgrade() -> Option<PathBuf> {
    let number = env::var(VARIABLE).ok()?;
    let (major, minor) = number.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let table = MountTable::read().ok()?;
    let entry = table.entries().iter().find(|entry| entry.is_served() && entry.device == device)?;
    Some(entry.mountpoint.clone())
}

fn another_version(directory: &Path) -> Failure {
    let shown = directory.shown();
    Failure::failed(format!(
        "{shown} is served by a version of Floe that cannot be taken over: unmount and mount it again"
    ))
}
