//! Prepares resources that a mount can no longer get once it is confined.
//!
//! The keeper is started without a sandbox too: a process whose own thread waits in an unmount could not end.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use floe::OpenOptions;
use floe_fuse::{Directory, Keeper, Kept, Mountpoint, Relay};
use floe_remote_cache::TrustedDirectory;
use floe_sandbox::{Access, Calls, Capability, Mode, Policy};

use crate::{
    confinement, control::Prepared, fail::Fail, front::Front, handover::Taken, launch::ProfileChoice,
    mount_options::Settings, mount_users::MountUsers, reachable_path::ReachablePath, transport::Continuity,
};

/// Resources from outside the sandbox, acquired before the process is confined.
pub(crate) struct MountNeeds {
    /// The rights of the confined process.
    pub(crate) policy: Policy,
    /// The control socket.
    pub(crate) control: Option<io::Result<Prepared>>,
    /// The process that mounts and unmounts for it.
    pub(crate) keeper: Arc<Keeper>,
    /// The pipe that gets a message when the mount works.
    pub(crate) notify_pipe: Option<ReachablePath>,
    /// The directory of the spill file.
    _spill_directory: Option<ReachablePath>,
}

impl MountNeeds {
    /// Acquires the resources and adds them to the options. The keeper does only what the options ask for. `taken` is the mount that
    /// the process takes over instead of mounting on `mountpoint`, `datagrams` takes its datagram sockets away.
    ///
    /// # Errors
    /// No process can be started, or the process would keep a datagram socket.
    pub(crate) fn prepare(
        image: &Path,
        mountpoint: Option<&Mountpoint>,
        settings: &mut Settings,
        notify_pipe: Option<&Path>,
        taken: Option<&Taken>,
        continuity: Continuity,
        datagrams: impl FnOnce() -> Result<Vec<Relay>, Fail>,
    ) -> Result<Self, Fail> {
        let Settings { open, mount: options, front, transport, sandbox: mode, profile, .. } = settings;
        let control = Prepared::new();
        let mountpoint = match mountpoint {
            Some(Mountpoint::Directory(directory)) => Some(directory),
            Some(Mountpoint::Descriptor(_)) | None => None,
        };
        let adopted = taken.map(Taken::directory);
        // If the pipe is missing, nobody waits for the message.
        let notify_pipe = notify_pipe.and_then(|pipe| ReachablePath::new(pipe).ok());
        let (made, spill_directory) = own_spill_file_directory(image, open).unzip();
        let relays = if *mode == Mode::Off { Vec::new() } else { datagrams()? };
        let kept = Kept {
            directory: mountpoint.map(Directory::path).or(adopted),
            mountpoint,
            options,
            users_of: |directory| MountUsers::of(directory).to_string(),
            passing: made.as_deref(),
            adopted: taken.map(|taken| taken.state.device),
            may_have_front: *front != Front::Fuse && taken.is_none(),
            must_have_front: *front == Front::Kernel,
            may_permit_rings: transport.may_use_rings(options, continuity),
            may_walk: *profile != ProfileChoice::Off,
        };
        let keeper = Keeper::start(kept, relays);
        let keeper = keeper.map_err(|error| Fail::failed(format!("cannot start the mounting process: {error}")))?;
        options.keeper = Some(Arc::clone(&keeper));
        if *mode == Mode::Off {
            let policy = Policy::default();
            return Ok(Self { policy, control: Some(control), keeper, notify_pipe, _spill_directory: spill_directory });
        }

        let mut policy = confinement::reading();
        policy.calls = Calls { serve: true, ..Calls::default() };
        policy.capabilities = vec![Capability::SysNice, Capability::IpcLock];
        // Session threads open the device to join the connection. A process without the right to mount gains nothing by
        // opening it.
        policy.allow("/dev/fuse", Access::ReadWrite);
        if let Some(directory) = &spill_directory {
            policy.allow(directory.path(), Access::ReadWrite);
        }
        if let Some(directory) = control.as_ref().ok().and_then(Prepared::directory) {
            policy.allow(directory, Access::Sockets);
        }
        if let Some(pipe) = &notify_pipe {
            policy.allow(pipe.path(), Access::Write);
        }
        if let Some(group) = fs::read_to_string("/proc/self/cgroup").ok().as_deref().and_then(group_of) {
            policy.allow(format!("/sys/fs/cgroup{group}/memory.pressure"), Access::Read);
        }
        Ok(Self { policy, control: Some(control), keeper, notify_pipe, _spill_directory: spill_directory })
    }
}

impl Drop for MountNeeds {
    fn drop(&mut self) {
        self.keeper.end();
    }
}

/// The path of the control group, if version 2 is in use.
fn group_of(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Creates a private directory for the spill file in the requested directory, so that the sandbox need not permit
/// access to other files there. Returns also its path for the keeper, which removes it.
fn own_spill_file_directory(image: &Path, open: &mut OpenOptions) -> Option<(PathBuf, ReachablePath)> {
    if open.engine.spill_file_bytes == 0 {
        return None;
    }
    let beside = || image.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let named = open.engine.spill_file_directory.clone();
    if let Some(Err(error)) = named.as_deref().map(TrustedDirectory::check) {
        say!("floe: continuing without a spill file: {error}");
        open.engine.spill_file_bytes = 0;
        return None;
    }
    // The owner of the directory of the image can exchange the image as well.
    let parent = named.unwrap_or_else(beside);
    let made = tempfile::Builder::new().prefix("floe-").tempdir_in(parent).ok()?.keep();
    let directory = ReachablePath::new(&made).ok()?;
    open.engine.spill_file_directory = Some(directory.path().to_owned());
    Some((made, directory))
}
