//! Compression and decompression behind one interface, over well-kept libraries.
//!
//! [`Decoder`] is the one type that readers need. Each codec has a module in `decoder`. The codecs that decode piece by
//! piece share the code that skips, fills and checks the end (`stream`). All codecs share the description of the
//! requested bytes (`request`) and scratch memory (`scratch`). The encoders of image writers are in [`encode`].

mod allocator_sys;
mod decoder;
pub mod encode;

pub use allocator_sys::{limit_arenas, release_freed_memory};
pub use decoder::Decoder;
