//! A run of bytes.

use std::fmt;

/// A run of bytes of a file: `len` bytes from `offset` on. Its end never overflows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ByteRange {
    offset: u64,
    len: u64,
}

impl ByteRange {
    /// `len` bytes from `offset` on; what would lie past `u64::MAX` is cut off.
    pub const fn new(offset: u64, len: u64) -> Self {
        let room = u64::MAX - offset;
        Self { offset, len: if len < room { len } else { room } }
    }

    /// The bytes from `offset` up to, not including, `end`; empty where `end` is not past `offset`.
    pub const fn between(offset: u64, end: u64) -> Self {
        Self { offset, len: end.saturating_sub(offset) }
    }

    /// The first byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// How many bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// The byte after the last.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether there is no byte in it.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes in both; where there are none, an empty range.
    pub fn intersection(self, other: Self) -> Self {
        Self::between(self.offset.max(other.offset), self.end().min(other.end()))
    }

    /// Whether every byte of `other` is in this range.
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
