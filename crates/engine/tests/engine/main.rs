//! The engine with images in memory.

#[path = "../patchwork/mod.rs"]
mod patchwork;

mod clusters;
mod metadata;
mod prefetch;
mod reads;
mod tuning;
mod volumes;
mod walkers;
