//! Answers about inodes: node numbers, attributes, directories, errors.

mod attributes;
pub(crate) mod directory;
mod errno;
mod node_numbers;
pub(crate) mod served;
