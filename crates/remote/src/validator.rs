//! Detects that a remote object was replaced.

use http::{HeaderMap, HeaderValue, header};

use crate::fault::Fault;

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
