//! Runs programs with a time limit and measures their peak memory and CPU time; waits until they handle a signal.

use std::{
    fs,
    io::{self, Read},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::Signal,
    time::{ClockId, clock_gettime},
};

const POLL: Duration = Duration::from_millis(1);

/// The result of a bounded run.
#[derive(Debug)]
pub struct BoundedRun {
    /// The exit status; killed by signal 9 after a timeout.
    pub status: ExitStatus,
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: String,
    /// The peak resident memory in bytes; at least that of the calling process at the start.
    pub resident_bytes_max: u64,
    /// The CPU time of the program and of the children that it waited for.
    pub cpu: Duration,
    /// The elapsed time.
    pub elapsed: Duration,
    /// Whether it was killed at the time limit.
    pub is_timed_out: bool,
}

/// Runs a program to its end, or kills it after `limit`.
///
/// # Errors
/// The program cannot be run.
pub fn run_bounded(command: &mut Command, limit: Duration) -> io::Result<BoundedRun> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let mut child = command.spawn()?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let mut is_timed_out = false;
    let (status, resident_bytes_max, cpu) = loop {
        if let Some(ended) = wait(pid)? {
            break ended;
        }
        if !is_timed_out && started.elapsed() > limit {
            is_timed_out = true;
            child.kill()?;
        }
        thread::sleep(POLL);
    };
    let elapsed = started.elapsed();
    let joined = |reader: thread::JoinHandle<Vec<u8>>| reader.join().expect("a reader of a pipe does not panic");
    let (stdout, stderr) = (joined(stdout), joined(stderr));
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    Ok(BoundedRun { status, stdout, stderr, resident_bytes_max, cpu, elapsed, is_timed_out })
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}

/// The exit status of a child, its peak memory in bytes and its CPU time, which the standard library does not provide;
/// `None` while it runs.
fn wait(pid: libc::pid_t) -> io::Result<Option<(ExitStatus, u64, Duration)>> {
    let mut status = 0;
    // SAFETY: an all-zero `rusage` is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers refer to live variables of the right types.
    match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => {
            let resident_bytes_max = u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10;
            let cpu = duration_of(usage.ru_utime) + duration_of(usage.ru_stime);
            Ok(Some((ExitStatus::from_raw(status), resident_bytes_max, cpu)))
        }
    }
}

fn duration_of(time: libc::timeval) -> Duration {
    Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
        + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// How long a process may take until it handles a signal.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a process handles a signal itself: before that, the signal would kill it.
///
/// # Panics
///
/// The process does not handle the signal within a minute.
pub fn wait_until_caught(pid: u32, signal: Signal) {
    let started = Instant::now();
    let is_caught = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    };
    while !is_caught() {
        assert!(started.elapsed() < PATIENCE, "process {pid} does not handle {signal:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The CPU time that the calling thread has used so far.
pub fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_peaks_are_seen() {
        let mut command = Command::new("sh");
        let run = run_bounded(command.args(["-c", "echo out; echo err >&2; exit 3"]), Duration::from_secs(20));
        let run = run.expect("it runs");
        assert_eq!((run.status.code(), &*run.stdout, &*run.stderr), (Some(3), &b"out\n"[..], "err\n"));
        assert!(!run.is_timed_out && run.resident_bytes_max > 100 << 10, "{run:?}");

        let run = run_bounded(Command::new("sleep").arg("20"), Duration::from_millis(50)).expect("it runs");
        assert!(run.cpu < run.elapsed, "it slept: {run:?}");
        assert!(run.is_timed_out && run.status.signal() == Some(9) && run.elapsed < Duration::from_secs(10), "{run:?}");
    }
}
