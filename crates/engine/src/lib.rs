//! The read engine: page pool, caches, decompression, counters.
