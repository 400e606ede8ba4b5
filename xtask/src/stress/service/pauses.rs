//! How long readers wait.

use std::{collections::BTreeMap, fmt, time::Duration};

/// What happens while readers read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// Nothing: for comparison.
    None,
    /// A process that reads images is killed.
    DomainKill,
    /// The broker is killed, and another one is started at once.
    BrokerKill,
    /// The program is replaced.
    Upgrade,
}

/// The longest operation of each reader, for each event.
#[derive(Default)]
pub(super) struct Pauses {
    of: BTreeMap<Event, Vec<Duration>>,
    counts: BTreeMap<Event, usize>,
}

impl Pauses {
    /// Adds the longest operation of each reader during an event.
    pub(super) fn add(&mut self, event: Event, longest: Vec<Duration>) {
        self.of.entry(event).or_default().extend(longest);
        *self.counts.entry(event).or_default() += 1;
    }
}

impl fmt::Display for Pauses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "longest operation of a reader in ms       p50       p99   longest")?;
        for (event, pauses) in &self.of {
            let mut sorted = pauses.clone();
            sorted.sort_unstable();
            let at = |percent: usize| {
                let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
                sorted.get(index).map_or(0.0, |pause| pause.as_secs_f64() * 1e3)
            };
            let (name, count) = (format!("{event:?}"), self.counts.get(event).copied().unwrap_or(0));
            writeln!(formatter, "{name:<12} {count:>5}              {:>9.1} {:>9.1} {:>9.1}", at(50), at(99), at(100))?;
        }
        Ok(())
    }
}
