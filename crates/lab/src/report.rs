//! Results as tables, pages and traces.

mod launch_report;
mod launch_tables;
mod page;
mod perfetto;
mod perfetto_schema;
mod plot;

pub(crate) use launch_report::losses_line;
pub use launch_report::{launch_page, launch_text};
pub use launch_tables::values;
pub use page::{Page, Table, number, percent};
pub use perfetto::{NamedInterval, write_perfetto};
pub use plot::{Series, histogram};
pub(crate) use plot::{line_plot, strip_plot, tail_plot};
