//! The kernel's scheduling events, collected with losses counted.

mod collector;
mod decoder;
mod event;
mod format;
mod page;
mod recording;
mod tracefs;

pub use collector::{Collector, CollectorOptions};
pub use decoder::{Decoder, EVENTS};
pub use event::{Event, EventKind, Name, Switch, Wakeup};
pub use format::{EventFormat, Field, FieldKind};
pub use page::{Lost, Page, PageLayout, Records};
pub use recording::{Gap, Trace};
pub use tracefs::{BufferStatistics, Instance, Tracefs};
