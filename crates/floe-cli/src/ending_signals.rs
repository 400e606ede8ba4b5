//! Selects the signals that end the program.

use std::fs;

/// Returns those of `signals` that the program handles: all that were not ignored when it started. nohup ignores
/// SIGHUP, and a shell without job control ignores SIGINT for background programs. Ignored signals stay ignored.
pub(crate) fn unless_ignored(signals: &[i32]) -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    signals.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// The set of ignored signals in the text of `/proc/self/status`; the lowest bit is signal 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_found() {
        for (status, expected) in
            [("Name:\tfloe\nSigIgn:\t0000000000001003\nSigCgt:\t0\n", 0x1003), ("Name:\tSigIgn: 1\n", 0), ("", 0)]
        {
            assert_eq!(ignored(status), expected, "{status}");
        }
    }
}
