//! The metrics of all mounts of a machine, for Prometheus.

mod collect;
mod of_user;
mod serve;

pub(crate) use serve::serve;
