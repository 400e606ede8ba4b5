//! The settings of a keeper, which limit what it does.

use std::path::Path;

use crate::{directory::Directory, front::KeptFiles, messages::Request, options::KernelOptions, schedule::Schedule};

/// Names the processes that use the mount on a directory.
pub type UsersOf = fn(&Path) -> String;

/// The settings of a keeper.
#[derive(Clone, Copy)]
pub struct KeeperSettings<'a> {
    /// The directory of the mount; `None` if another program mounts.
    pub directory: Option<&'a Path>,
    /// The same directory to mount on; `None` if it is mounted already.
    pub mountpoint: Option<&'a Directory>,
    /// The options of the mount.
    pub options: &'a KernelOptions,
    /// Names the processes that use the mount.
    pub users_of: UsersOf,
    /// Schedules the keeper's threads.
    pub schedule: &'a Schedule,
    /// An empty directory that the keeper removes when it ends.
    pub temporary_directory: Option<&'a Path>,
    /// The device number of the mount that the process takes over from another one, instead of mounting.
    pub adopted: Option<(u32, u32)>,
    /// The kept image from which the kernel's EROFS may be mounted in front.
    pub kept_front: Option<KeptFiles<'a>>,
    /// Whether the kernel's EROFS may be put in front of the mount.
    pub may_have_front: bool,
    /// Whether the mount needs the kernel's EROFS in front.
    pub must_have_front: bool,
    /// Whether the kernel may be made to permit rings to the mount.
    pub may_permit_rings: bool,
    /// Whether the process may unmount, and learn who uses the mount.
    pub may_unmount: bool,
    /// Whether the names of a launch may be looked up.
    pub may_walk: bool,
}

impl KeeperSettings<'_> {
    /// Whether a mount with these settings makes this request. If not, an attacker controls the process.
    pub(crate) fn permits(&self, request: Request) -> bool {
        let has_directory = self.directory.is_some();
        match request {
            Request::Mount { has_rings } => {
                has_directory
                    && self.adopted.is_none()
                    && !self.must_have_front
                    && (!has_rings || self.may_permit_rings)
            }
            Request::Adopt => has_directory && self.adopted.is_some(),
            Request::MountHidden { has_rings } => {
                has_directory && self.may_have_front && (!has_rings || self.may_permit_rings)
            }
            Request::MountFront { options } => {
                has_directory && self.may_have_front && (!options.is_kept || self.kept_front.is_some())
            }
            Request::SetReadahead => self.options.readahead_bytes.is_some(),
            Request::Walk => has_directory && self.may_walk,
            Request::Unmount { .. } | Request::FindUsers => self.may_unmount,
            Request::IsAdministrator { .. } | Request::ConfirmMount | Request::End => true,
            // A service that has made the mount answers this itself.
            Request::PermitRings => false,
        }
    }
}
