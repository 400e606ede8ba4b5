//! The client side, in the process that reads the image.

use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_image::{ImageSource, SourceIdentity, start_error};
use floe_sync::{Condvar, Mutex};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

use crate::{
    ImageAbout, ImageCounts, ImageOptions,
    process::message::{Failure, LANE_COUNT, Order, Question, READ_BYTES_MAX, Reply, Report, Verb, receive, send},
};

/// How long the process may take to end: it cancels requests in progress, and leaves the cache on disk consistent.
const END_TIME_MAX: Duration = Duration::from_secs(2);

/// The interval at which the end of the process is polled.
const END_INTERVAL: Duration = Duration::from_millis(1);

/// A remote image that another process fetches. This process needs only its open sockets.
pub struct RemoteProcess {
    about: ImageAbout,
    /// `None` once [`RemoteProcess::end`] was called.
    control: Mutex<Option<File>>,
    lanes: Mutex<Lanes>,
    freed: Condvar,
    /// `None` if this process has not started the other one.
    child: Mutex<Option<Child>>,
}

/// The unused lanes.
struct Lanes {
    free: Vec<File>,
    /// Whether a lane was lost because the other process has ended or violated the protocol.
    is_lost: bool,
}

/// A lane in use.
struct Lane<'a> {
    process: &'a RemoteProcess,
    /// `None` after a violation of the order of questions and replies.
    file: Option<File>,
}

impl RemoteProcess {
    /// Starts `program`, which must call [`serve`](super::serve) with its standard input, and requests the image at
    /// `location`. Starts no threads.
    ///
    /// # Errors
    /// The process cannot be started, or the image cannot be opened.
    pub fn start(mut program: Command, location: &str, options: &ImageOptions) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        // The process group keeps signals of the terminal away from the fetching process, which ends with this one.
        program.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
        let child = program.spawn().map_err(start_error);
        // If the image cannot be opened, the process ends when the sockets close. It is not waited for.
        let process = child.and_then(|child| {
            let process = Self::over(ours, location, options)?;
            *process.child.lock() = Some(child);
            Ok(process)
        });
        drop(program);
        process
    }

    /// Requests the image from the process at the other end of a socket.
    ///
    /// # Errors
    /// The image cannot be opened, or the process has ended.
    pub fn over(control: OwnedFd, location: &str, options: &ImageOptions) -> io::Result<Self> {
        let pairs = (0..LANE_COUNT).map(|_| pair()).collect::<io::Result<Vec<_>>>()?;
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        send_lanes(&control, &theirs)?;
        drop(theirs);
        let control = File::from(control);
        send(&control, &Order::Open { location: location.to_owned(), options: options.clone() })?;
        let about = match receive(&control)?.ok_or_else(ended)? {
            Report::Opened(about) => about,
            Report::Failed(failure) => return Err(failure.into_error()),
            Report::Counts(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        let free = ours.into_iter().map(File::from).collect();
        let lanes = Mutex::new(Lanes { free, is_lost: false });
        Ok(Self { about, control: Mutex::new(Some(control)), lanes, freed: Condvar::new(), child: Mutex::default() })
    }

    /// Properties of the image.
    pub fn about(&self) -> &ImageAbout {
        &self.about
    }

    /// The counters so far.
    ///
    /// # Errors
    /// The process has ended.
    pub fn counts(&self) -> io::Result<ImageCounts> {
        let control = self.control.lock();
        let control = control.as_ref().ok_or_else(ended)?;
        send(control, &Order::Counts).map_err(lost)?;
        match receive(control).map_err(lost)?.ok_or_else(ended)? {
            Report::Counts(counts) => Ok(counts),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Makes the process end. Reads that wait for the server fail, as do all later ones.
    pub fn end(&self) {
        drop(self.control.lock().take());
    }

    /// As [`RemoteProcess::end`], and waits until the process has ended and released the cache on disk, for a limited time.
    pub fn end_and_wait(&self) {
        self.end();
        let until = Instant::now() + END_TIME_MAX;
        let mut child = self.child.lock();
        while let Some(Ok(None)) = child.as_mut().map(Child::try_wait)
            && Instant::now() < until
        {
            thread::sleep(END_INTERVAL);
        }
    }

    /// Takes a lane; waits until one is free.
    fn lane(&self) -> io::Result<Lane<'_>> {
        let mut lanes = self.lanes.lock();
        loop {
            if let Some(file) = lanes.free.pop() {
                return Ok(Lane { process: self, file: Some(file) });
            }
            if lanes.is_lost {
                return Err(ended());
            }
            lanes = self.freed.wait(lanes);
        }
    }

    /// Takes a lane if one is free.
    fn free_lane(&self) -> Option<Lane<'_>> {
        let file = self.lanes.lock().free.pop()?;
        Some(Lane { process: self, file: Some(file) })
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.about.len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn hint(&self, verb: Verb, offset: u64, len: u64) {
        if let Some(mut lane) = self.free_lane() {
            // Hints may be lost.
            let _ = lane.ask(Question { verb, offset, len });
        }
    }
}

impl ImageSource for RemoteProcess {
    fn len(&self) -> u64 {
        self.about.len
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.check(offset, output.len())?;
        let mut lane = self.lane()?;
        let mut place = offset;
        for piece in output.chunks_mut(READ_BYTES_MAX) {
            if !lane.read(Verb::Read, place, piece)? {
                return Err(io::ErrorKind::InvalidData.into());
            }
            place += piece.len() as u64;
        }
        Ok(())
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.check(offset, output.len())?;
        match self.free_lane() {
            Some(mut lane) if output.len() <= READ_BYTES_MAX => lane.read(Verb::TryRead, offset, output),
            _ => Ok(false),
        }
    }

    fn identity(&self) -> Option<SourceIdentity> {
        self.about.identity()
    }

    fn reads_around(&self) -> bool {
        true
    }

    fn will_need(&self, offset: u64, len: u64) {
        self.hint(Verb::WillNeed, offset, len);
    }

    fn dont_need(&self, offset: u64, len: u64) {
        self.hint(Verb::DontNeed, offset, len);
    }
}

impl Lane<'_> {
    /// Reads bytes. Returns whether they arrived; they always do if the read may wait.
    fn read(&mut self, verb: Verb, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.ask(Question { verb, offset, len: output.len() as u64 })?;
        // Until the reply is complete, the lane cannot be used for anything else.
        let file = self.file.take().ok_or_else(ended)?;
        let result = match Reply::receive(&file).map_err(lost)? {
            Reply::Bytes(len) if len == output.len() => (&file).read_exact(output).map(|()| true).map_err(lost),
            Reply::Bytes(_) => return Err(io::ErrorKind::InvalidData.into()),
            Reply::WouldBlock => Ok(false),
            Reply::Failed(len) => {
                let mut text = vec![0; len];
                (&file).read_exact(&mut text).map_err(lost)?;
                Err(serde_json::from_slice::<Failure>(&text).map_or_else(io::Error::from, Failure::into_error))
            }
        };
        self.file = Some(file);
        result
    }

    fn ask(&mut self, question: Question) -> io::Result<()> {
        let file = self.file.take().ok_or_else(ended)?;
        (&file).write_all(&question.to_bytes()).map_err(lost)?;
        self.file = Some(file);
        Ok(())
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut lanes = self.process.lanes.lock();
        match self.file.take() {
            Some(file) => lanes.free.push(file),
            None => lanes.is_lost = true,
        }
        drop(lanes);
        self.process.freed.notify_all();
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn send_lanes(control: &OwnedFd, lanes: &[OwnedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LANE_COUNT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let lanes: Vec<_> = lanes.iter().map(AsFd::as_fd).collect();
    if !ancillary.push(SendAncillaryMessage::ScmRights(&lanes)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(control, &[IoSlice::new(b"L")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the process that fetches the image has ended")
}

fn lost(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ended(),
        _ => error,
    }
}
