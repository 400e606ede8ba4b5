//! Knowledge about LZ4 for the fuzz targets.

/// Whether an LZ4 block has a match distance of zero. No encoder writes one, and liblz4's result for it depends on the
/// requested part.
pub(crate) fn has_zero_distance(stored: &[u8]) -> bool {
    let mut rest = stored.iter().copied();
    while let Some(token) = rest.next() {
        for (nibble, is_literals) in [(token >> 4, true), (token & 15, false)] {
            if !is_literals {
                match (rest.next(), rest.next()) {
                    (Some(0), Some(0)) => return true,
                    (Some(_), Some(_)) => {}
                    _ => return false,
                }
            }
            let mut len = usize::from(nibble);
            if nibble == 15 {
                for byte in rest.by_ref() {
                    len += usize::from(byte);
                    if byte != u8::MAX {
                        break;
                    }
                }
            }
            if is_literals && len > 0 {
                rest.nth(len - 1);
            }
        }
    }
    false
}
