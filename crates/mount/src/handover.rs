//! Replaces the process that serves a mount: by `floe upgrade`, or by a service manager after a crash.
//!
//! The kernel's connection outlives the process that holds `/dev/fuse`, as long as another process holds a copy of the
//! descriptor. `floe upgrade` starts a process that gets copies over the control socket; a service manager keeps copies in
//! its descriptor store and passes them to the process that it starts again. Both also get its state.

mod giver;
mod invocation;
mod service_manager;
mod state;
mod taken;

pub(crate) use giver::Giver;
pub use invocation::Invocation;
pub(crate) use invocation::SealedInvocation;
pub use service_manager::ServiceManager;
pub(crate) use state::{State, StateFile};
pub(crate) use taken::{Taken, TakenFront};
pub use taken::{is_upgrade, start_successor};
