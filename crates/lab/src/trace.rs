//! Records the kernel's scheduling events and counts losses.

mod arrival;
mod collector;
mod decoder;
mod event;
mod format;
mod page;
mod perf_ring_sys;
mod recording;
mod tracefs;

pub(crate) use collector::boot_time_ns;
pub use collector::{Collector, CollectorOptions};
pub use decoder::Decoder;
pub use event::{Event, EventKind, Name, Switch, Wakeup};
pub use format::{EventFormat, Field, FieldKind};
pub use page::{Lost, Page, PageLayout, Records};
pub use recording::{Gap, Process, ProcessTree, Thread, Trace};
pub use tracefs::{BufferStatistics, Instance, Tracefs};
