//! Answers about inodes: node numbers, attributes, directories, errors.

mod attributes;
pub(crate) mod directory;
mod errno;
pub(crate) mod node_numbers;
pub(crate) mod served;
