//! Examines this machine: its capabilities, what is missing, and commands that fix it.

mod advice;
mod facts;

pub(crate) use advice::{State, advise};
pub(crate) use facts::{ControlGroups, Facts, Fusermount};
