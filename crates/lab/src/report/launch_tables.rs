//! The tables of a launch report, in the format of the published ones.

use super::page::{Table, number, percent};
use crate::{
    launch::{LaunchReport, METRICS, Metric},
    statistics::{Interval, Summary, average, difference_percent},
};

/// A table with a title.
pub(super) struct Titled {
    pub(super) title: String,
    pub(super) table: Table,
    /// The metric, if the table has all rows and is worth a plot.
    pub(super) metric: Option<&'static Metric>,
}

/// The tables of a report: those with all rows, the comparison with a published result, and the averages of all other
/// metrics.
pub(super) fn tables(report: &LaunchReport) -> Vec<Titled> {
    let mut tables = Vec::new();
    for metric in in_full(report) {
        let per_launch = if metric.title.contains("launch") { "" } else { " per launch" };
        let title = format!("{}{per_launch} ({})", metric.title, metric.unit);
        tables.extend(metric_table(report, metric).map(|table| Titled { title, table, metric: Some(metric) }));
        let beside = published_table(report, metric);
        tables.extend(beside.map(|(title, table)| Titled { title, table, metric: None }));
    }
    let title = "averages of the other metrics, per launch".to_owned();
    tables.push(Titled { title, table: rest_table(report), metric: None });
    tables
}

/// The metrics that are shown with all rows: those of the comparison, and the launch time.
fn in_full(report: &LaunchReport) -> Vec<&'static Metric> {
    let compared = report.comparison.map_or(&[Metric::LATENCY][..], |(comparison, _)| comparison.metrics());
    compared.iter().copied().chain([Metric::WALL]).collect()
}

/// The conclusion, in a few lines.
pub(super) fn answer(report: &LaunchReport) -> Vec<String> {
    let walls: Vec<Vec<f64>> = (0..report.variants.len()).map(|index| values(report, index, Metric::WALL)).collect();
    let known = (0..walls.len()).filter(|&index| !walls[index].is_empty());
    let Some(best) = known.clone().min_by(|&a, &b| average(&walls[a]).total_cmp(&average(&walls[b]))) else {
        return vec!["no launch was measured".to_owned()];
    };
    let mut lines = vec![format!(
        "fastest on average: {}, {} ms a launch",
        report.variants[best].name,
        number(average(&walls[best]))
    )];
    for index in known.filter(|&index| index != best) {
        let difference = difference_percent(average(&walls[best]), average(&walls[index])).unwrap_or(0.0);
        let interval = Interval::of_difference_percent(&walls[best], &walls[index]);
        let verdict = match interval {
            Some(i) if i.low > 0.0 => format!("slower (95 %: {}…{})", percent(i.low), percent(i.high)),
            Some(i) => format!("no significant difference (95 %: {}…{})", percent(i.low), percent(i.high)),
            None => "too few launches".to_owned(),
        };
        let (name, wall) = (&report.variants[index].name, number(average(&walls[index])));
        lines.push(format!("  {name}: {wall} ms, {}: {verdict}", percent(difference)));
    }
    lines.extend(where_time_went(report, best));
    lines
}

/// The behaviour of the command in a launch, if known.
fn where_time_went(report: &LaunchReport, variant: usize) -> Option<String> {
    let of = |title: &str| {
        let metric = METRICS.iter().find(|metric| metric.title == title)?;
        let values = values(report, variant, metric);
        (!values.is_empty()).then(|| number(average(&values)))
    };
    let (ran, waited) = (of("the command ran for")?, of("the command waited for a CPU")?);
    let slept = of("the command slept for").map_or(String::new(), |slept| format!(", slept {slept} ms"));
    let name = &report.variants[variant].name;
    Some(format!("with {name} the command and its child processes ran {ran} ms, waited {waited} ms for a CPU{slept}"))
}

/// The values of a metric for one variant, from the launches that the tables include.
pub fn values(report: &LaunchReport, variant: usize, metric: &Metric) -> Vec<f64> {
    let launches = report.launches.iter().filter(|launch| launch.variant == variant && launch.discarded.is_none());
    // Controls serve the cost of tracing; without tracing, all launches count.
    let has_traced = report.launches.iter().any(|launch| launch.is_traced);
    launches.filter(|launch| launch.is_traced || !has_traced).filter_map(metric.value).collect()
}

/// A table of one metric for all variants; `None` if no launch has the metric.
fn metric_table(report: &LaunchReport, metric: &Metric) -> Option<Table> {
    let columns: Vec<Vec<f64>> = (0..report.variants.len()).map(|variant| values(report, variant, metric)).collect();
    if columns.iter().all(Vec::is_empty) {
        return None;
    }
    let summaries: Vec<Summary> = columns.iter().map(|values| Summary::new(values)).collect();
    let mut table = Table::new(head("", report));
    let count_max = summaries.iter().map(|summary| summary.count).max().unwrap_or(0);
    for (title, value, count_min) in ROWS {
        // Twenty launches do not determine a 99th percentile.
        if count_max >= count_min {
            let numbers: Vec<_> = summaries.iter().map(|s| (s.count > 0).then(|| value(s))).collect();
            table.row(row(title.to_owned(), &numbers));
        }
    }
    let mut bounds = vec!["95 % of the average".to_owned()];
    for (index, values) in columns.iter().enumerate() {
        let interval = Interval::of_average(values);
        bounds.push(interval.map_or("—".to_owned(), |i| format!("{}…{}", number(i.low), number(i.high))));
        if index > 0 {
            let interval = Interval::of_difference_percent(&columns[0], values);
            bounds.push(interval.map_or(String::new(), |i| format!("{}…{}", percent(i.low), percent(i.high))));
        }
    }
    table.row(bounds);
    let mut counts = vec!["Launches".to_owned()];
    for (index, summary) in summaries.iter().enumerate() {
        counts.push(summary.count.to_string());
        if index > 0 {
            counts.push(String::new());
        }
    }
    table.row(counts);
    Some(table)
}

/// Title, value, and the minimum number of launches for a meaningful value.
type Row = (&'static str, fn(&Summary) -> f64, usize);

const ROWS: [Row; 8] = [
    ("Average", |summary| summary.average, 1),
    ("Median", |summary| summary.median, 1),
    ("Minimum", |summary| summary.minimum, 1),
    ("Maximum", |summary| summary.maximum, 1),
    ("Standard deviation", |summary| summary.standard_deviation, 2),
    ("p90", |summary| summary.p90, 10),
    ("p99", |summary| summary.p99, 100),
    ("p99.9", |summary| summary.p99_9, 1000),
];

/// Our figures next to those of a published table; `None` if the variants do not belong to its comparison.
fn published_table(report: &LaunchReport, metric: &Metric) -> Option<(String, Table)> {
    let (comparison, has_second_image) = report.comparison?;
    let published = comparison.published()?;
    let pairs = comparison.pairs(has_second_image);
    if published.metric.title != metric.title || pairs.is_empty() {
        return None;
    }
    let name = |index: usize| report.variants.get(index).map_or("—", |variant| &variant.name);
    let summary = |index: usize| Some(Summary::new(&values(report, index, metric))).filter(|s| s.count > 0);
    // Either one pair of variants and many rows, or a row for each pair.
    let is_one_pair = pairs.len() == 1 && published.rows.len() > 1 && ROWS[1].0 == published.rows[1].0;
    let [before, after] = published.columns;
    let mut head = vec![metric.unit.to_owned(), format!("published: {before}"), after.to_owned(), "diff".to_owned()];
    let others: Vec<usize> = if is_one_pair {
        (0..report.variants.len()).filter(|&index| index != pairs[0].0 && index != pairs[0].1).collect()
    } else {
        Vec::new()
    };
    if is_one_pair {
        head.extend([format!("here: {}", name(pairs[0].0)), name(pairs[0].1).to_owned(), "diff".to_owned()]);
        for &other in &others {
            head.extend([name(other).to_owned(), "diff".to_owned()]);
        }
    } else {
        head.extend(["here, before".to_owned(), "after".to_owned(), "diff".to_owned(), "variants".to_owned()]);
    }
    let mut table = Table::new(head);
    for (index, (title, before, after)) in published.rows.iter().enumerate() {
        let Some(&(left, right)) = pairs.get(if is_one_pair { 0 } else { index }) else { continue };
        let value = ROWS.iter().find(|row| row.0 == *title).map_or(ROWS[0].1, |row| row.1);
        let mut cells = row((*title).to_owned(), &[Some(*before), Some(*after)]);
        let ours = [summary(left).map(|s| value(&s)), summary(right).map(|s| value(&s))];
        cells.extend(row(String::new(), &ours).into_iter().skip(1));
        for &other in &others {
            let pair = [ours[0], summary(other).map(|s| value(&s))];
            cells.extend(row(String::new(), &pair).into_iter().skip(2));
        }
        if !is_one_pair {
            cells.push(format!("{} → {}", name(left), name(right)));
        }
        table.row(cells);
    }
    Some((format!("comparison with the published result ({})", published.source), table))
}

/// The averages of all metrics that are not shown with all rows.
fn rest_table(report: &LaunchReport) -> Table {
    let mut table = Table::new(head("", report));
    let shown: Vec<_> = in_full(report).iter().map(|metric| metric.title).collect();
    for metric in METRICS.iter().filter(|metric| !shown.contains(&metric.title)) {
        let of_variant = |variant| {
            let values = values(report, variant, metric);
            (!values.is_empty()).then(|| average(&values))
        };
        let numbers: Vec<_> = (0..report.variants.len()).map(of_variant).collect();
        // Omits metrics that are zero everywhere.
        if numbers.iter().flatten().any(|&number| number != 0.0) {
            table.row(row(format!("{} ({})", metric.title, metric.unit), &numbers));
        }
    }
    table
}

fn head(title: &str, report: &LaunchReport) -> Vec<String> {
    let mut head = vec![title.to_owned()];
    for (index, variant) in report.variants.iter().enumerate() {
        head.push(variant.name.clone());
        if index > 0 {
            head.push("diff".to_owned());
        }
    }
    head
}

/// A title and numbers, each with its difference from the first.
fn row(title: String, numbers: &[Option<f64>]) -> Vec<String> {
    let mut cells = vec![title];
    for (index, value) in numbers.iter().enumerate() {
        cells.push(value.map_or("—".to_owned(), number));
        if index > 0 {
            let difference = numbers[0].zip(*value).and_then(|(first, value)| difference_percent(first, value));
            cells.push(difference.map_or(String::new(), percent));
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Account, Comparison, Latency, Launch, StageAccount, Temperature, Tier, VariantReport};
    use crate::stage::Surroundings;

    fn report(comparison: Option<(Comparison, bool)>, names: &[&str], count: u64) -> LaunchReport {
        let variants = names.iter().map(|name| VariantReport {
            name: (*name).to_owned(),
            image: "image".into(),
            image_bytes: 0,
            decompressors: String::new(),
        });
        let launches = (0..count).flat_map(|round| {
            (0..names.len()).map(move |variant| {
                // Each variant is ten times as fast as the one before it.
                let total_ns = (1_000_000 + round * 1000) / 10_u64.pow(u32::try_from(variant).unwrap());
                let mut account = Account::default();
                let stage = "pages".to_owned();
                account.latency.push(StageAccount { stage, total_ns, ..StageAccount::default() });
                Launch {
                    variant,
                    wall_ns: total_ns * 7,
                    decompression: Some(Latency { total_ns, ..Latency::default() }),
                    account: Some(account),
                    ..Launch::default()
                }
            })
        });
        LaunchReport {
            command: vec!["true".to_owned()],
            temperature: Temperature::Cold,
            tier: Tier::Counting,
            variants: variants.collect(),
            comparison,
            launches: launches.collect(),
            surroundings: Surroundings::default(),
            is_interrupted: false,
            traces: Vec::new(),
        }
    }

    #[test]
    fn published_figures_are_shown_next_to_ours() {
        use Comparison::{Pool, ReadAround, Windows, Workers};
        let rows: [(Comparison, bool, &[&str], &[&str]); 5] = [
            (
                Workers,
                false,
                &["s", "p", "f"],
                &["Average", "15253", "2914", "−80.90%", "1005", "100", "−90.00%", "10.05"],
            ),
            (
                Pool,
                false,
                &["none", "pool"],
                &["Average", "3434", "21", "−99.39%", "1.01", "0.10", "−90.00%", "none → pool"],
            ),
            (Windows, true, &["a", "b"], &["Average", "3364", "2079", "−38.20%", "1.01", "0.10", "−90.00%", "a → b"]),
            (ReadAround, false, &["wait", "off", "best"], &["Average, 64k window", "3364", "2684", "−20.21%"]),
            (ReadAround, true, &["w", "w2", "o", "o2", "b", "b2"], &["Average, 64k window", "3364", "2684", "−20.21%"]),
        ];
        for (comparison, has_second, names, expected) in rows {
            let report = report(Some((comparison, has_second)), names, 11);
            let (_, table) =
                published_table(&report, comparison.published().expect("it was published").metric).unwrap();
            let found = &table.rows()[1];
            assert_eq!(found.len(), table.rows()[0].len(), "{table}");
            assert_eq!(found[..expected.len()], *expected, "{table}");
        }
        let report = report(Some((Windows, false)), &["a"], 2);
        assert!(published_table(&report, Metric::PAGES).is_none(), "one image has one window");
    }

    #[test]
    fn rows_need_enough_launches() {
        for (count, expected) in [(1, 4), (9, 5), (10, 6), (99, 6), (100, 7), (1000, 8)] {
            let table = metric_table(&report(None, &["a", "b"], count), Metric::WALL).unwrap();
            // Apart from the head, the interval and the number of launches.
            assert_eq!(table.rows().len(), expected + 3, "{count}: {table}");
        }
    }

    #[test]
    fn the_answer_names_the_fastest_and_insignificant_differences() {
        let lines = answer(&report(None, &["slow", "fast"], 20));
        assert!(lines[0].starts_with("fastest on average: fast, 0.71 ms"), "{lines:?}");
        assert!(lines[1].contains("slow: 7.07 ms") && lines[1].contains(": slower (95 %"), "{lines:?}");
        let mut same = report(None, &["a", "b"], 20);
        same.launches.iter_mut().enumerate().for_each(|(n, launch)| launch.wall_ns = 1_000_000 + n as u64 % 7 * 1000);
        assert!(answer(&same)[1].contains("no significant difference"), "{:?}", answer(&same));
        assert_eq!(answer(&report(None, &["a"], 0)), ["no launch was measured"]);
    }
}
