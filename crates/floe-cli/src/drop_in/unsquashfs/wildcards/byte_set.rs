//! Sets of bytes in patterns: `[…]`.

/// A set of byte values.
#[derive(Clone, Debug)]
pub(super) struct ByteSet([bool; 256]);

impl ByteSet {
    /// Parses what follows a `[`. Returns the set and the pattern after it. The set is missing if it matches nothing, whatever
    /// follows; there is no result if the set does not end.
    pub(super) fn parse(pattern: &[u8]) -> Option<(Option<Self>, &[u8])> {
        let (is_negated, mut rest) = match pattern {
            [b'!' | b'^', rest @ ..] => (true, rest),
            _ => (false, pattern),
        };
        let (mut set, mut is_first, mut is_valid) = (Self([false; 256]), true, true);
        loop {
            if let ([b']', after @ ..], false) = (rest, is_first) {
                set.0.iter_mut().for_each(|is_in| *is_in ^= is_negated);
                return Some((is_valid.then_some(set), after));
            }
            is_first = false;
            if let Some((class, after)) = class(rest) {
                match class {
                    Some(is_in_class) => set.add_all(|byte| is_in_class(&byte)),
                    None => is_valid = false,
                }
                rest = after;
                continue;
            }
            let (low, after) = element(rest)?;
            rest = after;
            let mut high = low;
            if let [b'-', after @ ..] = rest
                && !matches!(after, [] | [b']', ..])
            {
                (high, rest) = element(after)?;
            }
            match (low, high) {
                (Some(low), Some(high)) => set.add_all(|byte| (low..=high).contains(&byte)),
                _ => is_valid = false,
            }
        }
    }

    fn add_all(&mut self, is_in: impl Fn(u8) -> bool) {
        for (byte, slot) in (0..=u8::MAX).zip(&mut self.0) {
            *slot |= is_in(byte);
        }
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }
}

/// The class `[:name:]` at the start of a set's rest, and what follows it. The class is missing if its name is unknown.
#[allow(clippy::type_complexity, reason = "a type for it would be used once")]
fn class(rest: &[u8]) -> Option<(Option<fn(&u8) -> bool>, &[u8])> {
    let inside = rest.strip_prefix(b"[:")?;
    let len = inside.iter().position(|byte| !byte.is_ascii_lowercase())?;
    let after = inside[len..].strip_prefix(b":]")?;
    let is_in: fn(&u8) -> bool = match &inside[..len] {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| matches!(byte, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| matches!(byte, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return Some((None, after)),
    };
    Some((Some(is_in), after))
}

/// The byte at the start of a set's rest: itself, `\x`, `[.x.]` or `[=x=]`, and what follows it. The byte is missing if
/// the notation names none.
fn element(rest: &[u8]) -> Option<(Option<u8>, &[u8])> {
    match rest {
        [] | [b'\\'] => None,
        [b'\\', byte, after @ ..] => Some((Some(*byte), after)),
        [b'[', b'=', byte, b'=', b']', after @ ..] => Some((Some(*byte), after)),
        [b'[', b'.', inside @ ..] => {
            let len = inside.windows(2).position(|end| end == b".]")?;
            let symbol = if let [byte] = inside[..len] { Some(byte) } else { None };
            Some((symbol, &inside[len + 2..]))
        }
        [byte, after @ ..] => Some((Some(*byte), after)),
    }
}
