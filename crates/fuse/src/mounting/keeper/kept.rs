//! The settings of a keeper, which limit what it does.

use std::path::Path;

use super::messages::Question;
use crate::{Directory, MountOptions};

/// Names the processes that use the mount on a directory.
pub type UsersOf = fn(&Path) -> String;

/// The settings of a keeper.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// The directory of the mount; `None` if another program mounts.
    pub directory: Option<&'a Path>,
    /// The same directory to mount on; `None` if it is mounted already.
    pub mountpoint: Option<&'a Directory>,
    /// The options of the mount.
    pub options: &'a MountOptions,
    /// Names the processes that use the mount.
    pub users_of: UsersOf,
    /// An empty directory that the keeper removes when it ends.
    pub passing: Option<&'a Path>,
    /// The device number of the mount that the process takes over from another one, instead of mounting.
    pub adopted: Option<(u32, u32)>,
    /// Whether the kernel's EROFS may be put in front of the mount.
    pub may_have_front: bool,
    /// Whether the mount needs the kernel's EROFS in front.
    pub must_have_front: bool,
    /// Whether the kernel may be made to permit rings to a front.
    pub may_permit_rings: bool,
    /// Whether the names of a launch may be looked up.
    pub may_walk: bool,
}

impl Kept<'_> {
    /// Whether a mount with these settings asks this question. If not, an attacker controls the process.
    pub(super) fn permits(&self, question: Question) -> bool {
        let has_directory = self.directory.is_some();
        match question {
            Question::Mount => has_directory && self.adopted.is_none() && !self.must_have_front,
            Question::Adopt => has_directory && self.adopted.is_some(),
            Question::MountHidden(rings) => {
                has_directory && self.may_have_front && (rings == 0 || self.may_permit_rings)
            }
            Question::MountFront(_) => has_directory && self.may_have_front,
            Question::ReadAhead => self.options.read_ahead_bytes.is_some(),
            Question::Walk(_) => has_directory && self.may_walk,
            Question::Unmount
            | Question::UnmountLazily
            | Question::Users
            | Question::IsAdministrator(_)
            | Question::Works
            | Question::End => true,
        }
    }
}
