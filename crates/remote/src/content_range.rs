//! Parses the `Content-Range` header of a response.

/// A parsed `Content-Range` in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContentRange {
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
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let (unit, rest) = value.split_once(' ')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (range, object_len) = rest.split_once('/')?;
        let object_len = number(object_len)?;
        if range == "*" {
            return Some(Self::Outside { object_len });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        (first <= last && last < object_len).then_some(Self::Part { first, last, object_len })
    }
}

fn number(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
