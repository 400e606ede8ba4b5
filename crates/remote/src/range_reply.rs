//! Validates answers to range requests, and detects that a remote object was replaced.

use std::time::Duration;

use floe_image::ByteRange;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::{
    arrival::Arrival,
    fault::Fault,
    http_client::{BYTES_PER_S_MIN, Body},
};

/// The maximum number of bytes that are skipped to reach a range if a server sends the whole object.
const SKIPPED_BYTES_MAX: u64 = 16 << 20;

/// The expected answer.
pub(crate) struct Wanted<'a> {
    pub(crate) range: ByteRange,
    /// The length of the object in bytes; `None` if the answer determines it.
    pub(crate) object_len: Option<u64>,
    /// The identity of the object; `None` if the answer determines it.
    pub(crate) validator: Option<&'a Validator>,
}

/// The head of a valid answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RangeReply {
    /// The number of body bytes before the range.
    pub(crate) skipped: u64,
    /// The number of bytes of the range in the body.
    pub(crate) len: u64,
    /// Whether the body ends with the range.
    is_exact: bool,
    /// The length of the object in bytes.
    pub(crate) object_len: u64,
}

impl RangeReply {
    /// Validates the head of an answer: a 206 must contain exactly the range, and a 200 contains the whole object.
    ///
    /// # Errors
    /// The answer cannot be used.
    pub(crate) fn judge(status: StatusCode, headers: &HeaderMap, wanted: &Wanted<'_>) -> Result<Self, Fault> {
        let is_encoded = |value: &http::HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
        match status {
            StatusCode::PARTIAL_CONTENT | StatusCode::OK => {
                if headers.get_all(header::CONTENT_ENCODING).iter().any(is_encoded) {
                    return Err(Fault::refused("the server compresses its answers although it was asked not to"));
                }
                if let Some(validator) = wanted.validator {
                    validator.check(headers)?;
                }
                if status == StatusCode::OK { Self::whole(headers, wanted) } else { Self::part(headers, wanted) }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Self::outside(headers, wanted),
            _ => Err(Fault::of_answer(status, headers)),
        }
    }

    fn part(headers: &HeaderMap, wanted: &Wanted<'_>) -> Result<Self, Fault> {
        let value = single(headers, &header::CONTENT_RANGE)?.unwrap_or_default();
        let Some(ContentRange::Part { first, last, object_len }) = ContentRange::parse(value) else {
            return Err(Fault::wrong(format!("a partial answer with Content-Range '{}'", value.escape_debug())));
        };
        check_len(object_len, wanted)?;
        let end = wanted.range.end().min(object_len);
        if first != wanted.range.offset() || last.checked_add(1) != Some(end) {
            let (first_wanted, last_wanted) = (wanted.range.offset(), end.saturating_sub(1));
            return Err(Fault::wrong(format!("bytes {first}-{last} came instead of {first_wanted}-{last_wanted}")));
        }
        let len = end - first;
        if content_length(headers)?.is_some_and(|content_len| content_len != len) {
            return Err(Fault::wrong(format!("a Content-Length that does not match the {len} bytes of the range")));
        }
        Ok(Self { skipped: 0, len, is_exact: true, object_len })
    }

    fn whole(headers: &HeaderMap, wanted: &Wanted<'_>) -> Result<Self, Fault> {
        let advice = "get the image with 'floe pull' and use the file";
        let Some(object_len) = content_length(headers)? else {
            return Err(Fault::refused(format!("the server ignores ranges and does not state the length: {advice}")));
        };
        check_len(object_len, wanted)?;
        let (skipped, end) = (wanted.range.offset(), wanted.range.end().min(object_len));
        if skipped > SKIPPED_BYTES_MAX {
            return Err(Fault::refused(format!(
                "the server ignores ranges and sends everything from the start: {advice}"
            )));
        }
        Ok(Self { skipped, len: end.saturating_sub(skipped), is_exact: end == object_len, object_len })
    }

    fn outside(headers: &HeaderMap, wanted: &Wanted<'_>) -> Result<Self, Fault> {
        let value = single(headers, &header::CONTENT_RANGE)?.unwrap_or_default();
        match (ContentRange::parse(value), wanted.object_len) {
            (Some(ContentRange::Outside { object_len: 0 }), None) => {
                Ok(Self { skipped: 0, len: 0, is_exact: false, object_len: 0 })
            }
            (Some(ContentRange::Outside { object_len }), Some(expected)) if object_len != expected => {
                Err(replaced(expected, object_len))
            }
            _ => Err(Fault::wrong("the server calls the range unsatisfiable, although it is within the object")),
        }
    }

    /// The maximum duration of the answer.
    pub(crate) fn time_max(&self, stall: Duration) -> Duration {
        2 * stall + Duration::from_secs((self.skipped + self.len) / BYTES_PER_S_MIN)
    }

    /// Appends the bytes of the range to `bytes`: exactly as many as the head announces, or those that arrived before an error.
    ///
    /// # Errors
    /// There are fewer or more bytes, or the connection breaks.
    pub(crate) async fn add_to(&self, bytes: &mut Arrival, mut body: Body) -> Result<(), Fault> {
        let (mut skipped, before) = (0, bytes.len());
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        bytes.reserve(len);
        while bytes.len() - before < len || self.is_exact {
            let Some(mut piece) = body.next().await? else { break };
            let rest = usize::try_from(self.skipped - skipped).unwrap_or(usize::MAX).min(piece.len());
            let _ = piece.split_to(rest);
            skipped += rest as u64;
            let room = len - (bytes.len() - before);
            if piece.len() > room {
                if self.is_exact {
                    return Err(Fault::wrong(format!("more than the {} bytes that were announced", self.len)));
                }
                piece.truncate(room);
            }
            bytes.extend(&piece);
        }
        let came = bytes.len() - before;
        if came != len {
            return Err(Fault::transient(format!("the answer ended after {came} of {len} bytes")));
        }
        Ok(())
    }
}

/// The value of a header that may occur only once.
fn single<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(|value| value.to_str().unwrap_or("\u{fffd}"));
    match values.next() {
        Some(_) => Err(Fault::wrong(format!("an answer with more than one {name}"))),
        None => Ok(value),
    }
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(value) = single(headers, &header::CONTENT_LENGTH)? else { return Ok(None) };
    number_of(value).map(Some).ok_or_else(|| Fault::wrong(format!("Content-Length '{}'", value.escape_debug())))
}

fn check_len(object_len: u64, wanted: &Wanted<'_>) -> Result<(), Fault> {
    match wanted.object_len {
        Some(expected) if expected != object_len => Err(replaced(expected, object_len)),
        _ => Ok(()),
    }
}

fn replaced(expected: u64, object_len: u64) -> Fault {
    Fault::gone(format!("the object was replaced: it had {expected} bytes and has {object_len}"))
}

/// A parsed `Content-Range` in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ContentRange {
    /// `bytes FIRST-LAST/LENGTH`.
    Part {
        /// The offset of the first byte.
        first: u64,
        /// The offset of the last byte.
        last: u64,
        /// The length of the object in bytes.
        object_len: u64,
    },
    /// `bytes */LENGTH`: the requested range is outside the object.
    Outside {
        /// The length of the object in bytes.
        object_len: u64,
    },
}

impl ContentRange {
    /// Parses the value of the header; `None` if it is malformed, contradicts itself, or lacks the length.
    fn parse(value: &str) -> Option<Self> {
        let (unit, rest) = value.split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, object_len) = rest.split_once('/')?;
        let object_len = number_of(object_len)?;
        if range == "*" {
            return Some(Self::Outside { object_len });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number_of(first)?, number_of(last)?);
        (first <= last && last < object_len).then_some(Self::Part { first, last, object_len })
    }
}

fn number_of(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Identifies an object by its ETag, or by its modification time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Validator {
    etag: Option<HeaderValue>,
    last_modified: Option<HeaderValue>,
}

impl Validator {
    /// The identity in the headers of an answer.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let of = |name| headers.get(name).cloned();
        Self { etag: of(header::ETAG), last_modified: of(header::LAST_MODIFIED) }
    }

    /// The ETag, if equal ETags guarantee equal bytes.
    pub(crate) fn strong_etag(&self) -> Option<&HeaderValue> {
        let is_strong = |etag: &&HeaderValue| etag.len() >= 2 && etag.as_bytes().starts_with(b"\"");
        self.etag.as_ref().filter(is_strong)
    }

    /// A text that changes whenever the object does; empty if the server provides none.
    pub(crate) fn word(&self) -> String {
        self.strong_etag().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default()
    }

    /// Compares with the headers of a later answer.
    ///
    /// # Errors
    /// The answer is about another object, or does not identify its object.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Fault> {
        let (name, expected) = match (&self.etag, &self.last_modified) {
            (Some(etag), _) => (header::ETAG, etag),
            (None, Some(time)) => (header::LAST_MODIFIED, time),
            (None, None) => return Ok(()),
        };
        match headers.get(&name) {
            Some(value) if value == expected => Ok(()),
            Some(value) => {
                let message = format!("the object was replaced: its {name} was {expected:?} and is {value:?}");
                Err(Fault::gone(message))
            }
            None => {
                Err(Fault::wrong(format!("an answer without {name}, which would show whether the object was replaced")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;

    #[test]
    fn only_exact_ranges_are_read() {
        for (value, expected) in [
            ("bytes 0-0/1", Some(ContentRange::Part { first: 0, last: 0, object_len: 1 })),
            ("bytes 5-9/10", Some(ContentRange::Part { first: 5, last: 9, object_len: 10 })),
            ("Bytes 5-9/10", Some(ContentRange::Part { first: 5, last: 9, object_len: 10 })),
            ("bytes */10", Some(ContentRange::Outside { object_len: 10 })),
            ("bytes 5-9/*", None),
            ("bytes 5-10/10", None),
            ("bytes 9-5/10", None),
            ("bytes 5-9", None),
            ("bytes=5-9/10", None),
            ("bytes  5-9/10", None),
            ("bytes +5-9/10", None),
            ("bytes -9/10", None),
            ("bytes 5-/10", None),
            ("bytes 0-18446744073709551616/18446744073709551617", None),
            ("items 0-0/1", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(value), expected, "{value}");
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_strong_etags_pin_bytes() {
        for (etag, expected) in [("\"a\"", true), ("W/\"a\"", false), ("a", false), ("\"", false), ("", false)] {
            assert_eq!(Validator::of(&headers(&[("etag", etag)])).strong_etag().is_some(), expected, "{etag}");
        }
    }

    #[test]
    fn other_objects_are_noticed() {
        const ETAG: (&str, &str) = ("etag", "\"a\"");
        const TIME: (&str, &str) = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (pinned, seen, expected) in [
            (&[ETAG, TIME][..], &[ETAG][..], None),
            (&[ETAG], &[("etag", "\"b\"")], Some(FaultKind::Gone)),
            (&[ETAG], &[("etag", "W/\"a\"")], Some(FaultKind::Gone)),
            (&[ETAG], &[TIME], Some(FaultKind::WrongBytes)),
            (&[TIME], &[TIME, ETAG], None),
            (&[TIME], &[("last-modified", "Sun, 06 Nov 1994 08:49:38 GMT")], Some(FaultKind::Gone)),
            (&[TIME], &[], Some(FaultKind::WrongBytes)),
            (&[], &[ETAG], None),
        ] {
            let result = Validator::of(&headers(pinned)).check(&headers(seen));
            assert_eq!(result.err().map(|fault| fault.kind), expected, "{pinned:?} {seen:?}");
        }
    }
}
