//! The core of a ring, which its thread and the replies to its requests share.

use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use floe_sync::Mutex;
use io_uring::{IoUring, cqueue, opcode, register::Restriction, squeue, types::Fd};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};
use zerocopy::{Immutable, IntoBytes};

use crate::{
    Channel,
    slot_sys::{Places, Slot},
};

/// `FUSE_IO_URING_CMD_REGISTER`: adds a slot, in which the kernel puts a request.
const REGISTER: u32 = 1;

/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: takes the reply in a slot, and puts the next request there.
const COMMIT_AND_FETCH: u32 = 2;

/// The number of commands that fit into a ring before they are submitted.
const COMMANDS_MAX: u32 = 64;

/// How long the owner waits before it tries again what the kernel had no memory for.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// `POLLIN`.
const READABLE: u32 = 1;

/// The mark of the completions that announce replies of other threads. Slots have smaller numbers.
pub(crate) const BELL: u64 = u64::MAX;

/// `fuse_uring_cmd_req`: the argument of a command.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct Command {
    flags: u64,
    commit_id: u64,
    qid: u16,
    padding: [u8; 6],
}

const _: () = assert!(size_of::<Command>() == 24);

/// The part of a ring that replies refer to.
pub(crate) struct Core {
    io: IoUring<squeue::Entry128>,
    /// Set at the start: the connection, and the thread that alone may submit commands.
    started: OnceLock<(Channel, ThreadId)>,
    /// Locked by that thread alone.
    slots: Mutex<Slots>,
    /// Slots with replies that are not committed yet: those of other threads. That thread commits them.
    returned: Mutex<VecDeque<Slot>>,
    /// Wakes it to commit them.
    bell: OwnedFd,
    /// Whether it is about to wait, so that the bell is needed.
    is_waiting: AtomicBool,
}

/// The slots of a ring, by number: those in which the kernel puts a request. The others belong to replies.
type Slots = Vec<Option<Slot>>;

/// The place of a reply that goes over a ring.
pub(crate) struct InSlot {
    core: Arc<Core>,
    slot: Slot,
}

impl Core {
    /// Creates a ring for this number of slots.
    ///
    /// # Errors
    /// The kernel has no io_uring, or this process may not use it.
    pub(crate) fn new(slot_count: usize) -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128>::builder();
        builder.setup_r_disabled().setup_submit_all().setup_single_issuer();
        // Not `setup_defer_taskrun`: requests that arrive while the thread ends would stay until the ring closes, and threads of
        // this program that wait for them would keep it open.
        builder.setup_coop_taskrun().setup_taskrun_flag();
        // A mapping in a child process would be a reference too.
        builder.dontfork();
        builder.setup_clamp().setup_cqsize(u32::try_from(slot_count + 1).unwrap_or(u32::MAX));
        let io = builder.build(COMMANDS_MAX)?;
        let mut permitted = [Restriction::sqe_op(opcode::UringCmd80::CODE), Restriction::sqe_op(opcode::PollAdd::CODE)];
        io.submitter().register_restrictions(&mut permitted)?;
        Ok(Self {
            io,
            started: OnceLock::new(),
            slots: Mutex::default(),
            returned: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
            is_waiting: AtomicBool::new(false),
        })
    }

    /// Makes the calling thread the one that submits commands for a connection.
    pub(crate) fn start(&self, channel: &Channel) -> io::Result<()> {
        self.io.submitter().register_enable_rings()?;
        if self.started.set((channel.clone(), thread::current().id())).is_err() {
            return Err(Errno::ALREADY.into());
        }
        self.watch_bell()
    }

    /// Gives the kernel one more slot of a queue.
    pub(crate) fn add_slot(&self, queue: u16, payload_bytes: usize) -> io::Result<()> {
        let mut slots = self.slots.lock();
        let slot = Slot::new(slots.len(), queue, payload_bytes)?;
        slots.push(None);
        self.give(&mut slots, slot, REGISTER).map_err(|(error, _)| error)
    }

    /// Gives a slot to the kernel again, whose last command failed.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub(crate) fn give_again(&self, slot: Slot, errno: Errno) -> io::Result<()> {
        let command = command_after(errno, slot.command).ok_or(errno)?;
        if errno == Errno::NOMEM {
            thread::sleep(MEMORY_PAUSE);
        }
        self.give(&mut self.slots.lock(), slot, command).map_err(|(error, _)| error)
    }

    /// The next completion, if there is one. Called by the thread that has started the ring.
    pub(crate) fn next_completion(&self) -> Option<cqueue::Entry> {
        // SAFETY: that thread alone takes completions.
        unsafe { self.io.completion_shared() }.next()
    }

    /// Commits the reply in a slot; from another thread than the owner, through the owner.
    fn commit(&self, slot: Slot) {
        let is_owner = self.started.get().is_some_and(|(_, owner)| *owner == thread::current().id());
        if is_owner {
            if let Err((_, slot)) = self.give(&mut self.slots.lock(), slot, COMMIT_AND_FETCH) {
                // The owner tries again before it waits, and learns of the error then.
                self.returned.lock().push_back(slot);
            }
            return;
        }
        self.returned.lock().push_back(slot);
        if self.is_waiting.swap(false, SeqCst) {
            // A counter that is full wakes the owner too.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Commits the replies of other threads.
    pub(crate) fn commit_returned(&self) -> io::Result<()> {
        loop {
            let Some(slot) = self.returned.lock().pop_front() else { return Ok(()) };
            if let Err((error, slot)) = self.give(&mut self.slots.lock(), slot, COMMIT_AND_FETCH) {
                self.returned.lock().push_front(slot);
                return Err(error);
            }
        }
    }

    /// Gives a slot to the kernel with a command. Returns the slot with the error if that is impossible.
    fn give(&self, slots: &mut Slots, mut slot: Slot, command: u32) -> Result<(), (io::Error, Slot)> {
        let Some((channel, _)) = self.started.get() else { return Err((Errno::NOTCONN.into(), slot)) };
        slot.command = command;
        let argument = Command { flags: 0, commit_id: slot.commit_id, qid: slot.queue, padding: [0; 6] };
        let mut bytes = [0; 80];
        bytes[..size_of::<Command>()].copy_from_slice(argument.as_bytes());
        let entry = opcode::UringCmd80::new(Fd(channel.as_fd().as_raw_fd()), command).cmd(bytes);
        let mut entry = entry.addr(Some(slot.places() as u64)).build().user_data(slot.index as u64);
        let place_count = if command == REGISTER { size_of::<Places>() / size_of::<libc::iovec>() } else { 0 };
        // SAFETY: an entry has the layout of `io_uring_sqe`, whose field `len` is its seventh word. The crate cannot set it.
        unsafe { (&raw mut entry).cast::<u32>().add(6).write(place_count as u32) };
        if let Err(error) = self.enqueue(&entry) {
            return Err((error, slot));
        }
        let index = slot.index;
        slots[index] = Some(slot);
        // After an error, the command stays in the queue. It is submitted with the next one, or when the owner waits, which
        // fails if the kernel refuses for good.
        let _ = self.submit();
        Ok(())
    }

    /// Watches the bell until the kernel says that it no longer does.
    pub(crate) fn watch_bell(&self) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(self.bell.as_raw_fd()), READABLE).multi(true).build().user_data(BELL);
        self.enqueue(&entry.into())?;
        self.submit()
    }

    /// Puts a command in the queue. Called by the owner alone.
    fn enqueue(&self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: one thread submits, and all memory that the command refers to belongs to its slot, which stays as it is
        // until the command completes.
        while unsafe { self.io.submission_shared().push(entry) }.is_err() {
            // The queue is full of commands that the kernel had no memory for.
            self.submit()?;
        }
        Ok(())
    }

    /// Submits the commands in the queue. Called by the owner alone. If the kernel has no memory for them, they stay in the queue.
    pub(crate) fn submit(&self) -> io::Result<()> {
        pause_in_shortage(retry_on_interrupt(|| self.io.submit()))
    }

    /// Waits for a completion, unless another thread has replied meanwhile.
    pub(crate) fn wait(&self) -> io::Result<()> {
        self.is_waiting.store(true, SeqCst);
        // `commit` stores and loads in the opposite order, so one of the two sees the other.
        let is_returned = !self.returned.lock().is_empty();
        let waited = if is_returned { Ok(()) } else { retry_on_interrupt(|| self.io.submit_and_wait(1)) };
        self.is_waiting.store(false, SeqCst);
        pause_in_shortage(waited)
    }

    /// Takes a slot back from the kernel.
    pub(crate) fn take(&self, index: u64) -> Option<Slot> {
        self.slots.lock().get_mut(usize::try_from(index).ok()?)?.take()
    }
}

impl InSlot {
    pub(crate) fn new(core: &Arc<Core>, slot: Slot) -> Self {
        Self { core: Arc::clone(core), slot }
    }

    /// Sends a reply. Returns it if it is too long.
    pub(crate) fn send(mut self, unique: u64, error: i32, pieces: &[&[u8]]) -> Result<(), Self> {
        if !self.slot.put_reply(unique, error, pieces) {
            return Err(self);
        }
        self.core.commit(self.slot);
        Ok(())
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Core").field("started", &self.started).finish_non_exhaustive()
    }
}

impl fmt::Debug for InSlot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slot.fmt(formatter)
    }
}

/// The command to repeat with a slot whose last command failed; `None` if the connection cannot go on.
fn command_after(errno: Errno, command: u32) -> Option<u32> {
    match errno {
        // The kernel did not take the slot, so it does not have the reply that may be in it.
        Errno::AGAIN | Errno::INTR | Errno::NOMEM => Some(command),
        // The kernel no longer knows the request that was in it.
        Errno::NOENT | Errno::CANCELED => Some(REGISTER),
        _ => None,
    }
}

/// Waits a little if the kernel had no memory. That is no error: the caller tries again.
fn pause_in_shortage(result: io::Result<()>) -> io::Result<()> {
    let is_shortage = |errno| matches!(errno, Errno::AGAIN | Errno::BUSY | Errno::NOMEM);
    match result {
        Err(error) if Errno::from_io_error(&error).is_some_and(is_shortage) => {
            thread::sleep(MEMORY_PAUSE);
            Ok(())
        }
        result => result,
    }
}

fn retry_on_interrupt(submit: impl Fn() -> io::Result<usize>) -> io::Result<()> {
    loop {
        match submit() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_testkit::skip::skipped;
    use io_uring::types::Fd;
    use rustix::fs::CWD;

    use super::*;
    use crate::abi::READ_BUFFER_BYTES_MIN;

    /// A ring without a connection that is not enabled yet.
    fn disabled_ring() -> Option<Core> {
        Core::new(32).inspect_err(|error| skipped(&format!("there is no io_uring: {error}"))).ok()
    }

    /// A ring that accepts commands, without a connection.
    fn ring() -> Option<Core> {
        let core = disabled_ring()?;
        core.io.submitter().register_enable_rings().expect("it was disabled");
        Some(core)
    }

    /// A slot of a ring that belongs to this thread. The device in the place of a connection accepts all commands.
    fn slots(core: &Core, count: usize) -> Vec<Slot> {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").expect("it is there");
        core.started.set((Channel::new(null.into()), thread::current().id())).expect("once");
        core.slots.lock().resize_with(count, || None);
        (0..count).map(|index| Slot::new(index, 0, READ_BUFFER_BYTES_MIN).expect("memory")).collect()
    }

    /// The slots whose commands have completed.
    fn completed(core: &Core, count: usize) -> Vec<u64> {
        let mut completed = Vec::new();
        while completed.len() < count {
            core.wait().expect("the ring works");
            // SAFETY: this thread alone takes completions.
            completed.extend(unsafe { core.io.completion_shared() }.map(|completion| completion.user_data()));
        }
        completed.sort_unstable();
        completed
    }

    /// The result of a command.
    fn result(core: &Core, entry: impl Into<squeue::Entry128>) -> i32 {
        core.enqueue(&entry.into()).and_then(|()| core.submit()).expect("the ring takes it");
        retry_on_interrupt(|| core.io.submit_and_wait(1)).expect("it completes");
        // SAFETY: this thread alone takes completions.
        unsafe { core.io.completion_shared() }.next().expect("a completion").result()
    }

    #[test]
    fn a_ring_refuses_all_commands_but_those_of_fuse() {
        let Some(core) = ring() else { return };
        let (path, mut byte) = (c"/etc/passwd", [0u8; 1]);
        let (directory, bell) = (Fd(CWD.as_raw_fd()), Fd(core.bell.as_raw_fd()));
        let refused = [
            ("open", opcode::OpenAt::new(directory, path.as_ptr()).build()),
            ("socket", opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build()),
            ("read", opcode::Read::new(bell, byte.as_mut_ptr(), 1).build()),
            ("unlink", opcode::UnlinkAt::new(directory, path.as_ptr()).build()),
            ("nop", opcode::Nop::new().build()),
        ];
        for (name, entry) in refused {
            assert_eq!(result(&core, entry), -libc::EACCES, "{name}");
        }
        // Not a FUSE connection, but permitted.
        assert_ne!(result(&core, opcode::UringCmd80::new(bell, REGISTER).build()), -libc::EACCES);
        let registered = core.io.submitter().register_files(&[bell.0]);
        assert_eq!(registered.map_err(|error| error.raw_os_error()), Err(Some(libc::EACCES)));
    }

    #[test]
    fn no_reply_is_lost_while_the_kernel_takes_no_commands() {
        for is_owner in [true, false] {
            let Some(core) = disabled_ring() else { return };
            let slots = slots(&core, 5);
            if is_owner {
                slots.into_iter().for_each(|slot| core.commit(slot));
            } else {
                thread::scope(|scope| drop(scope.spawn(|| slots.into_iter().for_each(|slot| core.commit(slot)))));
                let _ = core.commit_returned();
            }
            core.io.submitter().register_enable_rings().expect("it was disabled");
            core.commit_returned().expect("the ring takes them");
            assert_eq!(completed(&core, 5), [0, 1, 2, 3, 4], "by the owner: {is_owner}");
        }
    }

    #[test]
    fn a_reply_has_room_in_a_full_queue() {
        let Some(core) = ring() else { return };
        let slots = slots(&core, 1);
        let nop = opcode::Nop::new().build().user_data(7).into();
        // SAFETY: the command refers to no memory.
        while unsafe { core.io.submission_shared().push(&nop) }.is_ok() {}
        slots.into_iter().for_each(|slot| core.commit(slot));
        assert_eq!(completed(&core, COMMANDS_MAX as usize + 1)[0], 0);
    }

    #[test]
    fn a_reply_that_the_kernel_did_not_take_is_committed_again() {
        for (errno, command, expected) in [
            (Errno::AGAIN, COMMIT_AND_FETCH, Some(COMMIT_AND_FETCH)),
            (Errno::INTR, COMMIT_AND_FETCH, Some(COMMIT_AND_FETCH)),
            (Errno::NOMEM, COMMIT_AND_FETCH, Some(COMMIT_AND_FETCH)),
            (Errno::AGAIN, REGISTER, Some(REGISTER)),
            (Errno::NOENT, COMMIT_AND_FETCH, Some(REGISTER)),
            (Errno::INVAL, COMMIT_AND_FETCH, None),
        ] {
            assert_eq!(command_after(errno, command), expected, "{errno} {command}");
        }
    }

    #[test]
    fn replies_of_other_threads_wake_the_owner() {
        let Some(core) = ring() else { return };
        core.watch_bell().expect("the ring takes it");
        let slot = Slot::new(0, 0, READ_BUFFER_BYTES_MIN).expect("memory");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !core.is_waiting.load(SeqCst) {
                    thread::yield_now();
                }
                core.commit(slot);
            });
            core.wait().expect("it is woken");
        });
        assert_eq!(core.returned.lock().len(), 1);
        // With a reply there, the owner does not wait.
        core.wait().expect("it does not wait");
    }
}
