//! Scheduling latency: the time from runnable to running.

mod pattern;
mod schedstat;
mod schedule;
mod watch;
mod work;

pub use pattern::NamePattern;
pub use schedstat::{ThreadTotals, process_totals, totals_between};
pub use schedule::{Schedule, Slice, ThreadSchedule, Wait, WaitKind};
pub use watch::{SchedOptions, SchedReport, SchedRow, watch};
pub use work::{WorkItem, WorkSchedule};
