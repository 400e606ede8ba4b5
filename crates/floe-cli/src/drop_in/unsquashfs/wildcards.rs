//! Shell wildcards, with the meaning that fnmatch(3) of glibc gives them in the C locale: `*`, `?`, `[…]`, `\`, and the
//! groups `?(a|b)`, `*(a|b)`, `+(a|b)`, `@(a|b)` and `!(a|b)`.
//!
//! A wildcard never matches a period at the start of a name. Unlike here, `*` and a group behind it do not match a single
//! byte in glibc if the group matches it only where it is empty (`*!(a)` and the name `a`).

use std::collections::HashMap;

/// The maximum number of groups in a pattern. It bounds the depth of nested groups, and the memory for a match.
const GROUPS_MAX: usize = 64;

/// A pattern for one name.
#[derive(Debug)]
pub(in crate::drop_in) struct Wildcards {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Byte(u8),
    /// `?`
    AnyByte,
    /// `*`
    AnyBytes,
    /// `[…]`
    Set(Box<ByteSet>),
    Group(Group),
    /// Matches nothing, because the notation is invalid.
    Nothing,
}

/// A group of alternatives.
#[derive(Debug)]
struct Group {
    /// Distinguishes the groups of a pattern.
    number: usize,
    count: Count,
    alternatives: Vec<Vec<Part>>,
}

/// How often a group matches one of its alternatives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Count {
    AtMostOnce,
    Any,
    AtLeastOnce,
    Once,
    /// It matches texts that no alternative matches.
    Never,
}

impl Wildcards {
    /// # Errors
    /// A message: the pattern has too many groups.
    pub(super) fn new(text: &[u8]) -> Result<Self, String> {
        let mut group_count = 0;
        let parts = parse(text, &mut group_count)
            .ok_or_else(|| format!("'{}' has more than {GROUPS_MAX} groups of alternatives", text.escape_ascii()))?;
        Ok(Self { parts })
    }

    /// The only name that the pattern matches, if it contains no wildcards.
    pub(super) fn literal(&self) -> Option<Vec<u8>> {
        let byte = |part: &Part| if let Part::Byte(byte) = part { Some(*byte) } else { None };
        self.parts.iter().map(byte).collect()
    }

    /// Whether a name matches. Without groups, time is proportional to the product of both lengths. Each group is matched once
    /// from each position in the name, so time is never exponential.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        let mut matching = Matching { name, reached: HashMap::new() };
        matching.advance(&self.parts, Positions::only(name, 0)).contains(name.len())
    }
}

/// Parses a pattern. Returns `None` if it has too many groups.
fn parse(mut rest: &[u8], group_count: &mut usize) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    while let Some((byte, after)) = rest.split_first() {
        if let Some(GroupText { count, alternatives, after }) = GroupText::find(rest) {
            let number = *group_count;
            *group_count += 1;
            if number == GROUPS_MAX {
                return None;
            }
            let alternatives = alternatives.into_iter().map(|text| parse(text, group_count)).collect::<Option<_>>()?;
            parts.push(Part::Group(Group { number, count, alternatives }));
            rest = after;
            continue;
        }
        rest = after;
        parts.push(match (byte, after) {
            (b'?', _) => Part::AnyByte,
            (b'*', _) => Part::AnyBytes,
            (b'\\', [escaped, after @ ..]) => {
                rest = after;
                Part::Byte(*escaped)
            }
            (b'\\', []) => Part::Nothing,
            (b'[', _) => match ByteSet::parse(after) {
                Some((Some(set), after)) => {
                    rest = after;
                    Part::Set(Box::new(set))
                }
                Some((None, _)) => Part::Nothing,
                None => Part::Byte(b'['),
            },
            (byte, _) => Part::Byte(*byte),
        });
    }
    Some(parts)
}

/// The text of a group.
struct GroupText<'a> {
    count: Count,
    alternatives: Vec<&'a [u8]>,
    /// The pattern after the group.
    after: &'a [u8],
}

impl<'a> GroupText<'a> {
    /// The group at the start of a pattern.
    fn find(pattern: &'a [u8]) -> Option<Self> {
        let (count, inside) = match pattern {
            [b'?', b'(', inside @ ..] => (Count::AtMostOnce, inside),
            [b'*', b'(', inside @ ..] => (Count::Any, inside),
            [b'+', b'(', inside @ ..] => (Count::AtLeastOnce, inside),
            [b'@', b'(', inside @ ..] => (Count::Once, inside),
            [b'!', b'(', inside @ ..] => (Count::Never, inside),
            _ => return None,
        };
        let (mut alternatives, mut start, mut level, mut at) = (Vec::new(), 0, 0usize, 0);
        loop {
            match inside.get(at..)? {
                [] => return None,
                [b'[', set @ ..] => at += 1 + set_len(set)?,
                [b'?' | b'*' | b'+' | b'@' | b'!', b'(', ..] => {
                    level += 1;
                    at += 2;
                }
                [b'|', ..] if level == 0 => {
                    alternatives.push(&inside[start..at]);
                    at += 1;
                    start = at;
                }
                [b')', after @ ..] => match level.checked_sub(1) {
                    Some(outer) => {
                        level = outer;
                        at += 1;
                    }
                    None => {
                        alternatives.push(&inside[start..at]);
                        return Some(Self { count, alternatives, after });
                    }
                },
                _ => at += 1,
            }
        }
    }
}

/// The length of what follows the `[` of a set inside a group, up to its end.
fn set_len(set: &[u8]) -> Option<usize> {
    let negation = usize::from(matches!(set, [b'!' | b'^', ..]));
    let first = negation + usize::from(set.get(negation) == Some(&b']'));
    let end = set.get(first..)?.iter().position(|byte| *byte == b']')?;
    Some(first + end + 1)
}

/// A match in progress.
struct Matching<'a> {
    name: &'a [u8],
    /// Where one match of a group may end, by the group's number and the position at which it begins.
    reached: HashMap<(usize, usize), Positions>,
}

impl Matching<'_> {
    /// Where a match of `parts` may end that begins at one of `positions`.
    fn advance(&mut self, parts: &[Part], mut positions: Positions) -> Positions {
        for part in parts {
            if self.name.starts_with(b".") && !matches!(part, Part::Byte(_) | Part::Group(_)) {
                // Only the byte itself matches a period at the start.
                positions.remove(&Positions::only(self.name, 0));
            }
            positions = match part {
                Part::Group(group) => self.advance_over_group(group, positions),
                Part::AnyBytes => match positions.first() {
                    Some(first) => Positions::from(self.name, first),
                    None => positions,
                },
                Part::Byte(expected) => self.advance_over_byte(positions, |byte| byte == *expected),
                Part::AnyByte => self.advance_over_byte(positions, |_| true),
                Part::Set(set) => self.advance_over_byte(positions, |byte| set.contains(byte)),
                Part::Nothing => Positions::none(self.name),
            };
        }
        positions
    }

    fn advance_over_byte(&self, mut positions: Positions, is_match: impl Fn(u8) -> bool) -> Positions {
        let mut next = Positions::none(self.name);
        while let Some(position) = positions.pop_first() {
            if self.name.get(position).is_some_and(|byte| is_match(*byte)) {
                next.insert(position + 1);
            }
        }
        next
    }

    /// Where a match of a group may end that begins at one of `positions`.
    fn advance_over_group(&mut self, group: &Group, positions: Positions) -> Positions {
        let mut next = match group.count {
            Count::AtMostOnce | Count::Any => positions.clone(),
            _ => Positions::none(self.name),
        };
        let (mut begun, mut pending) = (positions.clone(), positions);
        while let Some(from) = pending.pop_first() {
            let mut reached = self.reach(group, from);
            if group.count == Count::Never {
                let mut others = Positions::from(self.name, from);
                others.remove(&reached);
                reached = others;
            }
            next.add(&reached);
            if matches!(group.count, Count::Any | Count::AtLeastOnce) {
                reached.remove(&begun);
                begun.add(&reached);
                pending.add(&reached);
            }
        }
        next
    }

    /// Where a match of one alternative of a group may end that begins at `from`.
    fn reach(&mut self, group: &Group, from: usize) -> Positions {
        if let Some(reached) = self.reached.get(&(group.number, from)) {
            return reached.clone();
        }
        let mut reached = Positions::none(self.name);
        for alternative in &group.alternatives {
            reached.add(&self.advance(alternative, Positions::only(self.name, from)));
        }
        self.reached.insert((group.number, from), reached.clone());
        reached
    }
}

/// A set of byte values.
#[derive(Clone, Debug)]
struct ByteSet([bool; 256]);

impl ByteSet {
    /// Parses what follows a `[`. Returns the set and the pattern after it. The set is missing if it matches nothing, whatever
    /// follows; there is no result if the set does not end.
    fn parse(pattern: &[u8]) -> Option<(Option<Self>, &[u8])> {
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

    fn contains(&self, byte: u8) -> bool {
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

/// A set of positions in a name: 0 is before its first byte.
#[derive(Clone)]
struct Positions {
    /// A bit for each position.
    words: Vec<u64>,
}

impl Positions {
    fn none(name: &[u8]) -> Self {
        Self { words: vec![0; name.len() / 64 + 1] }
    }

    fn only(name: &[u8], position: usize) -> Self {
        let mut positions = Self::none(name);
        positions.insert(position);
        positions
    }

    /// All positions from `start` to the end of the name.
    fn from(name: &[u8], start: usize) -> Self {
        let mut positions = Self::none(name);
        (start..=name.len()).for_each(|position| positions.insert(position));
        positions
    }

    fn insert(&mut self, position: usize) {
        self.words[position / 64] |= 1 << (position % 64);
    }

    fn contains(&self, position: usize) -> bool {
        self.words[position / 64] >> (position % 64) & 1 != 0
    }

    fn add(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    fn remove(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
    }

    /// The first position.
    fn first(&self) -> Option<usize> {
        let index = self.words.iter().position(|word| *word != 0)?;
        Some(index * 64 + self.words[index].trailing_zeros() as usize)
    }

    fn pop_first(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.words[first / 64] &= !(1 << (first % 64));
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_with_fnmatch() {
        // The rows are those of fnmatch(3) of glibc 2.36 with FNM_PATHNAME, FNM_PERIOD and FNM_EXTMATCH.
        for (pattern, matches, others) in [
            ("abc", "abc", "ab abcd ABC"),
            ("", "", "a"),
            ("*", "a abc a.b", ".a"),
            ("*.txt", "a.txt", "a.txt.gz .txt"),
            ("a*b*c", "aXbYbZc abc", "aXbYbZ"),
            (".*", ".a .", "a"),
            ("?", "a", "ab ."),
            ("??", "ab a.", "a .a"),
            ("?", "", "ä"),
            ("??", "ä", ""),
            ("[a-c]x", "bx", "dx -x"),
            ("[!a-c]x", "dx", "bx .x"),
            ("[^a-c]x", "dx ^x", "bx"),
            ("[]x]", "] x", "a"),
            ("[!]x]", "a", "] x"),
            ("[a-]", "a -", "b"),
            ("[-a]", "a -", "b"),
            ("[--/]", "-", ". ,"),
            ("[c-a]", "", "a b c -"),
            ("[.]a", "", ".a aa"),
            ("[a", "[a", "a"),
            ("[", "[", "a"),
            ("[]", "[]", "]"),
            ("a[!", "a[!", "ab"),
            ("[\\]]", "]", "\\"),
            ("[\\a]", "a", "\\"),
            ("[a\\-c]", "a - c", "b"),
            ("[[:alpha:]]", "a Z", "5 _"),
            ("[[:digit:][:upper:]_]", "5 Z _", "a"),
            ("[![:alnum:]]", "_", "a 5 ."),
            ("[[:space:]x]", "x", "a"),
            ("[[:punct:]]", "!", "a"),
            ("[[:xdigit:]]", "f", "g"),
            ("[[:nothing:]]", "", "n : ["),
            ("[[:alpha:]", "", "a : ["),
            ("[:alpha:]", "a :", "z"),
            ("[[.a.]]", "a", "."),
            ("[[.a.]-c]", "b", "d"),
            ("[[=a=]]", "a", "="),
            ("[[.ab.]]", "", "a ab"),
            ("[[.-.]]", "-", "."),
            ("\\*", "*", "a"),
            ("a\\b", "ab", "a\\b"),
            ("a\\", "", "a a\\"),
            ("\\.a", ".a", "a"),
            ("?(a|b)c", "c ac bc", "abc"),
            ("*(a|b)c", "c ac abbac", "adc"),
            ("+(a|b)c", "ac abbac", "c"),
            ("@(a|b)c", "ac bc", "c abc"),
            ("!(a|b)c", "c abc dc", "ac bc"),
            ("!(*.o)", "x.c .o", "x.o"),
            ("!(.a)", ".b a", ".a"),
            ("a!(b)", "a abb", "ab"),
            ("@(a|@(b|+(c)))d", "ad bd cccd", "d"),
            ("*(a*(b))c", "abbabc c", "bc"),
            ("@()a", "a", "b"),
            ("@(|a)b", "b ab", ""),
            ("@(a|b", "@(a|b", "a"),
            ("@(a))", "a)", "a"),
            ("a(b)", "a(b)", "ab"),
            ("@(a(b))", "a(b)", "a(b"),
            ("@([)]|x)", ") x", ""),
            ("@([)", "@([)", "["),
            ("*(.a)", ".a .a.a", "a"),
            ("?(.)a", ".a a", ""),
            ("@(*)a", "ba", ".a"),
            ("!(x)*a", "ba .a", ""),
            ("@(a|b)*.[ch]", "a1.c b.h", "c.c a.o"),
            ("!(!(a))", "a", "b"),
        ] {
            let wildcards = Wildcards::new(pattern.as_bytes()).expect("few groups");
            for (names, expected) in [(matches, true), (others, false)] {
                for name in names.split(' ').filter(|name| !name.is_empty()) {
                    assert_eq!(wildcards.matches(name.as_bytes()), expected, "{pattern} {name}");
                }
            }
        }
    }

    #[test]
    fn patterns_without_wildcards_are_names() {
        for (pattern, name) in [
            ("a.b", Some("a.b")),
            ("\\*a", Some("*a")),
            ("[", Some("[")),
            ("@(a", Some("@(a")),
            ("a*", None),
            ("[a]", None),
        ] {
            let literal = Wildcards::new(pattern.as_bytes()).expect("few groups").literal();
            assert_eq!(literal.as_deref(), name.map(str::as_bytes), "{pattern}");
        }
    }

    #[test]
    fn hostile_patterns_take_little_time() {
        let name = "a".repeat(255);
        let nested = |open: &str, count| format!("{}a{}b", open.repeat(count), ")".repeat(count));
        for pattern in [
            "*a".repeat(1000) + "b",
            "+(a|aa|aaa)".repeat(20) + "b",
            nested("*(", GROUPS_MAX),
            nested("!(", GROUPS_MAX),
            "!(a)".repeat(50) + "b",
        ] {
            assert!(!Wildcards::new(pattern.as_bytes()).expect("few groups").matches(name.as_bytes()), "{pattern}");
        }
        for pattern in ["@(a)".repeat(GROUPS_MAX + 1), nested("@(", GROUPS_MAX + 1)] {
            assert!(Wildcards::new(pattern.as_bytes()).is_err(), "{pattern}");
        }
    }
}
