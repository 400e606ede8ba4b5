//! Scales of plots, with ticks at round numbers.

/// A mapping from values to positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
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
    pub(super) fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let high = values.into_iter().fold(0.0, f64::max);
        Self::Linear { low: 0.0, high: if high > 0.0 { high * 1.04 } else { 1.0 } }
    }

    /// A logarithmic scale over whole decades around the values; values below `low_min` are drawn at its edge.
    pub(super) fn logarithmic(values: impl IntoIterator<Item = f64>, low_min: f64) -> Self {
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
    pub(super) fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value.max(low) / low).ln() / (high / low).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// About `count` round values for ticks.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
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
pub(super) fn tick_label(value: f64) -> String {
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
