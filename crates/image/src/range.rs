//! Byte ranges.

use std::fmt;

/// `len` bytes of a file or source, starting at `offset`. The end never overflows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ByteRange {
    offset: u64,
    len: u64,
}

impl ByteRange {
    /// `len` bytes from `offset` on, cut off at `u64::MAX`.
    pub const fn new(offset: u64, len: u64) -> Self {
        let room = u64::MAX - offset;
        Self { offset, len: if len < room { len } else { room } }
    }

    /// The bytes from `offset` up to but excluding `end`; empty if `end` is not past `offset`.
    pub const fn between(offset: u64, end: u64) -> Self {
        Self { offset, len: end.saturating_sub(offset) }
    }

    /// The offset of the first byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// The length in bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// The offset after the last byte.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether the range is empty.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes in both ranges; an empty range if there are none.
    pub fn intersection(self, other: Self) -> Self {
        Self::between(self.offset.max(other.offset), self.end().min(other.end()))
    }

    /// Whether this range contains every byte of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.offset <= other.offset && other.end() <= self.end()
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}..{}", self.offset, self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::ByteRange;

    #[test]
    fn ends_never_overflow_and_intersections_never_invert() {
        assert_eq!(ByteRange::new(u64::MAX - 1, 10).end(), u64::MAX);
        assert!(ByteRange::between(9, 3).is_empty());
        let whole = ByteRange::new(10, 10);
        for (other, expected) in [
            (ByteRange::new(0, 5), 0),
            (ByteRange::new(0, 15), 5),
            (ByteRange::new(12, 3), 3),
            (ByteRange::new(15, 50), 5),
            (ByteRange::new(20, 1), 0),
        ] {
            assert_eq!(whole.intersection(other).len(), expected, "{other}");
        }
    }
}
