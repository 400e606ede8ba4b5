//! Confines the process in two steps.

use std::{
    fs, io,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use rustix::thread::set_no_new_privs;

use crate::{
    Access, Enforced, Mechanism, Policy, SandboxError, capabilities, filter, held_capabilities, inherited_sys,
    paths::PathRules, tree_mount_sys,
};

/// Whether to confine the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Do not confine it.
    Off,
    /// Confine it as far as the kernel supports.
    #[default]
    Auto,
    /// Confine it fully, or fail.
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

/// A confined process that may still open the files it needs.
#[must_use = "a sandbox that is not sealed leaves capabilities"]
pub struct Sandbox {
    policy: Policy,
    /// The rules that apply after sealing.
    sealed: Option<PathRules>,
    mode: Mode,
    enforced: Enforced,
}

impl Sandbox {
    /// Confines this process, which must have no other threads, to what `policy` allows until the sandbox is sealed.
    ///
    /// # Errors
    /// Other threads are running, a supported mechanism fails, or a mechanism that `mode` requires is missing.
    pub fn enter(policy: Policy, mode: Mode) -> Result<Self, SandboxError> {
        let mut sandbox = Self { policy, sealed: None, mode, enforced: Enforced::default() };
        if mode == Mode::Off {
            return Ok(sandbox);
        }
        check_alone()?;
        inherited_sys::close(&sandbox.policy.descriptors)?;
        set_no_new_privs(true).map_err(|error| SandboxError::failed("no_new_privs", io::Error::from(error)))?;
        sandbox.enforced.no_new_privs = Mechanism::Enforced;
        let Policy { grants, opening, .. } = &sandbox.policy;
        if let Some(tree) = grants.iter().find(|grant| grant.access == Access::Tree) {
            let used = grants.iter().chain(opening).map(|grant| grant.path.as_path());
            let restricted = tree_mount_sys::restrict_changes(&tree.path, used);
            if !restricted.map_err(|error| SandboxError::failed("mounts", error))? && mode == Mode::Require {
                return Err(SandboxError::ChangesElsewhere);
            }
        }
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

    /// Removes the rights that only opening needed, and the capabilities. The remaining rights apply to this thread and
    /// to the threads it starts.
    ///
    /// # Errors
    /// A supported mechanism fails.
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

/// How long a thread that was joined may remain listed.
const ENDING_MAX: Duration = Duration::from_millis(100);

/// Checks that no other thread is running; it would remain unconfined. A thread that was joined no longer runs code of this
/// process, but the kernel lists it until it has removed it.
pub(crate) fn check_alone() -> Result<(), SandboxError> {
    let start = Instant::now();
    loop {
        match fs::read_dir("/proc/self/task").map_or(1, Iterator::count) {
            0 | 1 => return Ok(()),
            threads if start.elapsed() > ENDING_MAX => return Err(SandboxError::Threads(threads)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}
