//! In-memory and faulty sources, and generated trees, for tests only.

mod direct_reader;
mod memory_source;

pub use direct_reader::DirectReader;
pub use memory_source::MemorySource;
