//! The confinement that the kernel enforces.

use std::fmt;

/// The restrictions that the kernel enforces on this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Enforced {
    /// Whether Landlock restricts paths.
    pub landlock: Mechanism,
    /// The kernel's Landlock ABI version; 0 if it has none.
    pub landlock_abi: u32,
    /// Whether seccomp restricts system calls.
    pub seccomp: Mechanism,
    /// Whether `no_new_privs` is set.
    pub no_new_privs: Mechanism,
    /// The remaining capabilities.
    pub capabilities: Vec<String>,
}

/// The state of a mechanism.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mechanism {
    /// Not requested.
    #[default]
    Off,
    /// The kernel does not support it.
    Unavailable,
    /// Enforced.
    Enforced,
}

impl Mechanism {
    pub(crate) fn of(is_enforced: bool) -> Self {
        if is_enforced { Self::Enforced } else { Self::Unavailable }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Off => "off",
            Self::Unavailable => "unavailable",
            Self::Enforced => "enforced",
        })
    }
}
