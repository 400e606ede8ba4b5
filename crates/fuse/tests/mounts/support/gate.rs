//! A source that can be blocked or made to fail.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use floe_image::ImageSource;

/// Lets reads pass, blocks them, or fails them.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a source behind the closed gate reports that its bytes are not in memory, as a good source does.
    pub(crate) tells: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Open,
    Closed,
    Broken,
}

impl Gate {
    pub(crate) fn open(&self) {
        self.set(State::Open);
    }

    pub(crate) fn close(&self) {
        self.set(State::Closed);
    }

    pub(crate) fn fail(&self) {
        self.set(State::Broken);
    }

    fn is_known_to_be_closed(&self) -> bool {
        self.tells.load(Relaxed) && *self.state.lock().expect("no panic holds it") == State::Closed
    }

    /// Waits while the gate is closed.
    pub(crate) fn pass(&self) -> io::Result<()> {
        let state = self.state.lock().expect("no panic holds it");
        let state = self.changed.wait_while(state, |state| *state == State::Closed).expect("no panic holds it");
        if *state == State::Broken { Err(io::Error::other("the source is broken")) } else { Ok(()) }
    }

    fn set(&self, state: State) {
        *self.state.lock().expect("no panic holds it") = state;
        self.changed.notify_all();
    }
}

/// An image in memory behind a gate.
pub(crate) struct GatedSource {
    bytes: Arc<[u8]>,
    gate: Arc<Gate>,
}

impl GatedSource {
    pub(crate) fn new(bytes: Arc<[u8]>, gate: Arc<Gate>) -> Self {
        Self { bytes, gate }
    }
}

impl ImageSource for GatedSource {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<()> {
        self.gate.pass()?;
        let bytes = self.bytes.get(offset as usize..).and_then(|bytes| bytes.get(..output.len()));
        output.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn try_read_at(&self, offset: u64, output: &mut [u8]) -> io::Result<bool> {
        if self.gate.is_known_to_be_closed() {
            return Ok(false);
        }
        self.read_at(offset, output).map(|()| true)
    }
}
