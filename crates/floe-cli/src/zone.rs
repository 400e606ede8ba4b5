//! The time zone of the user.

use std::env;

use floe::Timestamp;
use jiff::tz::TimeZone;

/// The rule for daylight saving time that the C library adds to a value of `TZ` that names such a time without a rule, as
/// `CET-1CEST` does.
const DEFAULT_RULE: &str = ",M3.2.0,M11.1.0";

/// A time zone.
pub(crate) struct Zone(TimeZone);

impl Zone {
    pub(crate) const UTC: Self = Self(TimeZone::UTC);

    /// The zone that the C library would use: that of the variable `TZ`, else that of /etc/localtime, else UTC.
    ///
    /// Reads files, so it must be called before the process is confined.
    pub(crate) fn local() -> Self {
        let with_default_rule = || {
            let text = env::var("TZ").ok()?;
            TimeZone::posix(&(text + DEFAULT_RULE)).ok()
        };
        Self(TimeZone::try_system().ok().or_else(with_default_rule).unwrap_or(TimeZone::UTC))
    }

    /// A time moved by the offset of the zone from UTC, so that printing it as UTC prints the zone's time.
    pub(crate) fn shift(&self, time: Timestamp) -> Timestamp {
        let (min, max) = (jiff::Timestamp::MIN, jiff::Timestamp::MAX);
        // Years that the crate does not know have the offset of the nearest one that it knows.
        let seconds = time.seconds.clamp(min.as_second(), max.as_second());
        let offset = jiff::Timestamp::from_second(seconds).map_or(0, |known| self.0.to_offset(known).seconds());
        Timestamp { seconds: time.seconds.saturating_add(offset.into()), ..time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_can_be_shifted() {
        let zone = Zone(TimeZone::posix("XYZ-2ABC,M3.5.0,M10.5.0/3").expect("a zone"));
        for (seconds, expected) in [
            (0, 7200),
            // 2024-07-01T12:00:00Z
            (1_719_835_200, 1_719_835_200 + 10_800),
            (i64::MIN, i64::MIN + 7200),
            (i64::MAX, i64::MAX),
        ] {
            let time = Timestamp { seconds, nanoseconds: 5 };
            assert_eq!(zone.shift(time), Timestamp { seconds: expected, nanoseconds: 5 });
            assert_eq!(Zone::UTC.shift(time), time);
        }
    }
}
