//! A conversation with a kernel, live and recorded.
//!
//! `FLOE_RECORD=1 cargo test -p floe-fuse-wire --test protocol conversation` records it anew, from this machine's kernel.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use floe_fuse_wire::{Channel, InitFlags, Opcode};
use floe_testkit::file_system_label;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::support::{CONTENT_BYTES, MANY, SLOW, Sample, TestMount, can_mount, content};

/// The features that the sample requests from the kernel.
const FLAGS: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::HAS_RESEND)
    .union(InitFlags::ABORT_ERROR);

/// The opcodes that the conversation must contain.
const OPCODES: [Opcode; 21] = [
    Opcode::INIT,
    Opcode::LOOKUP,
    Opcode::FORGET,
    Opcode::BATCH_FORGET,
    Opcode::GETATTR,
    Opcode::READLINK,
    Opcode::OPEN,
    Opcode::READ,
    Opcode::STATFS,
    Opcode::RELEASE,
    Opcode::GETXATTR,
    Opcode::LISTXATTR,
    Opcode::FLUSH,
    Opcode::OPENDIR,
    Opcode::READDIR,
    Opcode::READDIRPLUS,
    Opcode::RELEASEDIR,
    Opcode::ACCESS,
    Opcode::INTERRUPT,
    Opcode::IOCTL,
    Opcode::LSEEK,
];

const MESSAGE_BYTES_MAX: usize = 1 << 21;

/// The time limit for each expected message.
const PATIENCE: Duration = Duration::from_secs(60);

/// One message: `>` from the kernel, `<` to it.
type Message = (char, Vec<u8>);

/// The messages so far, and the condition that wakes the threads that wait for more.
#[derive(Default)]
struct Conversation {
    messages: Mutex<Vec<Message>>,
    has_grown: Condvar,
}

impl Conversation {
    fn messages(&self) -> MutexGuard<'_, Vec<Message>> {
        self.messages.lock().expect("no panic")
    }

    fn add(&self, way: char, bytes: &[u8]) {
        self.messages().push((way, bytes.to_vec()));
        self.has_grown.notify_all();
    }

    /// Waits until the messages fulfil the condition.
    fn wait_until(&self, what: &str, is_so: impl Fn(&[Message]) -> bool) {
        let waited = self.has_grown.wait_timeout_while(self.messages(), PATIENCE, |messages| !is_so(messages));
        let (messages, timeout) = waited.expect("no panic");
        assert!(!timeout.timed_out(), "{what} did not come: {:?}", heard(&messages));
    }

    /// Waits until the kernel has sent such a request.
    fn wait_for(&self, wanted: Opcode) {
        self.wait_until(&format!("{wanted:?}"), |messages| heard(messages).contains(&wanted));
    }
}

#[test]
fn a_recorded_conversation_gets_the_same_replies() {
    let messages = read_recording(&recording());
    let heard = heard(&messages);
    for opcode in OPCODES {
        assert!(heard.contains(&opcode), "{opcode:?} was not recorded");
    }
    let (ours, kernel) = sockets();
    let mut sample = Sample::new(Channel::new(ours), FLAGS);
    thread::scope(|scope| {
        scope.spawn(move || {
            sample.negotiate().expect("terms");
            // The end of the socket reads as a request without a header.
            assert!(sample.serve().is_err());
        });
        for (index, (way, bytes)) in messages.iter().enumerate() {
            match way {
                '>' => drop(send(&kernel, bytes, SendFlags::empty()).expect("it listens")),
                _ => {
                    let mut answer = vec![0; MESSAGE_BYTES_MAX];
                    let (len, _) = recv(&kernel, &mut answer[..], rustix::net::RecvFlags::empty()).expect("an answer");
                    assert!(answer[..len] == bytes[..], "message {index}: {:?} is not {bytes:?}", &answer[..len]);
                }
            }
        }
        drop(kernel);
    });
}

#[test]
fn every_request_of_a_kernel_gets_a_reply() {
    if !can_mount() {
        return;
    }
    let (mount, device) = TestMount::new();
    let (ours, theirs) = sockets();
    let conversation = Arc::new(Conversation::default());
    pass_on(Arc::new(device), Arc::new(theirs), &conversation);
    let serving = thread::spawn(move || {
        let mut sample = Sample::new(Channel::new(ours), FLAGS);
        sample.negotiate().expect("terms");
        sample.serve()
    });
    exercise(mount.path(), &conversation);
    OPCODES.into_iter().for_each(|opcode| conversation.wait_for(opcode));
    drop(mount);
    drop(serving);
    if std::env::var_os("FLOE_RECORD").is_some() {
        let mut text = String::new();
        for (way, bytes) in conversation.messages().iter() {
            text.push(*way);
            bytes.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
            text.push('\n');
        }
        fs::write(recording(), text).expect("a file");
    }
}

/// Passes messages on between a device and a socket, and notes them.
fn pass_on(device: Arc<OwnedFd>, socket: Arc<OwnedFd>, conversation: &Arc<Conversation>) {
    for way in ['>', '<'] {
        let (from, to) = if way == '>' { (&device, &socket) } else { (&socket, &device) };
        let (from, to, conversation) = (Arc::clone(from), Arc::clone(to), Arc::clone(conversation));
        thread::spawn(move || {
            let mut bytes = vec![0; MESSAGE_BYTES_MAX];
            loop {
                let len = match rustix::io::read(&from, &mut bytes[..]) {
                    Ok(0) | Err(rustix::io::Errno::NODEV | rustix::io::Errno::CONNRESET) => break,
                    Ok(len) => len,
                    Err(_) => continue,
                };
                let message = &bytes[..len];
                conversation.add(way, message);
                // The kernel refuses the reply to a request that was interrupted or aborted.
                let _ = rustix::io::write(&to, message);
                if way == '>' && opcode(message) == Opcode::STATFS {
                    // The sample invalidates five entries before it replies. The kernel sends their FORGETs as one
                    // batch if nobody reads the next message before that reply.
                    let number = unique(message);
                    conversation.wait_until("the answer to STATFS", |messages| {
                        messages.iter().any(|(way, bytes)| *way == '<' && unique(bytes) == number)
                    });
                }
            }
        });
    }
}

/// Calls the file system such that the kernel sends every request of [`OPCODES`].
fn exercise(path: &Path, conversation: &Conversation) {
    // Nothing is known of the root but its number.
    assert!(rustix::fs::stat(path).expect("attributes").st_ino > 1000);
    let file = path.join("file");
    assert_eq!(fs::metadata(&file).expect("attributes").len(), CONTENT_BYTES as u64);
    assert!(fs::metadata(path.join("missing")).is_err());
    assert_eq!(fs::read_link(path.join("link")).expect("a target"), Path::new("file"));
    let open = fs::File::open(&file).expect("a file");
    let mut bytes = vec![0; CONTENT_BYTES];
    open.read_exact_at(&mut bytes, 0).expect("data");
    assert!(bytes == content());
    assert_eq!(rustix::fs::seek(&open, rustix::fs::SeekFrom::Data(5)), Ok(4096));
    assert!(file_system_label(&open).expect("a label") == b"a label");
    drop(open);
    let mut value = [0; 20];
    assert_eq!(rustix::fs::getxattr(&file, "user.comment", &mut value[..]), Ok(7));
    assert_eq!(rustix::fs::listxattr(&file, &mut value[..]), Ok(13));
    rustix::fs::access(&file, rustix::fs::Access::READ_OK).expect("it may be read");
    let names: Vec<_> = fs::read_dir(path.join("many")).expect("a directory").map(|entry| entry.expect("it")).collect();
    assert_eq!(names.len() as u64, MANY);
    for name in names.iter().take(20) {
        assert_eq!(name.metadata().expect("attributes").len(), CONTENT_BYTES as u64);
    }
    // The sample invalidates five entries before it replies to STATFS; a sixth one is forgotten later.
    assert_eq!(rustix::fs::statvfs(path).expect("statistics").f_blocks, 1234);
    conversation.wait_for(Opcode::BATCH_FORGET);
    fs::metadata(names[0].path()).expect("it is looked up again");
    // The open directory goes with the last of its entries.
    drop(names);
    rustix::fs::statvfs(path).expect("statistics");
    conversation.wait_for(Opcode::FORGET);
    let mut reader = Command::new("cat");
    reader.arg(path.join("slow")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = reader.spawn().expect("cat");
    conversation.wait_until("the slow READ", |messages| {
        messages.iter().any(|(way, bytes)| *way == '>' && opcode(bytes) == Opcode::READ && node(bytes) == SLOW)
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&reader), rustix::process::Signal::TERM)
        .expect("it is ours");
    assert!(!reader.wait().expect("it ends").success());
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("two sockets")
}

fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conversation.txt")
}

fn read_recording(path: &Path) -> Vec<Message> {
    let text = fs::read_to_string(path).expect("the recording");
    let message = |line: &str| {
        let (way, digits) = line.split_at(1);
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
        (way.chars().next().expect("a way"), (0..digits.len()).step_by(2).map(byte).collect())
    };
    text.lines().map(message).collect()
}

/// The opcodes of the kernel's requests.
fn heard(messages: &[Message]) -> BTreeSet<Opcode> {
    messages.iter().filter(|(way, _)| *way == '>').map(|(_, bytes)| opcode(bytes)).collect()
}

fn opcode(request: &[u8]) -> Opcode {
    Opcode(u32::from_ne_bytes(request[4..8].try_into().expect("four bytes")))
}

/// The number of a request, or of the one that a message answers.
fn unique(message: &[u8]) -> u64 {
    u64::from_ne_bytes(message[8..16].try_into().expect("eight bytes"))
}

fn node(request: &[u8]) -> u64 {
    u64::from_ne_bytes(request[16..24].try_into().expect("eight bytes"))
}
