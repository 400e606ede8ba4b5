//! Commands of the built program that build images.

#[path = "../support/mod.rs"]
mod support;

mod attribute_rules;
mod base_images;
mod building;
mod conversions;
mod fakes;
mod fixed_outputs;
mod full_disk;
mod image_builders;
mod image_sources;
mod interrupted;
mod merged_layers;
mod mkfs_erofs;
mod mkfs_erofs_additions;
mod mkfs_erofs_disk;
mod mkfs_output;
mod mkfs_sources;
mod mksquashfs;
mod recorded_images;
mod recording;
mod squashfs;
mod tar_archives;
mod type_tables;
mod verity;
