//! The client side, in the process that reads the image.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_image::{ImageSource, SourceIdentity, start_error};
use floe_sync::Mutex;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::{
    lanes::{Lane, Lanes, Renewal, ended, lost},
    message::{LANE_COUNT, Order, Question, READ_BYTES_MAX, Report, Verb, receive, receive_with, send, send_with},
};
use crate::{ImageAbout, ImageCounts, ImageOptions};

/// How long the process may take to end: it cancels requests in progress, and leaves the cache on disk consistent.
const END_TIME_MAX: Duration = Duration::from_secs(2);

/// The interval at which the end of the process is polled.
const END_INTERVAL: Duration = Duration::from_millis(1);

/// The number of lanes at first to a process that makes them. Reads that wait make more.
const LANE_COUNT_AT_FIRST: usize = 2;

/// A remote image that another process fetches. This process needs only its open sockets.
pub struct RemoteProcess {
    about: ImageAbout,
    /// `None` once [`RemoteProcess::end`] was called.
    control: Mutex<Option<File>>,
    lanes: Lanes,
    /// `None` if this process has not started the other one.
    child: Mutex<Option<Child>>,
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
        send_with(&control, b"L", &theirs.iter().map(AsFd::as_fd).collect::<Vec<_>>(), SendFlags::empty())?;
        drop(theirs);
        let control = File::from(control);
        send(&control, &Order::Open { location: location.to_owned(), options: options.clone() })?;
        let about = opened(&control)?;
        let lanes = Lanes::new(ours.into_iter().map(File::from).collect(), LANE_COUNT, None);
        Ok(Self { about, control: Mutex::new(Some(control)), lanes, child: Mutex::default() })
    }

    /// The image at the other end of a connection to a [`FetchingProcess`](super::FetchingProcess).
    ///
    /// # Errors
    /// The image cannot be opened, or the process has ended.
    pub fn connected(connection: OwnedFd, renewal: Renewal) -> io::Result<Self> {
        let control = File::from(connection);
        let about = opened(&control)?;
        let lanes = Lanes::new(lanes_at_first(&control)?, LANE_COUNT, Some(renewal));
        Ok(Self { about, control: Mutex::new(Some(control)), lanes, child: Mutex::default() })
    }

    /// Goes on with a connection to another process, if this one is lost. If the image cannot be opened there, reads wait for the next
    /// one.
    pub fn renew(&self, connection: OwnedFd) {
        let next = File::from(connection);
        let renewed = opened(&next).and_then(|about| match about.is_same_as(&self.about) {
            true => lanes_at_first(&next),
            false => Err(io::Error::other("the image on the server has changed since it was mounted")),
        });
        let mut control = self.control.lock();
        match renewed {
            // It was closed meanwhile.
            _ if control.is_none() => {}
            Ok(lanes) => {
                *control = Some(next);
                self.lanes.renew(lanes);
            }
            Err(error) => self.lanes.note_refusal(error.to_string()),
        }
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
        if let Some(control) = self.control.lock().take()
            && self.lanes.is_renewable()
        {
            // The service has descriptors of the socket, too.
            let _ = shutdown(&control, Shutdown::Both);
        }
        self.lanes.close();
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
        self.lanes.take(|| match &*self.control.lock() {
            Some(control) => another_lane(control),
            None => Err(ended()),
        })
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.about.len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn hint(&self, verb: Verb, offset: u64, len: u64) {
        if let Some(mut lane) = self.lanes.take_free() {
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
            loop {
                match lane.read(Verb::Read, place, piece) {
                    Ok(true) => break,
                    Ok(false) => return Err(io::ErrorKind::InvalidData.into()),
                    Err(_) if lane.is_lost() && self.lanes.is_renewable() => {
                        drop(lane);
                        lane = self.lane()?;
                    }
                    Err(error) => return Err(error),
                }
            }
            place += piece.len() as u64;
        }
        Ok(())
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        self.check(offset, output.len())?;
        match self.lanes.take_free() {
            Some(mut lane) if output.len() <= READ_BYTES_MAX => match lane.read(Verb::TryRead, offset, output) {
                // A read that may wait does so.
                Err(_) if lane.is_lost() && self.lanes.is_renewable() => Ok(false),
                result => result,
            },
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

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Waits until the other process has opened the image.
fn opened(control: &File) -> io::Result<ImageAbout> {
    match receive(control).map_err(lost)?.ok_or_else(ended)? {
        Report::Opened(about) => Ok(about),
        Report::Failed(failure) => Err(failure.into_error()),
        Report::Counts(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn lanes_at_first(control: &File) -> io::Result<Vec<File>> {
    (0..LANE_COUNT_AT_FIRST).map(|_| another_lane(control)).collect()
}

/// Asks the other process for a lane.
fn another_lane(control: &File) -> io::Result<File> {
    send(control, &Order::Lane).map_err(lost)?;
    let (_, lanes) = receive_with(control, 1).map_err(lost)?;
    lanes.into_iter().next().map(File::from).ok_or_else(ended)
}
