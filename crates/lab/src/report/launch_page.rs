//! The page of a launch report.

use super::launch_tables::{Titled, answer, tables, values};
use super::launch_text::{cost_of_tracing, footnotes, launches_line};
use super::page::Page;
use super::plot::{Series, histogram, strip_plot, tail_plot};
use crate::launch::{LaunchReport, Metric};

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
