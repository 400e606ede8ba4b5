//! Confines the process in two steps, and reports what the kernel enforces.

use std::{
    fmt, fs, io,
    os::fd::{AsFd, OwnedFd},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use rustix::thread::set_no_new_privs;

use crate::{
    Policy, SandboxError, filter, held_capabilities, inherited_sys,
    paths::PathRules,
    policy,
    tree_mount_sys::{Outside, forbid_devices, restrict_changes},
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
    /// Confines this process, which must have no other threads, to what `policy` allows until the sandbox is sealed. Before that,
    /// calls `open` to open the files that the user named: paths such as `/proc/PID/fd/N` lead nowhere once the process is
    /// confined. `open` may be called twice.
    ///
    /// # Errors
    /// Other threads are running, a supported mechanism fails, or a mechanism that `mode` requires is missing.
    pub fn enter<T>(policy: Policy, mode: Mode, open: impl Fn() -> T) -> Result<(Self, T), SandboxError> {
        let mut sandbox = Self { policy, sealed: None, mode, enforced: Enforced::default() };
        if mode == Mode::Off {
            return Ok((sandbox, open()));
        }
        check_alone()?;
        let opened = match sandbox.policy.tree.take() {
            Some(tree) => sandbox.open_outside(tree, open)?,
            None => open(),
        };
        let Policy { tree, grants, opening, .. } = &sandbox.policy;
        let tree = tree.as_ref().map(AsFd::as_fd);
        sandbox.sealed = Some(PathRules::new(tree, grants.iter())?);
        let rules = PathRules::new(tree, grants.iter().chain(opening))?;
        // The paths of the rules may lead through inherited descriptors.
        inherited_sys::close()?;
        set_no_new_privs(true).map_err(|error| SandboxError::failed("no_new_privs", io::Error::from(error)))?;
        sandbox.enforced.no_new_privs = Mechanism::Enforced;
        let paths = rules.enforce()?;
        sandbox.enforced.landlock = Mechanism::of(paths.is_enforced);
        sandbox.enforced.landlock_abi = paths.abi;
        let has_filter = filter::install(sandbox.policy.calls)?;
        sandbox.enforced.seccomp = Mechanism::of(has_filter);
        if mode == Mode::Require {
            sandbox.require()?;
        }
        Ok((sandbox, opened))
    }

    /// Takes the directory of the extraction, as the process may change it. It need not be on the mount of the one in the policy.
    pub fn take_tree(&mut self) -> Option<OwnedFd> {
        self.policy.tree.take()
    }

    /// Makes everything outside `tree` read-only, and opens files there: with descriptors from before, their attributes could be
    /// changed. Devices are forbidden only then, because the image may be on one.
    fn open_outside<T>(&mut self, tree: OwnedFd, open: impl Fn() -> T) -> Result<T, SandboxError> {
        let failed = |error| SandboxError::failed("mounts", error);
        // Mounts what automount mounts on access, which would not appear in a new namespace.
        drop(open());
        let outside = restrict_changes(&tree).map_err(failed)?;
        if matches!(outside, Outside::Changeable) && self.mode == Mode::Require {
            return Err(SandboxError::ChangesElsewhere);
        }
        let opened = open();
        self.policy.tree = Some(match outside {
            Outside::ReadOnly(inside) => {
                forbid_devices().map_err(failed)?;
                inside
            }
            Outside::Harmless | Outside::Changeable => tree,
        });
        Ok(opened)
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
            policy::keep(&self.policy.capabilities)?;
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
