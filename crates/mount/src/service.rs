//! The service: processes that serve the mounts of many images (`floe serve`).
//!
//! The [`Broker`] is not confined, and decodes nothing. It mounts, keeps the descriptors of each mount, and starts domains: the
//! confined processes that read images, each with one engine for all of its mounts. If a domain dies, the broker starts another,
//! which continues its mounts; if the broker dies, the next one adopts its domains. Clients open images and directories with their own
//! rights, and send descriptors ([`floe_ipc::ServiceClient`]). For other users than its own, a service of root mounts as fusermount3
//! does, with a domain for each user that runs as that user ([`UserLimits`]).

mod adoption;
mod broker;
mod broker_link;
mod clients;
mod control_group;
mod domain;
mod domain_directory;
mod domain_process;
mod fetching;
mod front_mounting;
mod fronts;
mod kept_image;
mod ledger;
mod messages;
mod mounting;
mod pending_upgrade;
mod record;
mod record_key;
mod refusal;
mod rendering;
mod renewal;
mod requests;
mod restarts;
mod settings;
mod socket;
mod soundness;
mod sources;
mod succession;
mod targets;
mod upgrade;
mod user_fronts;
mod users;

pub use broker::{Broker, Stopper};
pub use domain::{DOMAIN_COMMAND, serve_for_broker};
pub use settings::{check_mount, settings_of_service};
pub use socket::ServiceSocket;
pub use soundness::{CHECK_COMMAND, check_elsewhere, check_for_broker};
pub use succession::Continued;
pub use upgrade::{check_continuation, is_to_check};
pub use users::UserLimits;
