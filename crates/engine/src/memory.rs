//! The page pool, byte budgets and memory pressure.

pub(crate) mod admission;
pub(crate) mod arenas;
pub(crate) mod byte_budget;
mod free_pages;
pub(crate) mod page_pool;
pub(crate) mod page_run_sys;
pub(crate) mod pages_sys;
mod preemption_sys;
pub(crate) mod prefetch_budget;
pub(crate) mod pressure;
