//! Measurements on this machine, compared with what the kernel says.

use std::sync::Mutex;

mod collector;
mod load;
mod measure;
mod perf;
mod perfetto;

/// Serialises the tests: they change settings of the machine, and share two CPUs.
static TURN: Mutex<()> = Mutex::new(());
