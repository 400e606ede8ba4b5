//! Reads file data: plans, looks blocks up, executes.

pub(crate) mod acquire;
pub(crate) mod batch;
pub(crate) mod detached;
pub(crate) mod file_data;
pub(crate) mod job;
mod output_sys;
pub(crate) mod plan;
pub(crate) mod read_around;
pub(crate) mod reader;
pub(crate) mod workspace;
