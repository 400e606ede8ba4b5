//! Whether the calling thread was preempted during a measurement.

/// The number of times that the calling thread was preempted (involuntary context switches).
pub(crate) fn preemption_count() -> i64 {
    if cfg!(miri) {
        return 0;
    }
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the answer, and a `rusage` of zeros is valid if the call fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}
