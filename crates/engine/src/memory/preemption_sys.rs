//! Whether a thread lost its CPU meanwhile.

/// How often the calling thread had to leave its CPU to another one.
pub(crate) fn preemption_count() -> i64 {
    if cfg!(miri) {
        return 0;
    }
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the answer; a `rusage` of zeros is valid too, should the call fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nivcsw
}
