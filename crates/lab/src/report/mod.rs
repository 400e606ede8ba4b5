//! Results as tables, pages and traces.

mod launch_report;
mod launch_tables;
mod page;
mod perfetto;
mod perfetto_schema;
mod plot;

pub use launch_report::{cost_of_tracing, footnotes, launch_page, launch_text, launches_line, losses_line};
pub use launch_tables::values;
pub use page::{Page, Table, number, percent};
pub use perfetto::{NamedInterval, write_perfetto};
pub use plot::{Series, histogram, line_plot, strip_plot, tail_plot};
