//! Points in time as text, and the time zone of the user.

use std::{env, fmt};

use floe::Timestamp;
use jiff::tz::TimeZone;

/// Days from 0000-03-01 to 1970-01-01 in the proleptic Gregorian calendar.
const DAYS_TO_EPOCH: i64 = 719_468;

/// Days in 400 years.
const ERA_DAYS: i64 = 146_097;

/// A point in time in UTC in the format of ISO 8601: `2026-02-03T04:05:06Z`. `{:#}` adds nanoseconds.
pub(crate) struct IsoTime(pub(crate) Timestamp);

impl fmt::Display for IsoTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timestamp { seconds, nanoseconds } = self.0;
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(formatter, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if formatter.alternate() {
            write!(formatter, ".{nanoseconds:09}")?;
        }
        formatter.write_str("Z")
    }
}

impl IsoTime {
    /// The time in the format of the C library's `ctime`: `Tue Nov 14 22:13:20 2023`.
    pub(crate) fn in_words(&self) -> String {
        const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let (days, second) = (self.0.seconds.div_euclid(86_400), self.0.seconds.rem_euclid(86_400));
        let (year, month, day) = date(days);
        // 1970-01-01 was a Thursday.
        let weekday = WEEKDAYS[days.rem_euclid(7) as usize];
        let month = MONTHS[(month - 1) as usize];
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{weekday} {month} {day:>2} {hour:02}:{minute:02}:{second:02} {year}")
    }
}

/// The year, month and day of a day counted from 1970-01-01. Computed with years that begin in March, so that the leap
/// day comes last.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(DAYS_TO_EPOCH);
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (year + era * 400, if month < 10 { month + 3 } else { month - 9 });
    (if month <= 2 { year + 1 } else { year }, month, day)
}

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
    fn days_fall_on_their_dates() {
        for (seconds, nanoseconds, expected) in [
            (0, 0, "1970-01-01T00:00:00.000000000Z"),
            (-1, 999_999_999, "1969-12-31T23:59:59.999999999Z"),
            (951_782_400, 0, "2000-02-29T00:00:00.000000000Z"),
            (1_700_000_000, 5, "2023-11-14T22:13:20.000000005Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000000Z"),
            (-62_167_219_200, 0, "0000-01-01T00:00:00.000000000Z"),
            (253_402_300_800, 0, "10000-01-01T00:00:00.000000000Z"),
        ] {
            assert_eq!(format!("{:#}", IsoTime(Timestamp { seconds, nanoseconds })), expected);
        }
        let in_words = |seconds| IsoTime(Timestamp { seconds, nanoseconds: 0 }).in_words();
        assert_eq!(in_words(1_700_000_000), "Tue Nov 14 22:13:20 2023");
        assert_eq!(in_words(951_782_400 + 86_400), "Wed Mar  1 00:00:00 2000");
        // Any time that an image may contain can be printed.
        for seconds in [i64::MIN, i64::MAX] {
            assert!(IsoTime(Timestamp { seconds, nanoseconds: 0 }).to_string().ends_with('Z'));
        }
    }

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
