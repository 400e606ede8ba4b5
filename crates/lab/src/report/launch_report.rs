//! A launch report: as text for a terminal, and as a page.

use std::fmt::Write;

use floe_image::ShownName;

use super::{
    launch_tables::{Titled, answer, tables, values},
    page::{Page, percent},
    plot::{Series, histogram, strip_plot, tail_plot},
};
use crate::{
    launch::{LaunchReport, Metric},
    statistics::{Interval, difference_percent},
};

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
fn launches_line(report: &LaunchReport) -> String {
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
fn cost_of_tracing(report: &LaunchReport) -> Vec<String> {
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
fn footnotes(report: &LaunchReport) -> Vec<String> {
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
pub(crate) fn losses_line(lost: u64, (restored, unexplained): (u64, u64), invalid: u64) -> String {
    let mut line = format!("trace records lost: {lost}");
    if restored > 0 {
        let _ = write!(line, "; switches missing from tracing, restored from perf events: {restored}");
    }
    let _ = write!(line, "; switches missing from both: {unexplained}; waits omitted for that reason: {invalid}");
    line
}

/// The report as a self-contained page.
pub fn launch_page(report: &LaunchReport) -> String {
    let load = report.surroundings.load_text();
    let lead =
        format!("{} launches of {}; {load}; measured by {}", report.temperature, report.command.join(" "), report.tier);
    let mut page = Page::new("Measured launches", &lead);
    page.lines(&answer(report));
    page.paragraph(&format!("{}.", launches_line(report)));
    for Titled { title, table, metric } in tables(report) {
        page.heading(&capitalised(&title));
        page.table(&table);
        if let Some(metric) = metric {
            let caption = "One dot per launch; the line marks the median, the bar the 95 % interval of the average.";
            page.figure(caption, &strip_plot(&series(report, metric), metric.unit));
        }
    }
    let waits = single_waits(report);
    if !waits.is_empty() {
        page.heading("Single waits of the decompressing threads");
        page.figure(
            "Cumulative distribution of waits; the vertical axis magnifies the tail.",
            &tail_plot(&waits, "µs"),
        );
        page.figure("Waits in powers of two.", &histogram(&waits, "µs"));
    }
    page.heading("Method");
    page.lines(&cost_of_tracing(report));
    page.lines(&footnotes(report));
    page.finish()
}

fn series(report: &LaunchReport, metric: &Metric) -> Vec<Series> {
    let named = report.variants.iter().enumerate();
    let all = named.map(|(index, variant)| Series {
        name: variant.name.clone(),
        values: values(report, index, metric),
        colour: index,
    });
    all.filter(|series| !series.values.is_empty()).collect()
}

/// Every wait of every launch in the tables, in microseconds.
fn single_waits(report: &LaunchReport) -> Vec<Series> {
    let named = report.variants.iter().enumerate();
    let all = named.map(|(index, variant)| {
        let launches = report.launches.iter().filter(|launch| launch.variant == index && launch.discarded.is_none());
        let waits = launches.filter_map(|launch| launch.decompression.as_ref()).flat_map(|latency| &latency.waits_ns);
        Series { name: variant.name.clone(), values: waits.map(|&wait| wait as f64 / 1000.0).collect(), colour: index }
    });
    all.filter(|series| !series.values.is_empty()).collect()
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
