//! Replies about inodes: node numbers, attributes, directory listings, errors.

mod attributes;
pub(crate) mod directory;
pub(crate) mod errno;
pub(crate) mod listings;
pub(crate) mod next_parts;
mod node_numbers;
pub(crate) mod served;
