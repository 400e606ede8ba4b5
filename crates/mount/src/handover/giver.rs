//! The process that hands its mount over.

use std::{fs::File, io, net::Shutdown, os::fd::BorrowedFd, os::unix::net::UnixStream, path::Path, time::Duration};

use floe::Image;
use floe_fuse::{Handover, Mount};

use super::{
    ServiceManager, State, StateFile,
    service_manager::{AUTO_UNMOUNT, DEVICE, STATE},
    state::identity,
};
use crate::{
    control::{Answer, DESCRIPTORS_MAX, Question, read_question, write_line, write_line_with},
    front::FrontReport,
};

/// How long the other process may take to open the image, which may be remote.
const OPENING_PATIENCE: Duration = Duration::from_secs(600);

/// How long the other process may take to start once this one has stopped.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// How long requests in progress may take if the kernel can resend them, and if it cannot.
const DRAIN_PATIENCE: Duration = Duration::from_secs(1);
const FULL_DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// A mount that can be handed over.
#[derive(Debug)]
pub(crate) struct Giver {
    handover: Handover,
    state: StateFile,
}

impl Giver {
    /// Hands `mount` over, with the state that the next process needs: it is also in `file`, if there is one. `None` for a
    /// mount that cannot be handed over.
    pub(crate) fn of(
        mount: &Mount,
        image: &Image,
        device: (u32, u32),
        front: FrontReport,
        directory: &Path,
        tuned: Vec<String>,
        file: Option<File>,
    ) -> Option<Self> {
        let handover = mount.handover()?;
        let mut state = State::new(identity(image).ok()?, directory, device, handover.terms(), front);
        state.tuned = tuned;
        let state = StateFile::new(state, file).ok()?;
        Some(Self { handover, state })
    }

    /// Notes changes of options by `floe tune`.
    pub(crate) fn note_tuned(&self, changes: &[String]) {
        self.state.note_tuned(changes);
    }

    /// Hands the mount over to the process at the other end of a connection, which has asked for it. If that process fails,
    /// this one continues to serve.
    ///
    /// # Errors
    /// The other process closed the connection, or broke the protocol.
    pub(crate) fn give(&self, connection: &UnixStream) -> io::Result<()> {
        connection.set_write_timeout(Some(START_PATIENCE))?;
        self.send_state(connection)?;
        connection.set_read_timeout(Some(OPENING_PATIENCE))?;
        self.give_prepared(connection).map(drop)
    }

    /// As [`Giver::give`], without the state: the other process has it, and has opened the image, or will before the connection
    /// times out. Returns whether that process serves the mount.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn give_prepared(&self, connection: &UnixStream) -> io::Result<bool> {
        let Question::Stop = read_question(connection)? else { return Err(io::ErrorKind::InvalidData.into()) };
        let can_resend = self.handover.terms().can_resend();
        let paused = match self.handover.pause(if can_resend { DRAIN_PATIENCE } else { FULL_DRAIN_PATIENCE }) {
            Ok(paused) => paused,
            Err(reason) => {
                write_line(connection, &Answer::Refused(reason.to_string()))?;
                return Ok(false);
            }
        };
        write_line(connection, &Answer::Stopped)?;
        connection.set_read_timeout(Some(START_PATIENCE))?;
        let first = read_question(connection);
        // From here on, the other process cannot say that it serves, so exactly one of the two serves.
        let _ = connection.shutdown(Shutdown::Read);
        match first.or_else(|_| read_question(connection))? {
            Question::Serves => paused.finish(),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(true)
    }

    /// Stores the descriptors and the state for a restart after a crash. Without the kernel's ability to resend requests, a
    /// crash loses those in progress, so nothing is stored.
    pub(crate) fn store(&self, manager: &ServiceManager) {
        if let Some(state) = self.state.descriptor().filter(|_| self.handover.terms().can_resend()) {
            manager.store(STATE, &[state]);
            manager.store(DEVICE, &self.handover.devices());
            manager.store(AUTO_UNMOUNT, self.handover.auto_unmount().as_slice());
        }
    }

    /// Sends the state, and with it the descriptors: those of the device, and the others that the answer mentions.
    fn send_state(&self, connection: &UnixStream) -> io::Result<()> {
        let mut descriptors: Vec<BorrowedFd<'_>> = self.handover.devices();
        let (auto_unmount, state_file) = (self.handover.auto_unmount(), self.state.descriptor());
        descriptors.extend(auto_unmount.into_iter().chain(state_file));
        let answer = Answer::State {
            state: Box::new(self.state.state()),
            has_auto_unmount: auto_unmount.is_some(),
            has_state_file: state_file.is_some(),
        };
        if descriptors.len() > DESCRIPTORS_MAX {
            let answer =
                Answer::Refused("the mount has more descriptors than one message can pass (clone-fd)".to_owned());
            return write_line(connection, &answer);
        }
        write_line_with(connection, &answer, &descriptors)
    }
}
