//! Validates answers to range requests.

use std::time::Duration;

use floe_image::ByteRange;
use http::{HeaderMap, StatusCode, header};

use crate::{
    arrival::Arrival,
    content_range::ContentRange,
    fault::{Fault, FaultKind},
    http_client::{BYTES_PER_S_MIN, Body},
    retry_after::retry_after,
    validator::Validator,
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
            _ => Err(refusal(status, headers)),
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
            return Err(Fault::wrong(format!("a Content-Length that does not fit the {len} bytes of the range")));
        }
        Ok(Self { skipped: 0, len, is_exact: true, object_len })
    }

    fn whole(headers: &HeaderMap, wanted: &Wanted<'_>) -> Result<Self, Fault> {
        let advice = "get the image with 'floe pull' and use the file";
        let Some(object_len) = content_length(headers)? else {
            return Err(Fault::refused(format!("the server ignores ranges and does not tell the length: {advice}")));
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
            _ => Err(Fault::wrong("the server calls the range unsatisfiable, though it is within the object")),
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

/// The fault for an answer that is neither a part nor the whole object.
pub(crate) fn refusal(status: StatusCode, headers: &HeaderMap) -> Fault {
    let message = format!("the server answers {status}");
    let challenge = || {
        let values = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let values: Vec<_> = values.collect();
        (!values.is_empty()).then(|| values.join(", "))
    };
    match status.as_u16() {
        401 | 403 => Fault { kind: FaultKind::Unauthorized { challenge: challenge() }, message },
        404 | 410 => Fault::gone(format!("{message}: there is no such object")),
        412 => Fault::gone(format!("{message}: the object was replaced")),
        408 | 425 | 500 | 502 | 504 => Fault { kind: Fault::transient("").kind, message },
        429 | 503 => Fault::congestion(message, retry_after(headers)),
        _ => Fault::refused(message),
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
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let len = value.parse().ok().filter(|_| is_number);
    len.map(Some).ok_or_else(|| Fault::wrong(format!("Content-Length '{}'", value.escape_debug())))
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
