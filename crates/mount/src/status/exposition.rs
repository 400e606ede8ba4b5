//! The text exposition format of Prometheus, version 0.0.4.

use std::{
    collections::HashSet,
    io::{self, Write},
};

use floe_image::harmless;

/// The media type of the format.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that also falls.
    Gauge,
    /// Counts of values in buckets.
    Histogram,
}

/// The labels of a sample: names and values.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Metrics of any number of mounts.
///
/// The format requires that all samples of a metric follow each other, so they are collected by metric.
#[derive(Default)]
pub struct Exposition {
    families: Vec<Family>,
    /// The samples' names and labels, which may not repeat.
    series: HashSet<String>,
    /// The length of all samples, in bytes.
    samples_bytes: usize,
    samples_bytes_max: Option<usize>,
}

/// A metric with its samples.
struct Family {
    name: String,
    header: String,
    samples: Vec<u8>,
}

impl Exposition {
    /// Creates an empty exposition with a limit for the total length of its samples, in bytes.
    pub fn with_limit(samples_bytes_max: usize) -> Self {
        Self { samples_bytes_max: Some(samples_bytes_max), ..Self::default() }
    }

    /// Adds samples of a mount, which the labels identify.
    pub fn of_mount(&mut self, labels: Labels<'_>) -> MountSamples<'_> {
        let labels = labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text)));
        MountSamples { exposition: self, labels: labels.collect::<Vec<_>>().join(",") }
    }

    /// The length of all samples, in bytes.
    pub fn samples_bytes(&self) -> usize {
        self.samples_bytes
    }

    /// Adds the metrics of other mounts.
    pub fn append(&mut self, other: Self) {
        self.samples_bytes += other.samples_bytes;
        for family in other.families {
            match self.families.iter_mut().find(|known| known.name == family.name) {
                Some(known) => known.samples.extend(family.samples),
                None => self.families.push(family),
            }
        }
    }

    /// Writes all metrics.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write(&self, writer: &mut dyn Write) -> io::Result<()> {
        self.families.iter().try_for_each(|family| {
            writer.write_all(family.header.as_bytes())?;
            writer.write_all(&family.samples)
        })
    }

    fn begin(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let header = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.families.push(Family { name: name.to_owned(), header, samples: Vec::new() });
    }
}

/// Adds samples of a mount, each with the labels of the mount.
pub struct MountSamples<'a> {
    exposition: &'a mut Exposition,
    labels: String,
}

impl MountSamples<'_> {
    /// A gauge with one sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> io::Result<()> {
        self.one(name, Kind::Gauge, help, &[], value)
    }

    /// A metric with one sample.
    pub fn one(&mut self, name: &str, kind: Kind, help: &str, labels: Labels<'_>, value: f64) -> io::Result<()> {
        self.header(name, kind, help)?;
        self.sample(name, labels, value)
    }

    /// A counter with a sample for each value of a label.
    pub fn family<'v>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        samples: impl Iterator<Item = (&'v str, u64)>,
    ) -> io::Result<()> {
        self.header(name, Kind::Counter, help)?;
        samples.into_iter().try_for_each(|(value, count)| self.sample(name, &[(label, value)], count as f64))
    }

    /// Begins a metric; samples follow.
    pub fn header(&mut self, name: &str, kind: Kind, help: &str) -> io::Result<()> {
        if !self.exposition.families.iter().any(|family| family.name == name) {
            self.exposition.begin(name, kind, help);
        }
        Ok(())
    }

    /// A sample of a metric that has begun.
    ///
    /// # Errors
    /// The metric has not begun.
    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) -> io::Result<()> {
        self.sample_of(name, "", labels, value)
    }

    /// A sample whose name is the metric's with a suffix, as in histograms.
    ///
    /// # Errors
    /// The metric has not begun, the sample is a duplicate, or the samples exceed the limit.
    pub fn sample_of(&mut self, name: &str, suffix: &str, labels: Labels<'_>, value: f64) -> io::Result<()> {
        let mut series = format!("{name}{suffix}{{{}", self.labels);
        for (label, text) in labels {
            series += &format!(",{label}=\"{}\"", escaped(text));
        }
        series.push('}');
        let Exposition { families, series: known, samples_bytes, samples_bytes_max } = &mut *self.exposition;
        let family = families.iter_mut().find(|family| family.name == name);
        let samples = &mut family.ok_or_else(|| io::Error::other(format!("{name} has no header")))?.samples;
        let before = samples.len();
        writeln!(samples, "{series} {value}")?;
        *samples_bytes += samples.len() - before;
        if samples_bytes_max.is_some_and(|limit| *samples_bytes > limit) {
            return Err(io::Error::other("too many samples"));
        }
        // Prometheus rejects all metrics if one sample occurs twice.
        if known.insert(series) { Ok(()) } else { Err(io::Error::other(format!("{name} has a duplicate sample"))) }
    }
}

/// The value of a label, with control characters, quotes, backslashes and line feeds escaped.
fn escaped(text: &str) -> String {
    harmless(text).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
