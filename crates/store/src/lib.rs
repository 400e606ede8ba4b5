//! An additional layer store for Podman and CRI-O (`additionallayerstores` in storage.conf).
//!
//! The store is a directory that these programs ask for a layer before they pull it: `DIRECTORY/<reference in base64>/<digest>` with
//! `diff`, the tree of the layer, `info`, a description of it, and `blob`, its bytes. Layers are EROFS images, which are mounted out of
//! the registry. A layer that the registry does not have in this form is missing in the store, and is pulled.
//!
//! `server` serves the directory over FUSE, with the nodes of `nodes`, and answers what waits on threads of their own (`pending`);
//! `store` has the operations: it finds layers (`searches`), keeps records of those in use (`record`), and mounts them. `contents` has layers by the digests of their archives, for containerd. `name` parses the names of the directory; `credentials` takes
//! credentials from Podman and CRI-O.
#![forbid(unsafe_code)]

mod contents;
mod credentials;
mod name;
mod nodes;
mod pending;
mod record;
mod searches;
mod server;
mod store;

pub use credentials::{CredentialsError, take as take_credentials};
pub use server::{Server, Stopper};
pub use store::{Store, StoreOptions};
