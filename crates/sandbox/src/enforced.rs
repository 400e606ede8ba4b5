//! What is enforced.

use std::fmt;

/// What the kernel enforces on this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Enforced {
    /// Whether paths are restricted by Landlock.
    pub landlock: Mechanism,
    /// The version of the kernel's Landlock; 0 where it has none.
    pub landlock_abi: u32,
    /// Whether system calls are restricted by seccomp.
    pub seccomp: Mechanism,
    /// Whether `no_new_privs` is set.
    pub no_new_privs: Mechanism,
    /// The capabilities that are left.
    pub capabilities: Vec<String>,
}

/// How far a mechanism is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mechanism {
    /// It was not asked for.
    #[default]
    Off,
    /// The kernel does not have it.
    Unavailable,
    /// It is in force.
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
