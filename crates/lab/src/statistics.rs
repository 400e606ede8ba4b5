//! Summaries of many values, and confidence intervals of averages and differences by bootstrapping, without assumptions about
//! the distribution.

use serde::Serialize;

/// The number of resamples.
const RESAMPLES: usize = 4000;
/// A fixed seed, so that a report can be reproduced from its values.
const SEED: u64 = 0x5eed_f10e;

/// The range that contains 95 % of the averages of resampled values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The 2.5th percentile.
    pub low: f64,
    /// The 97.5th percentile.
    pub high: f64,
}

impl Interval {
    /// The interval of the average of `values`; `None` for fewer than two.
    pub(crate) fn of_average(values: &[f64]) -> Option<Self> {
        let mut random = fastrand::Rng::with_seed(SEED);
        (values.len() > 1).then(|| Self::of(|| resampled_average(values, &mut random)))
    }

    /// The interval of the difference of two averages in percent of the baseline's average; `None` for fewer than two
    /// values, or a baseline of zero.
    pub(crate) fn of_difference_percent(baseline: &[f64], values: &[f64]) -> Option<Self> {
        if baseline.len() < 2 || values.len() < 2 || baseline.iter().all(|&value| value == 0.0) {
            return None;
        }
        let mut random = fastrand::Rng::with_seed(SEED);
        Some(Self::of(|| {
            let (before, after) = (resampled_average(baseline, &mut random), resampled_average(values, &mut random));
            if before == 0.0 { 0.0 } else { (after - before) / before * 100.0 }
        }))
    }

    fn of(draw: impl FnMut() -> f64) -> Self {
        let mut averages: Vec<f64> = std::iter::repeat_with(draw).take(RESAMPLES).collect();
        averages.sort_by(f64::total_cmp);
        Self { low: percentile(&averages, 2.5), high: percentile(&averages, 97.5) }
    }
}

fn resampled_average(values: &[f64], random: &mut fastrand::Rng) -> f64 {
    let draws: Vec<f64> = (0..values.len()).map(|_| values[random.usize(..values.len())]).collect();
    average(&draws)
}

/// The average, spread and percentiles of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The number of values.
    pub count: usize,
    /// The arithmetic mean.
    pub average: f64,
    /// The smallest value.
    pub minimum: f64,
    /// The largest value.
    pub maximum: f64,
    /// The sample standard deviation (divisor n − 1).
    pub standard_deviation: f64,
    /// The median.
    pub median: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p99_9: f64,
}

impl Summary {
    /// Summarises `values`; all zero if there are none.
    pub fn new(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&minimum), Some(&maximum)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let average = average(&sorted);
        let squares: f64 = sorted.iter().map(|value| (value - average).powi(2)).sum();
        let count = sorted.len();
        let standard_deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        Self {
            count,
            average,
            minimum,
            maximum,
            standard_deviation,
            median: percentile(&sorted, 50.0),
            p90: percentile(&sorted, 90.0),
            p99: percentile(&sorted, 99.0),
            p99_9: percentile(&sorted, 99.9),
        }
    }
}

/// The mean of `values`; zero if there are none.
pub fn average(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The percentile of sorted values, with linear interpolation.
pub(crate) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = (last as f64 * percent / 100.0).clamp(0.0, last as f64);
    let index = place.floor() as usize;
    let (low, high) = (sorted[index], sorted[(index + 1).min(last)]);
    low + (high - low) * (place - place.floor())
}

/// How far `value` is above `baseline`, in percent of `baseline`; `None` if `baseline` is zero.
pub(crate) fn difference_percent(baseline: f64, value: f64) -> Option<f64> {
    (baseline != 0.0).then(|| (value - baseline) / baseline * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_has_the_theoretical_width() {
        let mut random = fastrand::Rng::with_seed(7);
        let values: Vec<f64> = (0..400).map(|_| 100.0 + 20.0 * (random.f64() - 0.5)).collect();
        let interval = Interval::of_average(&values).unwrap();
        // Uniform over a width of 20: deviation 5.77, standard error 0.289, twice 1.96 of it.
        let width = interval.high - interval.low;
        assert!((0.9..1.4).contains(&width), "{interval:?}");
        assert!(interval.low < 100.7 && interval.high > 99.3, "{interval:?}");
    }

    #[test]
    fn differences_tell_noise_from_effect() {
        let noise: Vec<f64> = (0..60).map(|index| 100.0 + f64::from(index % 7)).collect();
        let halved: Vec<f64> = noise.iter().map(|value| value / 2.0).collect();
        let same = Interval::of_difference_percent(&noise, &noise).unwrap();
        assert!(same.low < 0.0 && same.high > 0.0, "{same:?}");
        let effect = Interval::of_difference_percent(&noise, &halved).unwrap();
        assert!(effect.low > -52.0 && effect.high < -48.0, "{effect:?}");
        assert_eq!(Interval::of_difference_percent(&[0.0, 0.0], &[1.0, 1.0]), None);
        assert_eq!(Interval::of_average(&[1.0]), None);
    }

    #[test]
    fn summaries_of_known_values() {
        let rows: &[(&[f64], [f64; 5])] = &[
            // average, median, minimum, maximum, standard deviation
            (&[], [0.0; 5]),
            (&[7.0], [7.0, 7.0, 7.0, 7.0, 0.0]),
            (&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0], [5.0, 4.5, 2.0, 9.0, (32.0_f64 / 7.0).sqrt()]),
            (&[3.0, 1.0, 2.0], [2.0, 2.0, 1.0, 3.0, 1.0]),
        ];
        for (values, expected) in rows {
            let s = Summary::new(values);
            assert_eq!([s.average, s.median, s.minimum, s.maximum, s.standard_deviation], *expected, "{values:?}");
        }
    }

    #[test]
    fn percentiles_lie_between_neighbours() {
        let hundred: Vec<f64> = (0..=100).map(f64::from).collect();
        for percent in [0.0, 12.5, 50.0, 99.0, 99.9, 100.0] {
            assert!((percentile(&hundred, percent) - percent).abs() < 1e-9);
        }
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn the_published_difference_is_ours() {
        // The published table's average: 15253 → 2914 µs, −80.89 %.
        assert_eq!((difference_percent(15253.0, 2914.0).unwrap() * 100.0).round(), -8090.0);
        assert_eq!(difference_percent(0.0, 1.0), None);
    }
}
