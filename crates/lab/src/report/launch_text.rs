//! A launch report as text for a terminal.

use std::fmt::Write;

use super::launch_tables::{Titled, answer, tables};
use super::table::percent;
use crate::launch::LaunchReport;
use crate::statistics::{Interval, difference_percent};
use floe_image::ShownName;

/// The whole report as text.
pub fn launch_text(report: &LaunchReport) -> String {
    let mut text = String::new();
    let kinds = report.surroundings.load_text();
    let _ = writeln!(text, "{} launches of: {}", report.temperature, report.command.join(" "));
    let _ = writeln!(text, "{kinds}; measured by {}", report.tier);
    let _ = writeln!(text, "\n{}", answer(report).join("\n"));
    for Titled { title, table, .. } in tables(report) {
        let _ = writeln!(text, "\n{title}\n{table}");
    }
    let _ = writeln!(text, "\n{}", launches_line(report));
    for line in cost_of_tracing(report) {
        let _ = writeln!(text, "{line}");
    }
    for line in footnotes(report) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The number of launches and how they were used.
pub fn launches_line(report: &LaunchReport) -> String {
    let count = |test: &dyn Fn(&crate::launch::Launch) -> bool| report.launches.iter().filter(|l| test(l)).count();
    let discarded = count(&|launch| launch.discarded.is_some());
    let mut line = format!(
        "{} launches, {} of them controls without tracing, {discarded} discarded",
        report.launches.len(),
        count(&|launch| !launch.is_traced),
    );
    if let Some(reason) = report.launches.iter().find_map(|launch| launch.discarded.as_ref()) {
        let _ = write!(line, " (the first because {reason})");
    }
    if report.is_interrupted {
        line.push_str("; ended early");
    }
    line
}

/// Fewer controls do not give a meaningful interval.
const CONTROLS_MIN: usize = 8;

/// How much longer traced launches took than controls, for each variant.
pub fn cost_of_tracing(report: &LaunchReport) -> Vec<String> {
    let wall = |variant: usize, is_traced: bool| -> Vec<f64> {
        let launches = report.launches.iter().filter(|l| l.variant == variant && l.is_traced == is_traced);
        launches.map(|launch| launch.wall_ns as f64).collect()
    };
    let cost = |(index, variant): (usize, &crate::launch::VariantReport)| {
        let (controls, traced) = (wall(index, false), wall(index, true));
        let difference =
            difference_percent(crate::statistics::average(&controls), crate::statistics::average(&traced))?;
        let interval = Interval::of_difference_percent(&controls, &traced)?;
        (!traced.is_empty()).then(|| {
            let (name, count) = (&variant.name, controls.len());
            let bounds = format!("95 %: {}…{}, {count} controls", percent(interval.low), percent(interval.high));
            if count < CONTROLS_MIN {
                return format!("cost of tracing, {name}: unknown, too few controls ({count}; see --controls)");
            }
            if interval.low <= 0.0 && interval.high >= 0.0 {
                return format!("cost of tracing, {name}: not significant ({bounds})");
            }
            format!("cost of tracing, {name}: {} of the launch ({bounds})", percent(difference))
        })
    };
    report.variants.iter().enumerate().filter_map(cost).collect()
}

/// The notes below the tables: the measured threads, the machine, and remarks.
pub fn footnotes(report: &LaunchReport) -> Vec<String> {
    let mut lines = Vec::new();
    for variant in &report.variants {
        let size = variant.image_bytes >> 10;
        let image = variant.image.shown();
        lines.push(format!("{}: {image} ({size} KiB); decompressing: {}", variant.name, variant.decompressors));
    }
    let sum = |value: fn(&crate::launch::Launch) -> u64| report.launches.iter().map(value).sum::<u64>();
    if report.launches.iter().any(|launch| launch.is_traced) {
        lines.push(losses_line(
            sum(|launch| launch.lost_records),
            (sum(|launch| launch.restored_switches), sum(|launch| launch.unexplained_switches)),
            sum(|launch| launch.decompression.as_ref().map_or(0, |latency| latency.invalid_count)),
        ));
    }
    lines.extend(report.surroundings.lines());
    lines.extend(report.traces.iter().map(|path| format!("trace for ui.perfetto.dev: {}", path.shown())));
    lines
}

/// The losses of a recording: lost records, switches missing from tracing (restored from perf events, or not), and
/// waits of unknown length for that reason.
pub fn losses_line(lost: u64, (restored, unexplained): (u64, u64), invalid: u64) -> String {
    let mut line = format!("trace records lost: {lost}");
    if restored > 0 {
        let _ = write!(line, "; switches missing from tracing, restored from perf events: {restored}");
    }
    let _ = write!(line, "; switches missing from both: {unexplained}; waits omitted for that reason: {invalid}");
    line
}
