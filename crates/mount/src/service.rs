//! The service: processes that serve the mounts of many images (`floe serve`).
//!
//! The [`Broker`] is not confined, and decodes nothing. It mounts, keeps the descriptors of each mount, and starts domains: the
//! confined processes that read images, each with one engine for all of its mounts. If a domain dies, the broker starts another,
//! which continues its mounts; if the broker dies, the next one adopts its domains. Clients open images and directories with their own
//! rights, and send descriptors ([`floe_ipc::ServiceClient`]).

mod adoption;
mod broker;
mod broker_link;
mod clients;
mod domain;
mod domain_directory;
mod domain_process;
mod kept_image;
mod ledger;
mod messages;
mod mounting;
mod record;
mod restarts;
mod settings;
mod socket;

pub use broker::{Broker, Stopper};
pub use domain::{DOMAIN_COMMAND, serve_for_broker};
pub use settings::{check_mount, settings_of_service};
pub use socket::ServiceSocket;
