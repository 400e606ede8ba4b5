//! Plots as inline SVG in the colours of the page, with ticks at round numbers.

use std::fmt::Write;

use crate::statistics::{Interval, Summary, percentile};

/// Widths and margins in SVG units.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 42.0;
/// The number of colours; further series reuse them.
const COLOURS: usize = 6;
/// The maximum number of points drawn individually per series.
const POINTS_MAX: usize = 1500;

/// A named series of values.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The values; for line plots, one per position on the horizontal axis.
    pub values: Vec<f64>,
    /// The index of its colour, the same in every plot.
    pub colour: usize,
}

/// A drawing that grows from the frame inwards.
struct Drawing {
    svg: String,
    height: f64,
    left: f64,
}

impl Drawing {
    fn new(height: f64, left: f64, title: &str) -> Self {
        let mut svg = String::new();
        let _ = write!(svg, r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#, escape(title));
        Self { svg, height, left }
    }

    fn x(&self, place: f64) -> f64 {
        self.left + place * (WIDTH - RIGHT - self.left)
    }

    fn y(&self, place: f64) -> f64 {
        self.height - BOTTOM - place * (self.height - BOTTOM - TOP)
    }

    /// Draws a vertical grid line and a label for each tick, and the axis title.
    fn horizontal_axis(&mut self, ticks: &[(f64, String)], title: &str) {
        let (top, bottom) = (self.y(1.0), self.y(0.0));
        for (place, label) in ticks {
            let x = self.x(*place);
            let _ = write!(self.svg, r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#);
            let _ = write!(
                self.svg,
                r#"<text class="tick" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
                bottom + 16.0,
                escape(label)
            );
        }
        let (x, y) = (self.x(0.5), self.height - 6.0);
        let _ = write!(
            self.svg,
            r#"<text class="axis" x="{x:.1}" y="{y:.1}" text-anchor="middle">{}</text>"#,
            escape(title)
        );
    }

    fn vertical_axis(&mut self, ticks: &[(f64, String)], title: &str) {
        let (left, right) = (self.x(0.0), self.x(1.0));
        for (place, label) in ticks {
            let y = self.y(*place);
            let _ = write!(self.svg, r#"<line class="grid" x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}"/>"#);
            let _ = write!(
                self.svg,
                r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
                left - 6.0,
                y + 4.0,
                escape(label)
            );
        }
        let y = self.y(0.5);
        let _ = write!(
            self.svg,
            r#"<text class="axis" x="14" y="{y:.1}" text-anchor="middle" transform="rotate(-90 14 {y:.1})">{}</text>"#,
            escape(title),
        );
    }

    fn line(&mut self, points: &[(f64, f64)], series: usize) {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if index == 0 { 'M' } else { 'L' }, self.x(*x), self.y(*y));
        }
        let _ = write!(self.svg, r#"<path class="line s{}" d="{path}"/>"#, series % COLOURS);
    }

    fn dot(&mut self, (x, y): (f64, f64), radius: f64, series: usize, hint: &str) {
        let (x, y) = (self.x(x), self.y(y));
        let _ = write!(
            self.svg,
            r#"<circle class="dot s{}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{}</title></circle>"#,
            series % COLOURS,
            escape(hint),
        );
    }

    fn finish(mut self, legend: &[Series]) -> String {
        self.svg.push_str("</svg>");
        if legend.len() > 1 {
            let mut keys = String::from(r#"<p class="legend">"#);
            for Series { name, colour, .. } in legend {
                let _ = write!(keys, r#"<span><i class="key s{}"></i>{}</span> "#, colour % COLOURS, escape(name));
            }
            return format!("{keys}</p>{}", self.svg);
        }
        self.svg
    }
}

/// Draws each value as a dot on its series' strip, with the median and the 95 % interval of the average.
pub(crate) fn strip_plot(series: &[Series], unit: &str) -> String {
    let all = || series.iter().flat_map(|series| series.values.iter().copied());
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    let is_wide = low > 0.0 && high / low > 40.0;
    let scale = if is_wide { Scale::logarithmic(all(), 0.1) } else { Scale::from_zero(all()) };
    let row_height = 46.0;
    let count = series.len().max(1) as f64;
    let mut drawing = Drawing::new(TOP + BOTTOM + row_height * count, 170.0, &format!("values in {unit}"));
    let ticks: Vec<_> = scale.ticks(6).into_iter().map(|tick| (scale.place(tick), tick_label(tick))).collect();
    let title = if is_wide { format!("{unit} (logarithmic)") } else { unit.to_owned() };
    drawing.horizontal_axis(&ticks, &title);
    let mut random = fastrand::Rng::with_seed(1);
    for (index, series) in series.iter().enumerate() {
        let middle = 1.0 - (index as f64 + 0.5) / count;
        let (x, y) = (drawing.left - 10.0, drawing.y(middle) + 4.0);
        let name = shorten(&series.name, 24);
        let _ = write!(
            drawing.svg,
            r#"<text class="name" x="{x:.1}" y="{y:.1}" text-anchor="end">{}</text>"#,
            escape(&name)
        );
        let every = series.values.len().div_ceil(POINTS_MAX).max(1);
        for value in series.values.iter().step_by(every) {
            let jitter = (random.f64() - 0.5) * 0.62 / count;
            drawing.dot((scale.place(*value), middle + jitter), 2.6, series.colour, &format!("{value:.1} {unit}"));
        }
        let (y, half) = (drawing.y(middle), row_height * 0.36);
        if let Some(interval) = Interval::of_average(&series.values) {
            let (from, to) = (drawing.x(scale.place(interval.low)), drawing.x(scale.place(interval.high)));
            let _ =
                write!(drawing.svg, r#"<line class="spread" x1="{from:.1}" x2="{to:.1}" y1="{y:.1}" y2="{y:.1}"/>"#);
        }
        let x = drawing.x(scale.place(Summary::new(&series.values).median));
        let _ = write!(
            drawing.svg,
            r#"<line class="median" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}"/>"#,
            y - half,
            y + half,
        );
    }
    drawing.finish(&[])
}

/// Draws the share of values above each value on logarithmic axes, which magnify the tail.
pub(crate) fn tail_plot(series: &[Series], unit: &str) -> String {
    let sorted: Vec<Vec<f64>> = series.iter().map(|series| sorted(&series.values)).collect();
    let longest = sorted.iter().map(Vec::len).max().unwrap_or(0);
    let decades = (longest.max(10) as f64).log10().ceil();
    let scale = Scale::logarithmic(sorted.iter().flatten().copied(), 1.0);
    let mut drawing = Drawing::new(300.0, LEFT + 10.0, &format!("distribution of single values in {unit}"));
    let ticks: Vec<_> = scale.ticks(8).into_iter().map(|tick| (scale.place(tick), tick_label(tick))).collect();
    drawing.horizontal_axis(&ticks, &format!("{unit} (logarithmic)"));
    let mut ticks = vec![(0.0, "0 %".to_owned()), (2_f64.log10() / decades, "50 %".to_owned())];
    ticks.extend((1..=decades as usize).map(|decade| {
        (
            decade as f64 / decades,
            format!("{:.*} %", decade.saturating_sub(2), 100.0 - 100.0 / 10_f64.powi(decade as i32)),
        )
    }));
    drawing.vertical_axis(&ticks, "share");
    for (index, values) in sorted.iter().enumerate().filter(|(_, values)| !values.is_empty()) {
        let most = (values.len() as f64).log10();
        let steps = 240;
        let points: Vec<_> = (0..=steps)
            .map(|step| {
                let height = most * f64::from(step) / f64::from(steps);
                let value = percentile(values, 100.0 - 100.0 / 10_f64.powf(height));
                (scale.place(value), height / decades)
            })
            .chain(values.last().map(|last| (scale.place(*last), most / decades)))
            .collect();
        drawing.line(&points, series[index].colour);
    }
    drawing.finish(series)
}

/// Draws the number of values in each power of two.
pub fn histogram(series: &[Series], unit: &str) -> String {
    let bucket = |value: f64| value.max(1.0).log2().floor() as usize;
    let counts: Vec<Vec<usize>> = series
        .iter()
        .map(|series| {
            let mut counts = Vec::new();
            for value in &series.values {
                let bucket = bucket(*value);
                counts.resize(counts.len().max(bucket + 1), 0);
                counts[bucket] += 1;
            }
            counts
        })
        .collect();
    let bucket_count = counts.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let share = |counts: &[usize], bucket: usize| {
        let total: usize = counts.iter().sum();
        counts.get(bucket).copied().unwrap_or(0) as f64 * 100.0 / total.max(1) as f64
    };
    let scale = Scale::from_zero(counts.iter().flat_map(|counts| (0..bucket_count).map(|b| share(counts, b))));
    let mut drawing = Drawing::new(240.0, LEFT, &format!("histogram in powers of two of {unit}"));
    let ticks: Vec<_> =
        scale.ticks(5).into_iter().map(|tick| (scale.place(tick), format!("{} %", tick_label(tick)))).collect();
    drawing.vertical_axis(&ticks, "share");
    let width = 1.0 / bucket_count as f64;
    let every = bucket_count.div_ceil(14);
    let ticks: Vec<_> = (0..bucket_count)
        .step_by(every)
        .map(|bucket| {
            (
                bucket as f64 * width,
                if bucket == 0 { "0".to_owned() } else { tick_label((1_u64 << bucket.min(60)) as f64) },
            )
        })
        .collect();
    drawing.horizontal_axis(&ticks, &format!("{unit}, from"));
    let bar_width = width * 0.86 / series.len().max(1) as f64;
    for (index, counts) in counts.iter().enumerate() {
        for bucket in 0..bucket_count {
            let share = share(counts, bucket);
            let x = drawing.x(bucket as f64 * width + width * 0.07 + index as f64 * bar_width);
            let (top, bottom) = (drawing.y(scale.place(share)), drawing.y(0.0));
            let drawn_width = drawing.x(bar_width) - drawing.x(0.0);
            let _ = write!(
                drawing.svg,
                r#"<rect class="bar s{}" x="{x:.1}" y="{top:.1}" width="{drawn_width:.1}" height="{:.1}"><title>{share:.2} %</title></rect>"#,
                series[index].colour % COLOURS,
                bottom - top,
            );
        }
    }
    drawing.finish(series)
}

/// Draws a line for each series over common horizontal positions.
pub(crate) fn line_plot(places: &[f64], series: &[Series], place_title: &str, unit: &str) -> String {
    let across = Scale::from_zero(places.iter().copied());
    let scale = Scale::from_zero(series.iter().flat_map(|series| series.values.iter().copied()));
    let mut drawing = Drawing::new(300.0, LEFT, &format!("{unit} over {place_title}"));
    let ticks: Vec<_> = places.iter().map(|place| (across.place(*place), tick_label(*place))).collect();
    drawing.horizontal_axis(&ticks, place_title);
    let ticks: Vec<_> = scale.ticks(6).into_iter().map(|tick| (scale.place(tick), tick_label(tick))).collect();
    drawing.vertical_axis(&ticks, unit);
    for series in series {
        let points: Vec<_> =
            places.iter().zip(&series.values).map(|(x, y)| (across.place(*x), scale.place(*y))).collect();
        drawing.line(&points, series.colour);
        for (point, value) in points.iter().zip(&series.values) {
            drawing.dot(*point, 4.0, series.colour, &format!("{}: {value:.3} {unit}", series.name));
        }
    }
    drawing.finish(series)
}

/// Escapes text for HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn shorten(name: &str, length_max: usize) -> String {
    if name.chars().count() <= length_max {
        return name.to_owned();
    }
    name.chars().take(length_max - 1).chain(['…']).collect()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// A mapping from values to positions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Linear.
    Linear {
        /// The value at the start.
        low: f64,
        /// The value at the end.
        high: f64,
    },
    /// Logarithmic.
    Log {
        /// The value at the start; above zero.
        low: f64,
        /// The value at the end.
        high: f64,
    },
}

impl Scale {
    /// A linear scale from zero to slightly above the largest value.
    fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let high = values.into_iter().fold(0.0, f64::max);
        Self::Linear { low: 0.0, high: if high > 0.0 { high * 1.04 } else { 1.0 } }
    }

    /// A logarithmic scale over whole decades around the values; values below `low_min` are drawn at its edge.
    fn logarithmic(values: impl IntoIterator<Item = f64>, low_min: f64) -> Self {
        let (mut low, mut high) = (f64::MAX, low_min);
        for value in values {
            low = low.min(value.max(low_min));
            high = high.max(value);
        }
        let low = 10_f64.powf(low.min(high).log10().floor());
        let high = 10_f64.powf(high.log10().ceil());
        Self::Log { low, high: if high > low { high } else { low * 10.0 } }
    }

    /// The relative position of a value: 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value.max(low) / low).ln() / (high / low).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// About `count` round values for ticks.
    fn ticks(&self, count: usize) -> Vec<f64> {
        match *self {
            Self::Linear { low, high } => {
                let rough = (high - low) / count.max(1) as f64;
                let magnitude = 10_f64.powf(rough.log10().floor());
                let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
                let step = factors.map(|factor| factor * magnitude).into_iter().find(|step| *step >= rough * 0.999);
                let step = step.unwrap_or(rough);
                let first = (low / step).ceil();
                (0..=count * 2).map(|index| (first + index as f64) * step).take_while(|tick| *tick <= high).collect()
            }
            Self::Log { low, high } => {
                let (first, last) = (low.log10().round() as i32, high.log10().round() as i32);
                let every = ((last - first).unsigned_abs() as usize / count.max(1) + 1).max(1);
                (first..=last).step_by(every).map(|power| 10_f64.powi(power)).collect()
            }
        }
    }
}

/// The label of a tick; thousands and millions are abbreviated.
fn tick_label(value: f64) -> String {
    let (value, letter) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        Series { name: name.to_owned(), values: values.to_vec(), colour: 0 }
    }

    #[test]
    fn every_plot_stays_in_its_frame_for_any_values() {
        let cases: &[&[f64]] = &[&[], &[0.0], &[5.0], &[0.0, 1e9], &[0.001, 3.0, 70_000.0], &[7.0; 5000]];
        for values in cases {
            let data = [series("a <b> & \"c\"", values), series("d", &[1.0, 2.0])];
            let plots = [
                strip_plot(&data, "µs"),
                tail_plot(&data, "µs"),
                histogram(&data, "µs"),
                line_plot(&[1.0, 2.0], &data, "N", "s"),
            ];
            for plot in plots {
                assert!(!plot.contains("NaN") && !plot.contains("inf") && !plot.contains("<b>"), "{plot}");
                assert!(plot.contains("<svg ") && plot.ends_with("</svg>"));
                for key in ["x=\"", "cx=\"", "x1=\"", "y=\"", "cy=\""] {
                    for part in plot.split(&format!(" {key}")).skip(1) {
                        let number: f64 = part.split('"').next().unwrap().parse().unwrap();
                        assert!((0.0..=WIDTH).contains(&number), "{key}{number} in {plot}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_median_is_drawn_at_its_position() {
        let plot = strip_plot(&[series("a", &[0.0, 50.0, 100.0])], "µs");
        let x: f64 = plot.split(r#"class="median" x1=""#).nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        let expected = 170.0 + 50.0 / 104.0 * (WIDTH - RIGHT - 170.0);
        assert!((x - expected).abs() < 0.1, "{x} {expected}");
    }

    #[test]
    fn ticks_are_round_and_within() {
        let rows = [
            (Scale::Linear { low: 0.0, high: 104.0 }, 5, vec![0.0, 25.0, 50.0, 75.0, 100.0]),
            (Scale::Linear { low: 0.0, high: 0.9 }, 4, vec![0.0, 0.25, 0.5, 0.75]),
            (Scale::Log { low: 1.0, high: 1000.0 }, 5, vec![1.0, 10.0, 100.0, 1000.0]),
            (Scale::logarithmic([0.0, 3.0, 4567.0], 1.0), 2, vec![1.0, 1000.0]),
        ];
        for (scale, count, expected) in rows {
            assert_eq!(scale.ticks(count), expected, "{scale:?}");
        }
    }

    #[test]
    fn places_are_within_the_plot() {
        let log = Scale::Log { low: 1.0, high: 100.0 };
        for (scale, value, expected) in [
            (Scale::from_zero([]), 0.5, 0.5),
            (Scale::Linear { low: 0.0, high: 10.0 }, 12.0, 1.0),
            (log, 10.0, 0.5),
            (log, 0.0, 0.0),
        ] {
            assert!((scale.place(value) - expected).abs() < 1e-9, "{scale:?} {value}");
        }
    }

    #[test]
    fn labels_are_short() {
        for (value, expected) in [(0.0, "0"), (2.5, "2.5"), (1000.0, "1000"), (20_000.0, "20k"), (3.5e6, "3.5M")] {
            assert_eq!(tick_label(value), expected);
        }
    }
}
