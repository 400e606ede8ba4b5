//! A process that is being confined.

use std::{fs, io, str::FromStr};

use rustix::thread::set_no_new_privs;

use crate::{Enforced, Mechanism, Policy, SandboxError, capabilities, filter, held_capabilities, paths::PathRules};

/// Whether a process is confined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// It is not.
    Off,
    /// As far as the kernel can.
    #[default]
    Auto,
    /// It is, or nothing is done at all.
    Require,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            _ => Err(format!("'{text}' is not off, auto or require")),
        }
    }
}

/// A process that may still open what it needs.
#[must_use = "a sandbox that is not sealed leaves capabilities"]
pub struct Sandbox {
    policy: Policy,
    /// What holds once nothing is to be opened any more.
    sealed: Option<PathRules>,
    mode: Mode,
    enforced: Enforced,
}

impl Sandbox {
    /// Confines this process, which has no other threads, to what `policy` allows until the sandbox is sealed.
    ///
    /// # Errors
    /// Other threads run, a mechanism that the kernel has fails, or one is missing that `mode` requires.
    pub fn enter(policy: Policy, mode: Mode) -> Result<Self, SandboxError> {
        let mut sandbox = Self { policy, sealed: None, mode, enforced: Enforced::default() };
        if mode == Mode::Off {
            return Ok(sandbox);
        }
        check_alone()?;
        set_no_new_privs(true).map_err(|error| SandboxError::failed("no_new_privs", io::Error::from(error)))?;
        sandbox.enforced.no_new_privs = Mechanism::Enforced;
        let Policy { grants, opening, .. } = &sandbox.policy;
        sandbox.sealed = Some(PathRules::new(grants.iter())?);
        let paths = PathRules::new(grants.iter().chain(opening))?.enforce()?;
        sandbox.enforced.landlock = Mechanism::of(paths.is_enforced);
        sandbox.enforced.landlock_abi = paths.abi;
        let has_filter = filter::install(sandbox.policy.calls)?;
        sandbox.enforced.seccomp = Mechanism::of(has_filter);
        if mode == Mode::Require {
            sandbox.require()?;
        }
        Ok(sandbox)
    }

    /// Takes away what only opening needed, and the capabilities. What is left is left to this thread and to those that it
    /// starts.
    ///
    /// # Errors
    /// A mechanism that the kernel has fails.
    pub fn seal(mut self) -> Result<Enforced, SandboxError> {
        if self.mode != Mode::Off {
            check_alone()?;
            if let Some(sealed) = self.sealed.take() {
                sealed.enforce()?;
            }
            capabilities::keep(&self.policy.capabilities)?;
        }
        self.enforced.capabilities = held_capabilities();
        Ok(self.enforced)
    }

    fn require(&self) -> Result<(), SandboxError> {
        let Enforced { landlock, seccomp, .. } = &self.enforced;
        match (landlock, seccomp) {
            (Mechanism::Enforced, Mechanism::Enforced) => Ok(()),
            (Mechanism::Enforced, _) => Err(SandboxError::Missing("seccomp filters")),
            _ => Err(SandboxError::Missing("Landlock")),
        }
    }
}

/// Checks that no other thread runs, which would stay outside.
fn check_alone() -> Result<(), SandboxError> {
    match fs::read_dir("/proc/self/task").map_or(1, Iterator::count) {
        0 | 1 => Ok(()),
        threads => Err(SandboxError::Threads(threads)),
    }
}
