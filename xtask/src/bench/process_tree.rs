//! The processes that a process has started, directly or through others.

use std::{collections::HashMap, fs};

use crate::task_error::Outcome;

/// A running process.
pub(super) struct ProcessRecord {
    /// Its number.
    pub(super) pid: u32,
    /// Its CPU time so far.
    pub(super) cpu_s: f64,
    /// The CPU time of its children that have ended and were waited for, and of theirs.
    pub(super) waited_cpu_s: f64,
    /// Whether it has ended and was not waited for.
    is_ended: bool,
}

/// A process and its descendants, without those that have ended and were not waited for.
pub(super) fn descendants(ancestor: u32) -> Outcome<Vec<ProcessRecord>> {
    let mut records = all_descendants(ancestor)?;
    records.retain(|record| !record.is_ended);
    Ok(records)
}

/// A process and its descendants, with those that have ended.
pub(super) fn all_descendants(ancestor: u32) -> Outcome<Vec<ProcessRecord>> {
    let mut found = HashMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(described) = Described::parse(&stat) {
            found.insert(pid, described);
        }
    }
    let is_descendant = |mut pid: u32| loop {
        if pid == ancestor {
            return true;
        }
        match found.get(&pid).map(|described| described.parent) {
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    };
    let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
    let record = |(pid, described): (&u32, &Described)| ProcessRecord {
        pid: *pid,
        cpu_s: described.ticks as f64 / ticks_per_s,
        waited_cpu_s: described.waited_ticks as f64 / ticks_per_s,
        is_ended: described.is_ended,
    };
    Ok(found.iter().filter(|(pid, _)| is_descendant(**pid)).map(record).collect())
}

/// What `/proc/PID/stat` says.
struct Described {
    parent: u32,
    ticks: u64,
    waited_ticks: u64,
    is_ended: bool,
}

impl Described {
    fn parse(stat: &str) -> Option<Self> {
        // The name may have spaces and brackets; the last bracket ends it.
        let (_, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            waited_ticks: number(13)? + number(14)?,
            is_ended: matches!(fields.first(), Some(&"Z" | &"X")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_are_read() {
        let stat = "42 (a) (b) S 7 42 42 0 -1 4194560 1 2 3 4 11 22 33 44 20 0 1 0";
        let described = Described::parse(stat).expect("a process");
        assert_eq!((described.parent, described.ticks, described.waited_ticks), (7, 33, 77));
        assert!(!described.is_ended);
        assert!(Described::parse("").is_none());
    }

    #[test]
    fn a_process_is_among_its_own_descendants() {
        let own = std::process::id();
        assert!(descendants(own).expect("listed").iter().any(|record| record.pid == own));
    }
}
