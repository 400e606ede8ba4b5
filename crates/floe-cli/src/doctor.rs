//! What this machine offers, what is missing, and the command that mends it.

mod advice;
mod facts;

pub(crate) use advice::{State, advise};
pub(crate) use facts::Facts;
