//! Mounts images: from a request to the end of the mount.
//!
//! A [`Request`] is [prepared](Prepared), [confined](Confined) and [mounted](Mounted), and has [`Ended`]. Each type owns what its
//! stage needs and turns into the next one:
//!
//! ```no_run
//! use floe_mount::{Request, options::Settings};
//!
//! let request = Request::new("system.erofs", "/mnt", Settings::default());
//! let mut mounted = request.prepare()?.confine()?.mount()?;
//! mounted.announce(|message| {
//!     println!("{message}");
//!     Ok(())
//! })?;
//! mounted.wait()?;
//! # Ok::<(), floe_mount::Failure>(())
//! ```
//!
//! A process serves one mount: it must be single-threaded until [`Request::prepare`] returns, and after
//! [`Prepared::confine`] it can open only what the mount needs, unless the settings turn the sandbox off. For remote images,
//! the executable runs itself again with [`remote::FETCH_COMMAND`], which it must handle. Options derived from the settings
//! are computed once, by [`Request::prepare`]; only `floe tune` changes settings later.

#![forbid(unsafe_code)]

#[cfg(debug_assertions)]
mod compromised;
mod confined;
pub mod confinement;
pub mod control;
pub mod daemon;
mod failure;
mod front;
pub mod handover;
mod held;
mod kept_front;
pub mod launch;
mod log;
mod mounted;
pub mod options;
mod owners;
mod prepared;
pub mod quantity;
pub mod remote;
mod request;
mod sealed_file;
pub mod service;
pub mod status;
mod target;
mod transport;
mod users;

pub use confined::Confined;
pub use failure::Failure;
pub use front::{Front, FrontReport};
pub use log::Remarks;
pub use mounted::{Ended, Mounted, notify};
pub use prepared::Prepared;
pub use request::Request;
pub use transport::{TransportChoice, TransportReport};
pub use users::MountUsers;
