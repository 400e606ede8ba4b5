//! Simulates a compromised decoder. Only in debug builds.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{self, Write},
    net::TcpStream,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::{
            fs::{MetadataExt, PermissionsExt},
            net::{UnixDatagram, UnixStream},
        },
    },
    path::{Path, PathBuf},
    ptr, thread,
    time::Duration,
};

/// Makes, on this thread, the attempts that a compromised decoder would make. Writes one line for each: its name, and
/// `allowed` or the error. `place` is a directory outside the policy that contains a listening socket `listener.sock`, a
/// datagram socket `datagram.sock`, and perhaps the target of an extraction, `target`, and a mountpoint, `later`; `port` is
/// a listening TCP port of this machine. Undoes successful attempts where possible.
///
/// # Errors
/// The output cannot be written.
pub fn probe(mut output: impl Write, place: &Path, port: u16) -> io::Result<()> {
    for (name, attempt) in attempts(place, port) {
        match attempt() {
            Ok(()) => writeln!(output, "{name}: allowed")?,
            Err(error) => writeln!(output, "{name}: {error}")?,
        }
    }
    Ok(())
}

type Attempt = Box<dyn Fn() -> io::Result<()>>;

fn attempts(place: &Path, port: u16) -> Vec<(&'static str, Attempt)> {
    let made = place.join("made");
    let node = place.join("node");
    let beneath = place.join("target/node");
    let listener = place.join("listener.sock");
    let (changed, receiver) = (listener.clone(), place.join("datagram.sock"));
    let (bystander, inherited, later) = (place.to_owned(), place.to_owned(), place.to_owned());
    let true_program = CString::new("/bin/true").unwrap_or_default();
    vec![
        ("read /etc/passwd", Box::new(|| fs::read("/etc/passwd").map(drop))),
        ("read /proc/1/environ", Box::new(|| fs::read("/proc/1/environ").map(drop))),
        ("list a directory", Box::new(move || fs::read_dir(&bystander).map(drop))),
        ("create a file", Box::new(move || File::create(&made).map(drop).and_then(|()| fs::remove_file(&made)))),
        ("mknod", Box::new(move || make_node(&node).and_then(|()| fs::remove_file(&node)))),
        ("open a device", Box::new(move || open_node(&beneath))),
        ("change a mode", Box::new(move || fs::set_permissions(&changed, fs::Permissions::from_mode(0o777)))),
        ("connect over TCP", Box::new(move || TcpStream::connect(("127.0.0.1", port)).map(drop))),
        ("connect to a socket", Box::new(move || UnixStream::connect(&listener).map(drop))),
        ("send to a socket", Box::new(move || send_to(&receiver))),
        ("fork", Box::new(fork)),
        ("execve", Box::new(move || execute(&true_program))),
        ("memfd_create and fexecve", Box::new(execute_memory)),
        ("map code", Box::new(map_code)),
        ("kill", Box::new(|| zero(call(libc::SYS_kill, [parent(), 0, 0, 0, 0])))),
        ("signal by a descriptor", Box::new(own_descriptor)),
        ("ptrace", Box::new(|| trace(parent()))),
        ("io_uring_setup", Box::new(io_uring)),
        ("take memory out of use", Box::new(take_memory)),
        ("use an inherited descriptor", Box::new(move || use_inherited(&inherited))),
        ("mount", Box::new(|| mount(c"/"))),
        ("unshare", Box::new(|| zero(call(libc::SYS_unshare, [libc::CLONE_NEWUTS.into(), 0, 0, 0, 0])))),
        (
            "setuid",
            Box::new(|| zero(call(libc::SYS_setuid, [i64::from(rustix::process::getuid().as_raw()), 0, 0, 0, 0]))),
        ),
        ("type into the terminal", Box::new(type_in)),
        ("change a mode on a later mount", Box::new(move || change_later(&later))),
    ]
}

fn call(number: i64, [first, second, third, fourth, fifth]: [i64; 5]) -> i64 {
    // SAFETY: the callers pass numbers, or addresses of values that outlive the call.
    unsafe { libc::syscall(number, first, second, third, fourth, fifth) }
}

fn zero(result: i64) -> io::Result<()> {
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn parent() -> i64 {
    std::os::unix::process::parent_id().into()
}

fn make_node(path: &PathBuf) -> io::Result<()> {
    let device = rustix::fs::makedev(1, 3);
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::CharacterDevice, mode, device)?;
    Ok(())
}

/// Makes a device and opens it.
fn open_node(path: &PathBuf) -> io::Result<()> {
    make_node(path)?;
    let opened = File::open(path);
    fs::remove_file(path)?;
    opened.map(drop)
}

/// Sends a message from a pair of datagram sockets to another socket.
fn send_to(receiver: &Path) -> io::Result<()> {
    let (socket, _other) = UnixDatagram::pair()?;
    let address = rustix::net::SocketAddrUnix::new(receiver)?;
    let mut control = rustix::net::SendAncillaryBuffer::default();
    let message = [io::IoSlice::new(b"probe")];
    let flags = rustix::net::SendFlags::NOSIGNAL;
    rustix::net::sendmsg_addr(&socket, &address, &message, &mut control, flags)?;
    Ok(())
}

/// Makes the parent process the owner of a descriptor, whose signals it would get.
fn own_descriptor() -> io::Result<()> {
    let (socket, _other) = UnixStream::pair()?;
    let process = libc::c_int::try_from(parent()).unwrap_or_default();
    // SAFETY: the call takes numbers only.
    zero(unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETOWN, process) }.into())
}

/// Runs `child_work` in a forked child and ends the child.
fn in_child(child_work: impl Fn()) -> io::Result<()> {
    // SAFETY: the child only makes system calls and exits.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            child_work();
            // SAFETY: `_exit` ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(1) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            let has_worked = waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            if has_worked { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
        }
    }
}

fn fork() -> io::Result<()> {
    // SAFETY: `_exit` ends the child without running the parent's exit handlers.
    in_child(|| unsafe { libc::_exit(0) })
}

/// If no child can be created, this thread calls execve itself; it returns only if that is denied too.
fn execute(program: &CString) -> io::Result<()> {
    let arguments = [program.as_ptr(), ptr::null()];
    let attempt = || {
        // SAFETY: the name and the list are null-terminated and outlive the call.
        unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), arguments[1..].as_ptr().cast()) };
    };
    if fork().is_ok() {
        return in_child(attempt);
    }
    attempt();
    Err(io::Error::last_os_error())
}

fn execute_memory() -> io::Result<()> {
    // SAFETY: the name outlives the call.
    zero(unsafe { libc::memfd_create(c"probe".as_ptr(), libc::MFD_CLOEXEC) }.into())
}

fn map_code() -> io::Result<()> {
    // SAFETY: a new mapping at an address chosen by the kernel affects no other memory.
    let mapped = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0)
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is unused.
    zero(unsafe { libc::munmap(mapped, 4096) }.into())
}

fn trace(process: i64) -> io::Result<()> {
    zero(call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), process, 0, 0, 0]))?;
    zero(call(libc::SYS_ptrace, [libc::PTRACE_DETACH.into(), process, 0, 0, 0])).or(Ok(()))
}

/// `MADV_HWPOISON` without memory: if the call is allowed, it does nothing.
fn take_memory() -> io::Result<()> {
    let result = zero(call(libc::SYS_madvise, [0, 0, libc::MADV_HWPOISON.into(), 0, 0]));
    result.or_else(|error| if error.kind() == io::ErrorKind::PermissionDenied { Err(error) } else { Ok(()) })
}

/// Looks for a descriptor of a directory that the process has inherited.
fn use_inherited(directory: &Path) -> io::Result<()> {
    let wanted = fs::metadata(directory)?;
    let is_wanted = |number: i32| {
        // SAFETY: the kernel refuses a number that is not open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::fs::fstat(descriptor).is_ok_and(|found| (found.st_dev, found.st_ino) == (wanted.dev(), wanted.ino()))
    };
    if (3..64).any(is_wanted) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Changes the mode of a file on what is mounted on `place/later`, if that exists, as soon as `place/mounted` exists.
fn change_later(place: &Path) -> io::Result<()> {
    let (later, mounted) = (place.join("later"), place.join("mounted"));
    while later.exists() && !mounted.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    fs::set_permissions(later.join("file"), fs::Permissions::from_mode(0o777))
}

fn io_uring() -> io::Result<()> {
    let mut parameters = [0u8; 120];
    // SAFETY: the kernel's structure has 120 bytes.
    zero(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) })
}

/// Calls mount with flags that exclude each other: if the call is allowed, it fails for another reason.
fn mount(target: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the strings outlive the call.
    let result = unsafe {
        let flags = libc::MS_BIND | libc::MS_MOVE | libc::MS_SHARED | libc::MS_PRIVATE;
        libc::mount(c"none".as_ptr(), target.as_ptr(), c"none".as_ptr(), flags, ptr::null())
    };
    match io::Error::last_os_error() {
        error if result < 0 && error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// `TIOCSTI`: if the call is allowed, it fails because standard input is not a terminal.
fn type_in() -> io::Result<()> {
    let letter = b'x';
    // SAFETY: the letter outlives the call.
    let result = unsafe { libc::ioctl(0, libc::TIOCSTI, &raw const letter) };
    match io::Error::last_os_error() {
        error if result < 0 && error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}
