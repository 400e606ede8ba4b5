//! The threads of an engine: which thread runs where, at which priority, and when it may block.

pub(crate) mod cpu_pressure;
pub(crate) mod permits;
pub(crate) mod real_time;
pub(crate) mod scheduling_sys;
pub(crate) mod task_queue;
pub(crate) mod worker;
pub(crate) mod worker_record;
pub(crate) mod workers;
