//! The latency lab: load, launches, scheduler tracing, tables, plots.
