//! The pauses that servers ask for.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, header};

/// The maximum pause that is respected, before it is spread.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How long the client waits because of the `Retry-After` in these headers; `None` without one. Longer than the server asks
/// for by a random part, because many clients that received the same value would return in the same instant.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let pause = asked_for(headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim(), SystemTime::now())?;
    Some(spread(pause, fastrand::f64()))
}

/// The pause in the header's value: a number of seconds, or a date.
fn asked_for(value: &str, now: SystemTime) -> Option<Duration> {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let pause = if is_number {
        // Only a number that is too large fails to parse.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(pause.min(PAUSE_MAX))
}

/// Up to twice the pause. `jitter` is at least 0 and less than 1.
fn spread(pause: Duration, jitter: f64) -> Duration {
    pause + pause.mul_f64(jitter)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pauses_are_numbers_or_dates_and_bounded() {
        // 1994-11-06 08:49:37
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (value, expected_s) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("1000", Some(300)),
            ("18446744073709551615", Some(300)),
            ("99999999999999999999999999", Some(300)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:27 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(300)),
            ("-1", None),
            ("1.5", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(asked_for(value, now), expected_s.map(Duration::from_secs), "{value}");
        }
    }

    #[test]
    fn clients_with_the_same_retry_after_return_at_different_times() {
        let mut headers = HeaderMap::new();
        headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("4"));
        let pauses: BTreeSet<Duration> = (0..100).filter_map(|_| retry_after(&headers)).collect();
        assert!(pauses.len() > 90, "{} different pauses", pauses.len());
        let (Some(first), Some(last)) = (pauses.first(), pauses.last()) else { panic!("no pauses") };
        assert!(*first >= Duration::from_secs(4) && *last < Duration::from_secs(8), "{first:?} to {last:?}");
        assert!(*last - *first > Duration::from_secs(2), "{first:?} to {last:?}");
        assert_eq!(spread(PAUSE_MAX, 0.5), Duration::from_secs(450));
    }
}
