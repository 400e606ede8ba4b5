//! Failures of requests, and the reactions to them.

use std::{
    error::Error,
    fmt, io,
    time::{Duration, SystemTime},
};

use floe_remote_cache::{BadTable, FetchError, FetchFault};
use http::{HeaderMap, StatusCode, header};

/// The maximum pause that is respected, before jitter is added.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// A request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// The description, without the URL.
    pub(crate) message: String,
}

/// The kind of a failure, which determines the reaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// The same request may succeed later.
    Transient {
        /// How long the server asks the client to wait.
        retry_after: Option<Duration>,
        /// Whether the server or the network is overloaded, so that fewer requests should be in flight.
        is_congestion: bool,
    },
    /// Credentials are missing, wrong or expired. `challenge` is the server's `WWW-Authenticate`.
    Unauthorized {
        /// The authentication that the server requires.
        challenge: Option<String>,
    },
    /// The server refuses, and will refuse again.
    Refused,
    /// The answer does not match the request.
    WrongBytes,
    /// The object no longer exists, or was replaced.
    Gone,
    /// The caller has closed the network.
    Closed,
}

impl Fault {
    pub(crate) fn transient(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Transient { retry_after: None, is_congestion: false }, message: message.into() }
    }

    pub(crate) fn congestion(message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { kind: FaultKind::Transient { retry_after, is_congestion: true }, message: message.into() }
    }

    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Refused, message: message.into() }
    }

    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::WrongBytes, message: message.into() }
    }

    pub(crate) fn gone(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Gone, message: message.into() }
    }

    pub(crate) fn closed() -> Self {
        Self { kind: FaultKind::Closed, message: "cancelled".to_owned() }
    }

    /// The fault of an answer with an unexpected status.
    pub(crate) fn of_answer(status: StatusCode, headers: &HeaderMap) -> Self {
        let message = format!("the server answers {status}");
        match status.as_u16() {
            401 | 403 => {
                let values = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
                let values: Vec<_> = values.collect();
                let challenge = (!values.is_empty()).then(|| values.join(", "));
                Self { kind: FaultKind::Unauthorized { challenge }, message }
            }
            404 | 410 => Self::gone(format!("{message}: there is no such object")),
            412 => Self::gone(format!("{message}: the object was replaced")),
            408 | 425 | 500 | 502 | 504 => Self::transient(message),
            429 | 503 => Self::congestion(message, retry_after(headers)),
            _ => Self::refused(message),
        }
    }

    /// Converts the error of a request without an answer.
    pub(crate) fn of_request(error: &reqwest::Error) -> Self {
        let message = chain(error);
        let is_distrust = message.contains("invalid peer certificate") || message.contains("no native root CA");
        if error.is_builder() || is_distrust {
            return Self::refused(message);
        }
        if error.is_timeout() { Self::congestion(message, None) } else { Self::transient(message) }
    }

    /// Converts to the error that callers outside this crate get; `place` names the URL and the bytes.
    pub(crate) fn at(self, place: impl fmt::Display) -> io::Error {
        let message = format!("{place}: {}", self.message);
        let fault = match self.kind {
            FaultKind::WrongBytes => FetchFault::WrongBytes,
            FaultKind::Gone => FetchFault::Gone,
            // Not an outage: a cached copy must not hide this error.
            FaultKind::Refused => return io::Error::other(message),
            FaultKind::Closed => return io::Error::new(io::ErrorKind::Interrupted, message),
            _ => FetchFault::Outage,
        };
        FetchError::new(fault, message).into()
    }
}

impl From<BadTable> for Fault {
    fn from(error: BadTable) -> Self {
        Self::wrong(error.to_string())
    }
}

/// The chain of causes from the outside in. The outermost error is omitted, because it only says that a request failed,
/// and names its URL.
fn chain(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut inner = error.source();
    while let Some(error) = inner {
        let text = error.to_string();
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
        inner = error.source();
    }
    if parts.is_empty() {
        parts.push(if error.is_timeout() { "timed out" } else { "the request failed" }.to_owned());
    }
    parts.join(": ")
}

/// The pause that the server requests with `Retry-After`, with jitter: many clients that receive the same value must not return in
/// the same instant.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
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
        headers.insert(header::RETRY_AFTER, http::HeaderValue::from_static("4"));
        let pauses: BTreeSet<Duration> = (0..100).filter_map(|_| retry_after(&headers)).collect();
        assert!(pauses.len() > 90, "{} different pauses", pauses.len());
        let (Some(first), Some(last)) = (pauses.first(), pauses.last()) else { panic!("no pauses") };
        assert!(*first >= Duration::from_secs(4) && *last < Duration::from_secs(8), "{first:?} to {last:?}");
        assert!(*last - *first > Duration::from_secs(2), "{first:?} to {last:?}");
        assert_eq!(spread(PAUSE_MAX, 0.5), Duration::from_secs(450));
    }
}
