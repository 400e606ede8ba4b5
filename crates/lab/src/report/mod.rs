//! What was measured, as tables, pages and traces.

mod perfetto;
mod perfetto_schema;
mod text;

pub use perfetto::{Lasted, write_perfetto};
pub use text::{Table, cost_of_tracing, footnotes, launch_text, launches_line, metric_table, number, percent, values};
