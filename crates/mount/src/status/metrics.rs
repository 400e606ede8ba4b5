//! The table of metrics: what the engine and the fetching process count.
//!
//! A metric is described where it is counted, by a row of [`floe_image::metrics!`]. Everything else follows from the row: the
//! field in the JSON of `floe status`, the words in its text, and the name, the help and the unit for Prometheus. A new counter
//! of a struct below is thus its row and the places that count.

use std::collections::BTreeMap;

use floe::remote::ImageCounts;
use floe_engine::{Counters, ReadAroundCounters};
use floe_image::{Metric, MetricKind, Metrics};
use serde_json::{Map, Value};

/// The metrics of one struct of counters, with their values.
pub(crate) struct MetricGroup {
    /// The object of the report that contains them.
    pub(crate) key: &'static str,
    /// The beginning of their names in this object.
    pub(crate) prefix: &'static str,
    /// The name of their line in the text.
    pub(crate) title: &'static str,
    metrics: &'static [Metric],
    values: Vec<u64>,
}

/// The metrics of an engine, as JSON: an object for each key.
pub(crate) type MetricObjects = BTreeMap<String, Value>;

impl MetricGroup {
    fn new<T: Metrics>(key: &'static str, prefix: &'static str, title: &'static str, counters: &T) -> Self {
        Self { key, prefix, title, metrics: T::METRICS, values: counters.values() }
    }

    /// The metrics of an engine and its prefetch, in the order of the text.
    fn of_engine(counters: &Counters, around: &ReadAroundCounters) -> [Self; 11] {
        [
            Self::new("work", "", "work", counters),
            Self::new("page_pool", "", "pages", &counters.pages),
            Self::new("block_cache", "", "blocks", &counters.blocks),
            Self::new("block_cache", "spill_file_", "  spill file", &counters.spill_file),
            Self::new("decoders", "", "decoders", &counters.decoders),
            Self::new("read_results", "", "reads", &counters.admission),
            Self::new("read_blocks", "", "  blocks", &counters.decoding),
            Self::new("metadata_cache", "", "metadata", &counters.decoded_metadata),
            Self::new("stored_metadata_cache", "", "  as stored", &counters.stored_metadata),
            Self::new("read_around", "", "read-around", around),
            Self::new("lz4", "", "lz4", &counters.windows),
        ]
    }

    /// The metrics of an engine and its prefetch, as JSON.
    pub(crate) fn objects(counters: &Counters, around: &ReadAroundCounters) -> MetricObjects {
        let mut objects = MetricObjects::new();
        for group in Self::of_engine(counters, around) {
            let object = objects.entry(group.key.to_owned()).or_insert_with(|| Map::new().into());
            for (metric, value) in group.rows() {
                let is_flag = metric.kind == MetricKind::Flag;
                object[format!("{}{}", group.prefix, metric.name)] =
                    if is_flag { (value > 0).into() } else { value.into() };
            }
        }
        objects
    }

    /// The metrics in the objects of a report. Missing ones are zero.
    pub(crate) fn of_report(objects: &MetricObjects) -> [Self; 11] {
        Self::of_engine(&Counters::default(), &ReadAroundCounters::default()).map(|group| {
            let value = |metric: &Metric| {
                let value = objects.get(group.key)?.get(format!("{}{}", group.prefix, metric.name))?;
                value.as_u64().or_else(|| value.as_bool().map(u64::from))
            };
            let values = group.metrics.iter().map(|metric| value(metric).unwrap_or_default()).collect();
            Self { values, ..group }
        })
    }

    /// The metrics of a remote image.
    pub(crate) fn of_remote(counts: &ImageCounts) -> [Self; 2] {
        [Self::new("remote", "", "  server", &counts.remote), Self::new("remote", "", "  cache", counts)]
    }

    /// The metrics with their values.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&'static Metric, u64)> {
        self.metrics.iter().zip(self.values.iter().copied())
    }

    /// The name for Prometheus, and the value in its base unit.
    pub(crate) fn sample(&self, metric: &Metric, value: u64) -> (String, f64) {
        let name = metric.name.strip_prefix("is_").unwrap_or(metric.name);
        let (name, value) = match name.strip_suffix("_ns") {
            Some(name) => (format!("{name}_seconds"), value as f64 / 1e9),
            None => (name.to_owned(), value as f64),
        };
        let end = if metric.kind == MetricKind::Counter { "_total" } else { "" };
        (format!("floe_{}_{}{name}{end}", self.key, self.prefix), value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_report_has_each_metric_once() {
        let counters = Counters { fetches: 7, ..Counters::default() };
        let around = ReadAroundCounters { stored_bytes: 8, ..ReadAroundCounters::default() };
        let objects = MetricGroup::objects(&counters, &around);
        assert_eq!((&objects["work"]["fetches"], &objects["read_around"]["stored_bytes"]), (&7.into(), &8.into()));
        assert_eq!(objects["page_pool"]["is_locked"], Value::Bool(false));
        let mut names = BTreeSet::new();
        let groups = MetricGroup::of_report(&objects);
        for group in groups.iter().chain(&MetricGroup::of_remote(&ImageCounts::default())) {
            for (metric, value) in group.rows() {
                let (name, _) = group.sample(metric, value);
                assert!(metric.help.ends_with('.') && names.insert(name), "{}.{}", group.key, metric.name);
            }
        }
        let values = |groups: [MetricGroup; 11]| groups.map(|group| group.values);
        assert_eq!(values(groups), values(MetricGroup::of_engine(&counters, &around)));
    }
}
