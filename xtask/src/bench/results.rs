//! Results of all rounds, as a table or as JSON.

use std::{borrow::Cow, collections::BTreeMap};

use serde::Serialize;

use super::workload::{Better, Measurement};

/// The results of one image: all rounds, workloads and contenders.
#[derive(Debug, Default)]
pub(super) struct Results {
    rows: Vec<Row>,
    failures: Vec<String>,
}

#[derive(Debug)]
struct Row {
    workload: String,
    metric: Cow<'static, str>,
    better: Better,
    values: BTreeMap<String, Vec<f64>>,
}

#[derive(Serialize)]
struct Cell<'results> {
    workload: &'results str,
    metric: &'results str,
    contender: &'results str,
    values: &'results [f64],
    median: f64,
    /// How many times better the first contender is: Floe, if it takes part.
    ratio_of_first: Option<f64>,
}

impl Results {
    /// Adds the results of one run.
    pub(super) fn add(&mut self, workload: &str, contender: &str, measurements: Vec<Measurement>) {
        for Measurement { metric, value, better } in measurements {
            let found = self.rows.iter().position(|row| row.workload == workload && row.metric == metric);
            let index = found.unwrap_or_else(|| {
                let values = BTreeMap::new();
                self.rows.push(Row { workload: workload.to_owned(), metric, better, values });
                self.rows.len() - 1
            });
            self.rows[index].values.entry(contender.to_owned()).or_default().push(value);
        }
    }

    /// Records a failed run.
    pub(super) fn add_failure(&mut self, failure: String) {
        self.failures.push(failure);
    }

    /// The runs that failed.
    pub(super) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// A table of medians; in parentheses, how many times better the first contender is.
    pub(super) fn table(&self, contenders: &[String]) -> String {
        let mut lines = vec![vec![String::new(); contenders.len() + 2]];
        for (column, contender) in contenders.iter().enumerate() {
            lines[0][column + 2].clone_from(contender);
        }
        let mut workload = "";
        for row in &self.rows {
            let title = if workload == row.workload { String::new() } else { row.workload.clone() };
            workload = &row.workload;
            let mut line = vec![title, row.metric.to_string()];
            for contender in contenders {
                let cell = row.median(contender).map_or("-".to_owned(), |median| {
                    let ratio = row.ratio(&contenders[0], contender).map(|ratio| format!(" ({ratio:.2}×)"));
                    format!("{}{}", digits(median), ratio.unwrap_or_default())
                });
                line.push(cell);
            }
            lines.push(line);
        }
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..contenders.len() + 2).map(width).collect();
        let mut text = String::new();
        for line in &lines {
            let mut cells = Vec::new();
            for (column, cell) in line.iter().enumerate() {
                let room = " ".repeat(widths[column] - cell.chars().count());
                cells.push(if column < 2 { format!("{cell}{room}") } else { format!("{room}{cell}") });
            }
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// All results.
    pub(super) fn json(&self, contenders: &[String]) -> serde_json::Value {
        let mut cells = Vec::new();
        for row in &self.rows {
            for contender in contenders {
                let Some((values, median)) = row.values.get(contender).zip(row.median(contender)) else { continue };
                cells.push(Cell {
                    workload: &row.workload,
                    metric: &row.metric,
                    contender,
                    values,
                    median,
                    ratio_of_first: row.ratio(&contenders[0], contender),
                });
            }
        }
        serde_json::json!(cells)
    }
}

impl Row {
    fn median(&self, contender: &str) -> Option<f64> {
        let mut values = self.values.get(contender)?.clone();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        Some(if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 })
    }

    fn ratio(&self, first: &str, contender: &str) -> Option<f64> {
        let (own, other) = self.median(first).filter(|_| first != contender).zip(self.median(contender))?;
        let ratio = if self.better == Better::More { own / other } else { other / own };
        // Counts may be zero, and differences below zero.
        Some(ratio).filter(|ratio| ratio.is_finite() && *ratio >= 0.0)
    }
}

/// Formats a number with at least three digits.
fn digits(value: f64) -> String {
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_right() {
        let mut results = Results::default();
        for (contender, speeds, times) in
            [("floe", [200.0, 400.0, 300.0], [1.0, 1.0, 4.0]), ("peer", [150.0, 150.0, 90.0], [2.5, 2.5, 2.5])]
        {
            for (speed, time) in speeds.into_iter().zip(times) {
                let measurements = vec![
                    Measurement { metric: "MB/s".into(), value: speed, better: Better::More },
                    Measurement { metric: "s".into(), value: time, better: Better::Less },
                ];
                results.add("read", contender, measurements);
            }
        }
        let contenders = ["floe".to_owned(), "peer".to_owned(), "absent".to_owned()];
        assert_eq!(
            results.table(&contenders),
            concat!(
                "            floe          peer  absent\n",
                "read  MB/s   300   150 (2.00×)       -\n",
                "      s     1.00  2.50 (2.50×)       -\n",
            )
        );
        assert_eq!(results.json(&contenders).as_array().map(Vec::len), Some(4));
    }
}
