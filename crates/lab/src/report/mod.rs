//! Results as tables, pages and traces.

mod axis;
mod launch_page;
mod launch_tables;
mod launch_text;
mod page;
mod perfetto;
mod perfetto_schema;
mod plot;
mod table;

pub use launch_page::launch_page;
pub use launch_tables::values;
pub use launch_text::{cost_of_tracing, footnotes, launch_text, launches_line, losses_line};
pub use page::Page;
pub use perfetto::{NamedInterval, write_perfetto};
pub use plot::{Series, histogram, line_plot, strip_plot, tail_plot};
pub use table::{Table, number, percent};
