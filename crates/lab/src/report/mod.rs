//! Results as tables, pages and traces.

mod axis;
mod launch_page;
mod launch_tables;
mod page;
mod perfetto;
mod perfetto_schema;
mod plot;
mod text;

pub use launch_page::launch_page;
pub use page::Page;
pub use perfetto::{NamedInterval, write_perfetto};
pub use plot::{Series, histogram, line_plot, strip_plot, tail_plot};
pub use text::{Table, cost_of_tracing, footnotes, launch_text, launches_line, losses_line, number, percent, values};
