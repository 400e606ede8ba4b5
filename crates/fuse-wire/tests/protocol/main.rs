//! The FUSE protocol, alone and with the kernel.

#[path = "../support/mod.rs"]
mod support;

mod conversation;
mod notifications;
mod properties;
