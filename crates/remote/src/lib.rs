//! Remote images: on HTTP servers, in object stores and in OCI registries.
//!
//! A [`RemoteLocation`] is the URL that a user writes. [`Network::open`] opens the object at a location, and a
//! [`RemoteObject`] fetches ranges of it, with retries, limits and checks of each answer. All async code stays in this
//! crate: its public functions block.
#![forbid(unsafe_code)]

mod arrival;
mod authentication;
mod background;
mod counters;
mod fault;
mod file_digests;
mod host_limit;
mod http_client;
mod identity;
mod launch;
mod launch_bundle;
mod launch_list;
mod location;
mod network;
mod object;
mod options;
mod origin;
mod process;
mod pull;
mod range_reply;
mod registry;
mod remote_image;
mod requester;
mod resolution;
mod retry;

pub use counters::{CauseCounts, RemoteCounts, StageCounts};
pub use file_digests::FileDigests;
pub use launch_list::LaunchList;
pub use location::{BadLocation, ImageReference, LayerChoice, ObjectService, RemoteLocation, Version};
pub use network::Network;
pub use object::RemoteObject;
pub use options::{BadOutage, Outage, RemoteOptions};
pub use process::{FetchingProcess, RemoteProcess, Renewal, serve, serve_several};
pub use pull::Pulled;
pub use registry::{
    Companion, Companions, EROFS_FEATURE, EROFS_LAYER, FORMAT_ANNOTATION, ImageToPush, Pushed, PushedFormat,
    RegistryImages, RootedLayer, SOURCE_ANNOTATION, StoredBlob, TOC_ANNOTATION, TWIN_ARTIFACT,
};
pub use remote_image::{ImageAbout, ImageCounts, ImageOptions, ReasonCounts, RemoteImage};
