//! Detects overlapping structures in metadata tables.

use floe_image::{ByteRange, ByteRangeSet, Error, Place, Result};

use crate::read::MetadataPosition;

/// The parts of a metadata table that belong to structures read so far. Each byte belongs to one inode, directory or
/// attribute set. If structures could overlap, a small image could have so many of them that a walk never ends.
#[derive(Default)]
pub(super) struct Claims {
    taken: ByteRangeSet,
}

/// A part of a table, claimed while it is read.
pub(super) struct Claim<'run> {
    claims: &'run mut Claims,
    at: u64,
    rule: &'static str,
    place: Place,
}

impl Claims {
    /// Begins a claim at a position; `rule` is the fault reported if a part of it is claimed already.
    pub(super) fn begin(&mut self, from: MetadataPosition, rule: &'static str, place: Place) -> Claim<'_> {
        Claim { claims: self, at: linear(from), rule, place }
    }
}

impl Claim<'_> {
    /// Claims the bytes before a position.
    pub(super) fn advance(&mut self, to: MetadataPosition) -> Result<()> {
        let range = ByteRange::between(self.at, linear(to));
        self.at = range.end();
        if self.claims.taken.insert(range) { Err(Error::corrupt(self.rule, self.place)) } else { Ok(()) }
    }
}

/// Maps positions to increasing numbers. Skips some numbers at the end of each block.
fn linear(position: MetadataPosition) -> u64 {
    position.block.saturating_mul(1 << 16).saturating_add(u64::from(position.offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claiming_twice_is_refused() {
        let mut claims = Claims::default();
        let position = |block, offset| MetadataPosition { block, offset };
        for (from, steps, expected) in [
            ((100, 5), vec![(100, 9), (100, 9), (200, 0), (200, 7)], true),
            ((200, 7), vec![(200, 9)], true),
            ((100, 0), vec![(100, 5)], true),
            ((100, 9000), vec![(150, 0)], false),
            ((90, 3), vec![(90, 9), (100, 2)], false),
            ((200, 8), vec![(200, 8)], true),
        ] {
            let mut claim = claims.begin(position(from.0, from.1), "taken", Place::UNKNOWN);
            let all: Result<()> = steps.iter().try_for_each(|(block, offset)| claim.advance(position(*block, *offset)));
            assert_eq!(all.is_ok(), expected, "{from:?}");
        }
    }
}
