//! Confines the process that reads an image.
//!
//! A [`Policy`] says which paths, system calls and capabilities the work needs. [`Sandbox::enter`] takes everything else
//! away before the first byte of the image is parsed: Landlock for paths, TCP and signals, a seccomp allow-list for system
//! calls, `no_new_privs` for programs with set-user-id bits. [`Sandbox::seal`] follows once the files that the image names
//! are open: it drops what only opening them needed, and the capabilities.
//!
//! Landlock and capabilities belong to a thread, so a process is confined before it starts its first thread.
//! [`Enforced`] tells what the kernel really enforces.

mod calls;
mod capabilities;
mod enforced;
mod error;
mod filter;
mod paths;
mod policy;
#[cfg(debug_assertions)]
mod probe_sys;
mod sandbox;

pub use calls::Calls;
pub use capabilities::{Capability, held_capabilities};
pub use enforced::{Enforced, Mechanism};
pub use error::SandboxError;
pub use policy::{Access, Grant, Policy};
#[cfg(debug_assertions)]
pub use probe_sys::probe;
pub use sandbox::{Mode, Sandbox};
