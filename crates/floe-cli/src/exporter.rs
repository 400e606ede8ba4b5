//! The metrics of all mounts of a machine, for Prometheus.

mod collect;
mod connections;
mod of_user;
mod peer;
mod serve;

pub(crate) use serve::serve;
