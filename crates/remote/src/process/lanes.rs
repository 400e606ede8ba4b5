//! The lanes to a process that fetches an image: each carries one question at a time.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Write},
    time::{Duration, Instant},
};

use floe_sync::{Condvar, Mutex, MutexGuard};

use super::message::{Failure, Question, Reply, Verb};

/// The interval at which another process is asked for while reads wait for it.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// How a process that fetches is replaced when it has ended: reads wait meanwhile.
pub struct Renewal {
    /// Asks for a connection to another one. It is called again and again, by a read that waits.
    pub ask: Box<dyn Fn() + Send + Sync>,
    /// How long a read waits.
    pub patience: Duration,
}

/// The lanes to a process.
pub(super) struct Lanes {
    state: Mutex<State>,
    changed: Condvar,
    renewal: Option<Renewal>,
}

struct State {
    free: Vec<File>,
    /// The number of lanes, and the number that there may be.
    count: usize,
    count_max: usize,
    /// Whether a lane was lost because the other process has ended or violated the protocol.
    is_lost: bool,
    /// Whether this process has closed them.
    is_closed: bool,
    /// The number of the process that they lead to.
    generation: u64,
    /// When another process was asked for.
    asked: Option<Instant>,
    /// Why the last one is of no use.
    refusal: Option<String>,
}

/// A lane in use.
pub(super) struct Lane<'a> {
    lanes: &'a Lanes,
    /// `None` after a violation of the order of questions and replies.
    file: Option<File>,
    generation: u64,
}

impl Lanes {
    /// These lanes. More can be added if `count_max` is higher.
    pub(super) fn new(free: Vec<File>, count_max: usize, renewal: Option<Renewal>) -> Self {
        let state = State {
            count: free.len(),
            free,
            count_max,
            is_lost: false,
            is_closed: false,
            generation: 0,
            asked: None,
            refusal: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), renewal }
    }

    /// Takes a lane; waits until one is free. `add` makes another one.
    ///
    /// # Errors
    /// The other process has ended, and no other takes its place in time.
    pub(super) fn take(&self, add: impl Fn() -> io::Result<File>) -> io::Result<Lane<'_>> {
        let started = Instant::now();
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Err(ended());
            }
            if state.is_lost {
                state = self.wait_for_renewal(state, started)?;
                continue;
            }
            let generation = state.generation;
            if let Some(file) = state.free.pop() {
                return Ok(Lane { lanes: self, file: Some(file), generation });
            }
            if state.count == state.count_max {
                state = self.changed.wait(state);
                continue;
            }
            state.count += 1;
            drop(state);
            match add() {
                Ok(file) => return Ok(Lane { lanes: self, file: Some(file), generation }),
                Err(_) => {
                    drop(Lane { lanes: self, file: None, generation });
                    state = self.state.lock();
                }
            }
        }
    }

    /// Takes a lane if one is free.
    pub(super) fn take_free(&self) -> Option<Lane<'_>> {
        let mut state = self.state.lock();
        let file = state.free.pop()?;
        Some(Lane { lanes: self, file: Some(file), generation: state.generation })
    }

    /// Whether a read that has lost its lane is to be repeated.
    pub(super) fn is_renewable(&self) -> bool {
        self.renewal.is_some() && !self.state.lock().is_closed
    }

    /// Uses the lanes of another process from now on.
    pub(super) fn renew(&self, free: Vec<File>) {
        let mut state = self.state.lock();
        state.generation += 1;
        (state.count, state.free) = (free.len(), free);
        (state.is_lost, state.asked, state.refusal) = (false, None, None);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes why another process cannot be used.
    pub(super) fn note_refusal(&self, refusal: String) {
        self.state.lock().refusal = Some(refusal);
    }

    /// Fails all reads that wait, and all later ones.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn wait_for_renewal<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        started: Instant,
    ) -> io::Result<MutexGuard<'a, State>> {
        let Some(renewal) = &self.renewal else { return Err(ended()) };
        if started.elapsed() >= renewal.patience {
            return Err(match &state.refusal {
                Some(refusal) => io::Error::other(refusal.clone()),
                None => ended(),
            });
        }
        if state.asked.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL) {
            state.asked = Some(Instant::now());
            drop(state);
            (renewal.ask)();
            state = self.state.lock();
        }
        let is_lost = |state: &mut State| state.is_lost && !state.is_closed;
        Ok(self.changed.wait_timeout_while(state, ASK_INTERVAL, is_lost).0)
    }
}

impl Lane<'_> {
    /// Reads bytes. Returns whether they arrived; they always do if the read may wait.
    ///
    /// # Errors
    /// The other process has ended, or cannot read them.
    pub(super) fn read(&mut self, verb: Verb, offset: u64, output: &mut [u8]) -> io::Result<bool> {
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
        // After a part of the bytes, the lane is of no more use.
        if !result.as_ref().is_err_and(is_ended) {
            self.file = Some(file);
        }
        result
    }

    /// Sends a question.
    ///
    /// # Errors
    /// The other process has ended.
    pub(super) fn ask(&mut self, question: Question) -> io::Result<()> {
        let file = self.file.take().ok_or_else(ended)?;
        (&file).write_all(&question.to_bytes()).map_err(lost)?;
        self.file = Some(file);
        Ok(())
    }

    /// Whether it was lost.
    pub(super) fn is_lost(&self) -> bool {
        self.file.is_none()
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut state = self.lanes.state.lock();
        if state.generation == self.generation {
            match self.file.take() {
                Some(file) => state.free.push(file),
                None => {
                    state.is_lost = true;
                    // They lead nowhere any more.
                    state.free.clear();
                }
            }
        }
        drop(state);
        self.lanes.changed.notify_all();
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Renewal").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// The error of a process that has ended.
pub(super) fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the process that fetches the image has ended")
}

/// The error of an operation on a socket, which says more if the other process has ended.
pub(super) fn lost(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ended(),
        _ => error,
    }
}

fn is_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
