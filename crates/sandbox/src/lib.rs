//! Confines the process that reads an image.
//!
//! A [`Policy`] lists the paths, system calls and capabilities that the work needs. [`Sandbox::enter`] removes
//! everything else before the first byte of the image is parsed: it closes inherited descriptors; Landlock restricts
//! paths, TCP and signals; a seccomp allow-list restricts system calls; and `no_new_privs` disables set-user-id programs.
//! [`Sandbox::seal`] follows once the files to which the image refers are open: it removes the capabilities, and the
//! rights that only opening needed.
//!
//! Landlock and capabilities belong to a thread, so a process must be confined before it starts its first thread.
//! [`Enforced`] reports what the kernel actually enforces. A library that was preloaded into the process may need more than
//! a policy allows: [`loaded_libraries`] lists them.

mod calls;
mod error;
mod filter;
mod inherited_sys;
mod loaded_libraries_sys;
mod paths;
mod policy;
#[cfg(debug_assertions)]
mod probe_sys;
mod remover_sys;
mod sandbox;
mod tree_mount_sys;

pub use calls::Calls;
pub use error::SandboxError;
pub use loaded_libraries_sys::loaded_libraries;
pub use paths::has_landlock;
pub use policy::{Access, Capability, Grant, Policy, held_capabilities};
#[cfg(debug_assertions)]
pub use probe_sys::probe;
pub use remover_sys::Remover;
pub use sandbox::{Enforced, Mechanism, Mode, Sandbox};
