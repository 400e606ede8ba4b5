//! Restricts paths with Landlock.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, AddRuleError, AddRulesError, BitFlags, CompatLevel, Compatible,
    LandlockStatus, PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, make_bitflags,
};
use rustix::fs::{FileType, fstat};

use crate::{Access, Grant, SandboxError};

/// The newest Landlock ABI whose rights are used. Older kernels enforce the subset that they know.
const ABI_USED: ABI = ABI::V6;

/// The permitted paths. The rules keep the files open.
pub(crate) struct PathRules {
    /// `None` if the kernel cannot express a needed right.
    ruleset: Option<RulesetCreated>,
}

/// The extent to which the kernel enforces the rules.
pub(crate) struct EnforcedPaths {
    /// The ABI version; 0 without Landlock.
    pub(crate) abi: u32,
    pub(crate) is_enforced: bool,
}

impl PathRules {
    /// Creates rules that allow `grants` and everything beneath `tree`, and deny TCP, and signals and abstract sockets outside
    /// the sandbox.
    ///
    /// # Errors
    /// The kernel supports Landlock and refuses, or no descriptors are left.
    pub(crate) fn new<'a>(
        tree: Option<BorrowedFd<'_>>,
        grants: impl Iterator<Item = &'a Grant>,
    ) -> Result<Self, SandboxError> {
        if tree.is_some() && !can_link() {
            // ABI 1 cannot grant links and renames between directories, and therefore denies them everywhere.
            return Ok(Self { ruleset: None });
        }
        let failed = |error: RulesetError| SandboxError::failed("Landlock", error);
        let mut ruleset = empty().map_err(failed)?;
        if let Some(tree) = tree {
            let rights = AccessFs::from_all(ABI_USED) & !AccessFs::Execute & !AccessFs::IoctlDev;
            (&mut ruleset).add_rule(PathBeneath::new(tree, rights)).map_err(failed)?;
        }
        for grant in grants {
            let place = match open_path(&grant.path) {
                Ok(place) => place,
                Err(error) if is_shortage(&error) => return Err(SandboxError::failed("Landlock", error)),
                Err(_) => continue,
            };
            match (&mut ruleset).add_rule(PathBeneath::new(place.as_fd(), rights(&place, grant.access))) {
                Err(RulesetError::AddRules(AddRulesError::Fs(AddRuleError::AddRuleCall { source, .. })))
                    if source.raw_os_error() == Some(libc::EBADFD) =>
                {
                    // Pipes and memory files are not restricted and cannot have rules.
                }
                result => result.map(drop).map_err(failed)?,
            }
        }
        Ok(Self { ruleset: Some(ruleset) })
    }

    /// Restricts this thread and the threads it starts.
    ///
    /// # Errors
    /// The kernel supports Landlock and refuses.
    pub(crate) fn enforce(self) -> Result<EnforcedPaths, SandboxError> {
        let Some(ruleset) = self.ruleset else { return Ok(EnforcedPaths { abi: 0, is_enforced: false }) };
        let status = ruleset.restrict_self().map_err(|error| SandboxError::failed("Landlock", error))?;
        let abi = match status.landlock {
            LandlockStatus::Available { effective_abi, kernel_abi } => kernel_abi.unwrap_or(effective_abi as i32),
            _ => 0,
        };
        Ok(EnforcedPaths { abi: abi.unsigned_abs(), is_enforced: status.ruleset != RulesetStatus::NotEnforced })
    }
}

/// Opens a path with `O_PATH`, so that FIFOs do not block and devices are not triggered.
fn open_path(path: &Path) -> io::Result<OwnedFd> {
    File::options().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path).map(OwnedFd::from)
}

/// Whether the error concerns the process's resources rather than the path.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

fn empty() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_USED))?
        .handle_access(AccessNet::from_all(ABI_USED))?
        .scope(Scope::from_all(ABI_USED))?
        .create()
}

/// Whether the kernel supports Landlock and has it enabled.
pub fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::Execute).is_ok()
}

/// Whether the kernel's ABI has a right for links between directories.
fn can_link() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::Refer).is_ok()
}

fn rights(place: &OwnedFd, access: Access) -> BitFlags<AccessFs> {
    let rights = match access {
        Access::Read => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
        Access::Write => make_bitflags!(AccessFs::{WriteFile}),
        Access::ReadWrite => make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | IoctlDev}),
        Access::Sockets => make_bitflags!(AccessFs::{MakeSock | RemoveFile}),
        Access::Files => {
            make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile})
        }
    };
    let stat = fstat(place);
    let is_directory = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if is_directory { rights } else { rights & AccessFs::from_file(ABI_USED) }
}
