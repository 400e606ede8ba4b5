//! Confidence intervals of averages and differences by bootstrapping, without assumptions about the distribution.

use serde::Serialize;

use super::summary::{average, percentile};

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
    pub fn of_average(values: &[f64]) -> Option<Self> {
        let mut random = fastrand::Rng::with_seed(SEED);
        (values.len() > 1).then(|| Self::of(|| resampled_average(values, &mut random)))
    }

    /// The interval of the difference of two averages in percent of the baseline's average; `None` for fewer than two
    /// values, or a baseline of zero.
    pub fn of_difference_percent(baseline: &[f64], values: &[f64]) -> Option<Self> {
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
}
