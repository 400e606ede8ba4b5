//! System calls that are allowed with any arguments.

/// The system calls that a process needs beyond the basic set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls {
    /// The calls for serving a mount: the control socket, unnamed files.
    pub serve: bool,
    /// The calls for creating files of all types with all metadata.
    pub create: bool,
    /// The calls for building images: storing files durably, and waiting for signals.
    pub build: bool,
    /// The calls for using io_uring rings that exist already. The filter does not see the commands in a ring, so a ring
    /// must be restricted when it is created.
    pub rings: bool,
}

/// The basic set: calls for open files, paths, memory, threads and time, and for dropping further rights.
const ALWAYS: &[i64] = &[
    // Open files; the arguments of fcntl are checked separately.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    // Paths, which Landlock restricts.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_getcwd,
    libc::SYS_umask,
    // Memory; the arguments of mmap, mprotect and madvise are checked separately.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    // Threads; the arguments of clone are checked separately.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_wait4,
    libc::SYS_getcpu,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_sched_setparam,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setattr,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    // Identity and environment.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    // Time and signals; the arguments of tgkill are checked separately.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Dropping further rights.
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_restrict_self,
];

const SERVE: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    SYS_RENAMEAT,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_fallocate,
];

const CREATE: &[i64] = &[
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    SYS_RENAMEAT,
    libc::SYS_renameat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_fallocate,
];

const BUILD: &[i64] = &[libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_recvfrom];

/// `fchmodat2` has the same number on all architectures; some C libraries do not define it.
const SYS_FCHMODAT2: i64 = 452;

/// glibc uses `renameat` for `renameat2` without flags. Some C libraries do not define its number on newer architectures.
#[cfg(target_arch = "x86_64")]
const SYS_RENAMEAT: i64 = libc::SYS_renameat;
#[cfg(not(target_arch = "x86_64"))]
const SYS_RENAMEAT: i64 = 38;

/// Older variants of some calls. C libraries use them on the architectures that have them.
#[cfg(target_arch = "x86_64")]
const ALWAYS_OLDER: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_time,
];
#[cfg(target_arch = "x86_64")]
const SERVE_OLDER: &[i64] = &[libc::SYS_accept, libc::SYS_rename, libc::SYS_unlink];
#[cfg(target_arch = "x86_64")]
const CREATE_OLDER: &[i64] = &[
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_rename,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_chmod,
];

#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_OLDER: &[i64] = &[];
#[cfg(not(target_arch = "x86_64"))]
const SERVE_OLDER: &[i64] = &[];
#[cfg(not(target_arch = "x86_64"))]
const CREATE_OLDER: &[i64] = &[];

/// The calls that are allowed with any arguments.
pub(crate) fn named(calls: Calls) -> impl Iterator<Item = i64> {
    let when = |is_wanted: bool, list: &'static [i64]| if is_wanted { list } else { &[] };
    [
        ALWAYS,
        ALWAYS_OLDER,
        when(calls.serve, SERVE),
        when(calls.serve, SERVE_OLDER),
        when(calls.create, CREATE),
        when(calls.create, CREATE_OLDER),
        when(calls.build, BUILD),
        when(calls.rings, &[libc::SYS_io_uring_enter]),
    ]
    .into_iter()
    .flatten()
    .copied()
}
