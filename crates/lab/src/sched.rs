//! Scheduling latency: the time from runnable to running, of threads that are selected by name.

mod schedstat;
mod schedule;
mod watch;
mod work;

pub use schedstat::{ThreadTotals, process_totals, totals_between};
pub use schedule::{Schedule, Slice, ThreadSchedule, Wait, WaitKind};
pub use watch::{SchedOptions, SchedReport, SchedRow, watch};
pub use work::{WorkItem, WorkSchedule};

use std::fmt;

/// A thread name with wildcards: `*` matches any text, `?` any one character.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct NamePattern(String);

impl NamePattern {
    /// Creates a pattern.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name): (Vec<char>, Vec<char>) = (self.0.chars().collect(), name.chars().collect());
        let (mut at, mut name_at) = (0, 0);
        // The position of the last star, and how much of the name it matches so far.
        let mut star = None;
        while name_at < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, name_at));
                    at += 1;
                }
                Some(&letter) if letter == '?' || letter == name[name_at] => {
                    at += 1;
                    name_at += 1;
                }
                _ => match star {
                    Some((star_at, taken)) => {
                        star = Some((star_at, taken + 1));
                        at = star_at + 1;
                        name_at = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|&letter| letter == '*')
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        let rows = [
            ("floe-dec/*", "floe-dec/0", true),
            ("floe-dec/*", "floe-dec/", true),
            ("floe-dec/*", "floe-fuse/0", false),
            ("*dec*1", "floe-dec/1", true),
            ("*dec*1", "floe-dec/12", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("", "", true),
            ("", "x", false),
            ("*", "", true),
            ("*ab*ab", "abxab", true),
            ("kworker", "kworker/0", false),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(NamePattern::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }
}
