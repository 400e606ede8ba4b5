//! Restricts system calls with seccomp.

use std::{collections::BTreeMap, env::consts::ARCH, io};

use rustix::process::getpid;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword, SeccompCmpOp,
    SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};

use crate::{Calls, SandboxError, calls};

/// Rules for system calls; a call with an empty list is always allowed.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A condition on an argument of a call.
#[derive(Clone, Copy)]
enum Argument {
    /// The low 32 bits equal this.
    Is(u8, u32),
    /// Of the bits in a mask, exactly these are set.
    HasBits(u8, u64, u64),
    /// The argument is zero.
    IsNull(u8),
}

/// The flags that `clone` must have: a thread of this process.
const THREAD_FLAGS: u64 = libc::CLONE_THREAD as u64 | libc::CLONE_VM as u64 | libc::CLONE_SIGHAND as u64;

/// The flags that `clone` must not have: new namespaces.
const NAMESPACE_FLAGS: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// `FUSE_DEV_IOC_CLONE`, which gives a thread its own descriptor of a FUSE connection.
const FUSE_CLONE: u32 = 0x8004_e500;

/// `TCGETS2`, which newer C libraries use to detect terminals.
const TCGETS2: u32 = 0x802c_542a;

/// `PR_SET_VMA`, which newer C libraries use to name mappings.
const PR_SET_VMA: u32 = 0x5356_4d41;

const IOCTLS: [u32; 6] =
    [libc::TCGETS as u32, TCGETS2, libc::TIOCGWINSZ as u32, libc::FIONBIO as u32, libc::FIOCLEX as u32, FUSE_CLONE];

/// `PR_GET_AUXV`, which reads the auxiliary vector.
const PR_GET_AUXV: u32 = 0x4155_5856;

/// `IORING_REGISTER_ENABLE_RINGS`, which starts a ring with the restrictions that it was created with.
const ENABLE_RINGS: u32 = 12;

/// The operations of `fcntl`. Among the others, `F_SETOWN` could send signals to any process of this user.
const FCNTLS: [i32; 5] = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL];

/// The highest permitted number of an advice of `madvise`. All up to here are about memory of this process. With CAP_SYS_ADMIN,
/// those from 100 on (`MADV_HWPOISON`) take pages of the machine out of use.
const ADVICE_MAX: u64 = 63;

/// The bits of a socket's type without the flags.
const SOCKET_TYPE: u64 = 0xf;

const PRCTLS: [u32; 7] = [
    libc::PR_SET_NAME as u32,
    libc::PR_GET_NAME as u32,
    libc::PR_SET_NO_NEW_PRIVS as u32,
    libc::PR_GET_NO_NEW_PRIVS as u32,
    libc::PR_CAP_AMBIENT as u32,
    PR_SET_VMA,
    PR_GET_AUXV,
];

/// Restricts this thread, and the threads it starts, to the allowed calls; all others return `EPERM`. Returns whether
/// the kernel supports such filters.
///
/// # Errors
/// The kernel supports filters and refuses this one.
pub(crate) fn install(calls: Calls) -> Result<bool, SandboxError> {
    let failed = |error: seccompiler::Error| SandboxError::failed("seccomp", error);
    let Some(architecture) = ARCH.try_into().ok() else { return Ok(false) };
    let compiled = |rules: Rules, mismatch, matched| -> Result<BpfProgram, seccompiler::Error> {
        let filter = SeccompFilter::new(rules, mismatch, matched, architecture)?;
        Ok(BpfProgram::try_from(filter)?)
    };
    let errno = |errno: i32| SeccompAction::Errno(errno.unsigned_abs());
    let rules = allowed(calls).map_err(|error| failed(error.into()))?;
    let allowed = compiled(rules, errno(libc::EPERM), SeccompAction::Allow).map_err(failed)?;
    // A filter cannot inspect the flags of clone3, which are in memory. C libraries fall back to clone on ENOSYS.
    let absent = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let absent = compiled(absent, SeccompAction::Allow, errno(libc::ENOSYS)).map_err(failed)?;
    for program in [&absent, &allowed] {
        match apply_filter(program) {
            Ok(()) => {}
            Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error)) if is_missing(&error) => {
                return Ok(false);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(true)
}

/// Whether an error means that the kernel does not support filters.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

fn allowed(calls: Calls) -> Result<Rules, BackendError> {
    use Argument::{HasBits, Is, IsNull};
    let own = getpid().as_raw_nonzero().get().unsigned_abs();
    let mut rules: Rules = calls::named(calls).map(|number| (number, Vec::new())).collect();
    let mut when = |number: i64, arguments: &[Argument]| -> Result<(), BackendError> {
        let conditions = arguments.iter().map(|argument| argument.condition()).collect::<Result<Vec<_>, _>>()?;
        rules.entry(number).or_default().push(SeccompRule::new(conditions)?);
        Ok(())
    };
    let executable = libc::PROT_EXEC.unsigned_abs().into();
    when(libc::SYS_mmap, &[HasBits(2, executable, 0)])?;
    when(libc::SYS_mprotect, &[HasBits(2, executable, 0)])?;
    when(libc::SYS_madvise, &[HasBits(2, !ADVICE_MAX, 0)])?;
    when(libc::SYS_clone, &[HasBits(0, THREAD_FLAGS | NAMESPACE_FLAGS, THREAD_FLAGS)])?;
    when(libc::SYS_tgkill, &[Is(0, own)])?;
    when(libc::SYS_prlimit64, &[Is(0, 0)])?;
    // With an address, sendto could reach new peers. So could sendmsg, whose address a filter cannot see, but only on a
    // datagram socket, and the process has none.
    when(libc::SYS_sendto, &[IsNull(4)])?;
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET] {
        let kind = HasBits(1, SOCKET_TYPE, kind.unsigned_abs().into());
        when(libc::SYS_socketpair, &[Is(0, libc::AF_UNIX.unsigned_abs()), kind])?;
    }
    for operation in FCNTLS {
        when(libc::SYS_fcntl, &[Is(1, operation.unsigned_abs())])?;
    }
    when(libc::SYS_fcntl, &[Is(1, libc::F_SETFL.unsigned_abs()), HasBits(2, libc::O_ASYNC.unsigned_abs().into(), 0)])?;
    if calls.rings {
        when(libc::SYS_io_uring_register, &[Is(1, ENABLE_RINGS)])?;
    }
    for request in IOCTLS {
        when(libc::SYS_ioctl, &[Is(1, request)])?;
    }
    for option in PRCTLS {
        when(libc::SYS_prctl, &[Is(0, option)])?;
    }
    Ok(rules)
}

impl Argument {
    fn condition(self) -> Result<SeccompCondition, BackendError> {
        match self {
            Self::Is(index, value) => SeccompCondition::new(index, Dword, SeccompCmpOp::Eq, value.into()),
            Self::HasBits(index, mask, bits) => SeccompCondition::new(index, Qword, SeccompCmpOp::MaskedEq(mask), bits),
            Self::IsNull(index) => SeccompCondition::new(index, Qword, SeccompCmpOp::Eq, 0),
        }
    }
}
