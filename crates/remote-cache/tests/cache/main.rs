//! Tests of the cache through its public interface: a source of image bytes, over fetchers that count requests, fail, or
//! send wrong bytes.

mod corrupt_files;
mod early_chunks;
mod eviction;
mod full_disk;
mod hostile_fetchers;
mod processes;
mod reads;
mod scene;
mod unsafe_directories;
mod verity_trees;
