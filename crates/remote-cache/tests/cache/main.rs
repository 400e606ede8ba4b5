//! The cache as its users see it: a source of image bytes, over a fetcher that counts, fails and lies.

mod corrupt_files;
mod eviction;
mod full_disk;
mod hostile_fetchers;
mod inventory;
mod power_loss;
mod processes;
mod reads;
mod scene;
mod verity_trees;
