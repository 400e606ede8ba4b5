//! The commands, one file each.

pub(crate) mod cache;
pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod exporter;
pub(crate) mod extract;
pub(crate) mod lab;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod mount_helper;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod record;
pub(crate) mod serve;
pub(crate) mod snapshotter;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod tune;
pub(crate) mod umount;
pub(crate) mod upgrade;
