//! Remote images from servers with scripted answers.

#[path = "../support/mod.rs"]
mod support;

mod cached_names;
mod environment;
mod launch;
mod launch_list;
mod many_clients;
mod process;
mod ranges;
mod referrers;
mod registry;
mod rude;
mod uploads;
