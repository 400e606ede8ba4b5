//! Answers about inodes: node numbers, attributes, directories and who lists them, errors.

mod attributes;
pub(crate) mod directory;
mod errno;
pub(crate) mod listings;
mod node_numbers;
pub(crate) mod served;
