//! The thread that made a request.

use std::fs;

/// The number of `CAP_SYS_ADMIN`.
const SYS_ADMIN: u32 = 21;

/// The user ids of the initial user namespace, as `/proc/PID/uid_map` lists them.
const ALL_USER_IDS: [&str; 3] = ["0", "0", "4294967295"];

/// Whether a thread has `CAP_SYS_ADMIN` for the whole machine and may therefore see trusted extended attributes. False for
/// threads that are not visible to this process, or whose capabilities count only in a user namespace. The user id does not
/// decide this, because the kernel does not send it if mounts may map ids.
pub fn is_administrator(thread: u32) -> bool {
    let read = |name| fs::read_to_string(format!("/proc/{thread}/{name}")).unwrap_or_default();
    has_capability(&read("status"), SYS_ADMIN) && read("uid_map").split_ascii_whitespace().eq(ALL_USER_IDS)
}

fn has_capability(status: &str, bit: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|capabilities| capabilities & (1 << bit) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status() {
        for (status, expected) in [
            ("Name:\tls\nCapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000200000\n", true),
            ("CapEff:\t0000000000000000\n", false),
            ("CapPrm:\t000001ffffffffff\n", false),
            ("", false),
        ] {
            assert_eq!(has_capability(status, SYS_ADMIN), expected, "{status:?}");
        }
        assert!(!is_administrator(0));
        let this = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let is_root = rustix::process::geteuid().is_root();
        let is_initial = fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.contains("4294967295"));
        assert_eq!(is_administrator(this), is_root && is_initial);
    }
}
