//! Capabilities.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities};

use crate::SandboxError;

/// A right of the administrator that some work needs (capabilities(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Capability {
    /// Changing owners.
    Chown,
    /// Reaching files whatever their mode is.
    DacOverride,
    /// Changing modes, times and attributes of files of others.
    Fowner,
    /// Keeping set-user-id bits.
    Fsetid,
    /// Locking memory beyond the limit.
    IpcLock,
    /// Making device files.
    Mknod,
    /// Giving files capabilities.
    Setfcap,
    /// Extended attributes `trusted.` and `security.`. It allows far more, which the system calls do not.
    SysAdmin,
    /// Scheduling threads in real time.
    SysNice,
}

const ALL: [(Capability, CapabilitySet, &str); 9] = [
    (Capability::Chown, CapabilitySet::CHOWN, "CAP_CHOWN"),
    (Capability::DacOverride, CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (Capability::Fowner, CapabilitySet::FOWNER, "CAP_FOWNER"),
    (Capability::Fsetid, CapabilitySet::FSETID, "CAP_FSETID"),
    (Capability::IpcLock, CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"),
    (Capability::Mknod, CapabilitySet::MKNOD, "CAP_MKNOD"),
    (Capability::Setfcap, CapabilitySet::SETFCAP, "CAP_SETFCAP"),
    (Capability::SysAdmin, CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (Capability::SysNice, CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
];

/// The capabilities of this thread, by name; those without a [`Capability`] are one "others".
pub fn held_capabilities() -> Vec<String> {
    let Ok(mut left) = capabilities(None).map(|sets| sets.permitted) else { return Vec::new() };
    let mut names = Vec::new();
    for (_, bit, name) in ALL {
        if left.contains(bit) {
            left.remove(bit);
            names.push(name.to_owned());
        }
    }
    if !left.is_empty() {
        names.push("others".to_owned());
    }
    names
}

/// Gives up all capabilities of this thread, and of those that it starts, but `kept`.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn keep(kept: &[Capability]) -> Result<(), SandboxError> {
    let failed = |error| SandboxError::failed("capabilities", std::io::Error::from(error));
    let held = capabilities(None).map_err(failed)?;
    let wanted = ALL.iter().filter(|(capability, ..)| kept.contains(capability));
    let wanted = wanted.fold(CapabilitySet::empty(), |set, (_, bit, _)| set | *bit);
    let (effective, permitted) = (held.effective & wanted, held.permitted & wanted);
    // A kernel without ambient capabilities has none to clear.
    let _ = clear_ambient_capability_set();
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() }).map_err(failed)
}
