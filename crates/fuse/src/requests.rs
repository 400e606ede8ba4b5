//! Requests under way: their deadlines, and how many there were.

pub(crate) mod counts;
pub(crate) mod deadline;
