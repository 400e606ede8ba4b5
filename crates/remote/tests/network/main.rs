//! Remote images from servers whose every answer the tests decide.

#[path = "../support/mod.rs"]
mod support;

mod process;
mod ranges;
mod registry;
