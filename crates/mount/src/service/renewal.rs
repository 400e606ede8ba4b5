//! Domains of an earlier program: new ones take their mounts over, one after the other.
//!
//! The new domain opens the image first, while the old one serves. Then the old one stops taking requests, completes those in progress,
//! and hands the mount over; it goes on if that fails. A domain whose messages have another version is killed instead, once the new one
//! has opened all images: the kernel sends its requests again.

use std::{
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use floe_image::ShownName;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
};

use super::{
    domain_process::DomainProcess,
    kept_image::{Heir, KeptImage, Outcome, Stage},
    ledger::{Ledger, Watched},
    messages::Order,
    users::Owner,
};
use crate::control::{Answer, Question, read_question, write_line};

/// How long mounts that are being made for the old domain are waited for, and how long the new one may take to open images.
const OPEN_TIME_MAX: Duration = Duration::from_secs(20);

/// How long a move may take once the image is open. Requests in progress are part of it.
const MOVE_TIME_MAX: Duration = Duration::from_secs(10);

/// The interval at which mounts that are being made are looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// The maximum number of mounts that a new domain opens at a time.
const MOVES_MAX: usize = 32;

/// A mount on its way to another domain.
struct Move {
    number: u64,
    /// At its other end, the next process asks the one before to stop.
    connection: UnixStream,
    outcomes: Receiver<Outcome>,
}

/// Where a mount is after a move.
enum Moved {
    /// The new domain serves it, or it has ended.
    Done,
    /// The old domain still serves it, for this reason.
    Stays(String),
    /// No domain serves it.
    Orphaned,
}

impl Ledger {
    /// Replaces all domains. Returns a line for each mount, and for each domain, that stays as it was.
    pub(super) fn renew_domains(self: &Arc<Self>) -> Vec<String> {
        let numbers: Vec<u64> = {
            let mut state = self.state.lock();
            state.domains.values_mut().for_each(|domain| domain.is_retiring = !domain.has_rings);
            let mut numbers: Vec<_> =
                state.domains.iter().map(|(number, domain)| (domain.owner != Owner::Service, *number)).collect();
            // Those of other users come last: they may take as long as these users like.
            numbers.sort_unstable();
            numbers.into_iter().map(|(_, number)| number).collect()
        };
        numbers.into_iter().flat_map(|number| self.renew_domain(number)).collect()
    }

    /// Replaces a domain, unless its mount is over io_uring. Returns a line for each mount that stays there.
    pub(super) fn renew_domain(self: &Arc<Self>, old: u64) -> Vec<String> {
        self.wait_for_expected(old);
        let (process, owner, mounts, has_rings) = {
            let mut state = self.state.lock();
            let Some(domain) = state.domains.get_mut(&old) else { return Vec::new() };
            domain.is_retiring = !domain.has_rings;
            let (process, owner, has_rings) = (Arc::clone(&domain.process), domain.owner, domain.has_rings);
            let mounts = state.mounts.iter().filter(|(_, kept)| kept.domain == old).map(|(number, _)| *number);
            (process, owner, mounts.collect::<Vec<_>>(), has_rings)
        };
        if mounts.is_empty() {
            self.end_if_unused(old);
            return Vec::new();
        }
        if has_rings {
            let stays = |number| self.stay(number, old, "a mount over io_uring cannot be handed over");
            return mounts.into_iter().filter_map(stays).collect();
        }
        let new = match self.start_to_continue(owner) {
            Ok(new) => new,
            Err(failure) => {
                if let Some(domain) = self.state.lock().domains.get_mut(&old) {
                    domain.is_retiring = false;
                }
                return vec![format!("process {} goes on with the earlier program: {failure}", process.id)];
            }
        };
        let mut stay = Vec::new();
        let at_once = if process.is_of_this_version() { MOVES_MAX } else { mounts.len() };
        for numbers in mounts.chunks(at_once) {
            let moves: Vec<Move> = numbers.iter().filter_map(|number| self.begin_move(*number, old, new)).collect();
            let moved = match process.is_of_this_version() {
                true => self.complete(moves, &process),
                false => self.complete_by_death(moves, &process),
            };
            let mut orphans = Vec::new();
            for (number, moved) in moved {
                match moved {
                    Moved::Done => {}
                    Moved::Stays(reason) if self.has_domain(old) => stay.extend(self.stay(number, old, &reason)),
                    Moved::Stays(_) | Moved::Orphaned => orphans.push(number),
                }
            }
            if !orphans.is_empty() {
                process.wait_for_end();
                // The new one may be what failed.
                self.continue_in(self.start_to_continue(owner), &orphans, 0);
            }
        }
        self.release(new);
        // If it has no mounts any more.
        self.end_if_unused(old);
        stay
    }

    /// Waits for the mounts that are being made for a domain. It gets no others.
    fn wait_for_expected(&self, domain: u64) {
        let started = Instant::now();
        let is_expected = || self.state.lock().domains.get(&domain).is_some_and(|domain| domain.expected > 0);
        while is_expected() && started.elapsed() < OPEN_TIME_MAX {
            thread::sleep(GLANCE);
        }
    }

    /// Asks the new domain to open the image of a mount. Returns `None` if the mount has ended, or is not served; another one that
    /// continues it is new anyway.
    fn begin_move(self: &Arc<Self>, number: u64, old: u64, new: u64) -> Option<Move> {
        let (sender, outcomes) = mpsc::channel();
        let pair = UnixStream::pair();
        let begun = pair.and_then(|(ours, theirs)| {
            let socket = {
                let mut state = self.state.lock();
                let served = |kept: &&mut KeptImage| kept.domain == old && matches!(kept.stage, Stage::Served);
                let Some(kept) = state.mounts.get_mut(&number).filter(served) else { return Ok(None) };
                if let Some(source) = self.source_of(kept)? {
                    // The old domain keeps its own connection to the remote image.
                    kept.files.image = source;
                }
                self.unwatch(kept.keeper.socket());
                let socket = kept.keeper.renew()?;
                self.watch(kept.keeper.socket(), Watched::Mount(number))?;
                kept.heir = Some(Heir { domain: new, outcomes: sender.clone() });
                socket
            };
            self.attach_in(number, Some((new, theirs.as_fd())), &socket)?;
            Ok(Some(ours))
        });
        match begun {
            Ok(Some(connection)) => Some(Move { number, connection, outcomes }),
            Ok(None) => None,
            Err(error) => {
                // It is handed over to nobody, so it stays.
                let _ = sender.send(Outcome::Failed(error.to_string()));
                let connection = UnixStream::pair().ok()?.0;
                Some(Move { number, connection, outcomes })
            }
        }
    }

    /// Has the old domain hand mounts over, as soon as the new one has opened their images.
    fn complete(&self, moves: Vec<Move>, old: &DomainProcess) -> Vec<(u64, Moved)> {
        let until = Instant::now() + OPEN_TIME_MAX;
        let moved = moves.into_iter().map(|Move { number, connection, outcomes }| {
            if !is_readable_until(&connection, until) {
                return (number, Moved::Stays("it takes too long to open the image".to_owned()));
            }
            // If it has ended, that is an outcome of its own.
            let told = old.tell(&Order::HandOver { number }, &[connection.as_fd()]);
            drop(connection);
            (number, outcome_of(&outcomes, old, told.is_ok()))
        });
        moved.collect()
    }

    /// Kills the old domain once the new one has opened all images, and lets that one begin.
    fn complete_by_death(&self, moves: Vec<Move>, old: &DomainProcess) -> Vec<(u64, Moved)> {
        let until = Instant::now() + OPEN_TIME_MAX;
        let moves: Vec<_> = moves
            .into_iter()
            .map(|moving| {
                let asks = is_readable_until(&moving.connection, until)
                    && matches!(read_question(&moving.connection), Ok(Question::Stop));
                (moving, asks)
            })
            .collect();
        old.kill();
        old.wait_for_end();
        // All begin before the first one is waited for.
        let moves: Vec<_> = moves
            .into_iter()
            .map(|(Move { number, connection, outcomes }, asks)| {
                let told = asks && write_line(&connection, &Answer::Stopped).is_ok();
                // Without an answer, the new domain fails.
                (number, told.then_some(connection), outcomes)
            })
            .collect();
        let moved = moves.into_iter().map(|(number, connection, outcomes)| {
            let moved = match outcome_of(&outcomes, old, true) {
                Moved::Stays(_) => Moved::Orphaned,
                moved => moved,
            };
            drop(connection);
            (number, moved)
        });
        moved.collect()
    }

    fn has_domain(&self, number: u64) -> bool {
        self.state.lock().domains.contains_key(&number)
    }

    /// Notes that a mount stays in its old domain. Returns a line about it; `None` if it has ended.
    fn stay(&self, number: u64, old: u64, reason: &str) -> Option<String> {
        let (process, socket, line) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let kept = state.mounts.get_mut(&number)?;
            kept.heir = None;
            let process = Arc::clone(&state.domains.get(&old)?.process);
            self.unwatch(kept.keeper.socket());
            let socket = kept.keeper.renew().ok()?;
            // Without its keeper, the mount works.
            let _ = self.watch(kept.keeper.socket(), Watched::Mount(number));
            let directory = kept.place().directory().shown().to_string();
            let line = format!("{directory}: process {} of the earlier program goes on with it: {reason}", process.id);
            (process, socket, line)
        };
        let _ = process.tell(&Order::Keeper { number }, &[socket.as_fd()]);
        Some(line)
    }
}

/// Waits for what comes of a move. If both domains say nothing, the old one is killed. `is_told`: whether that one was told to hand the
/// mount over.
fn outcome_of(outcomes: &Receiver<Outcome>, old: &DomainProcess, is_told: bool) -> Moved {
    let (mut failed, mut is_given, mut was_killed) = (None, (!is_told).then_some(false), false);
    let mut until = Instant::now() + MOVE_TIME_MAX;
    loop {
        match outcomes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Outcome::Taken) | Err(RecvTimeoutError::Disconnected) => return Moved::Done,
            Ok(Outcome::Failed(reason)) => failed = Some(reason),
            Ok(Outcome::HandedOver { is_given: given }) => is_given = Some(given),
            Ok(Outcome::Died) => is_given = Some(true),
            Err(RecvTimeoutError::Timeout) if was_killed => return Moved::Orphaned,
            Err(RecvTimeoutError::Timeout) => {
                was_killed = true;
                old.kill();
                until = Instant::now() + MOVE_TIME_MAX;
            }
        }
        match (&failed, is_given) {
            (Some(reason), Some(false)) => return Moved::Stays(reason.clone()),
            (Some(_), Some(true)) => return Moved::Orphaned,
            _ => {}
        }
    }
}

/// Waits until there is something to be read from a connection, or it is closed.
fn is_readable_until(connection: &UnixStream, until: Instant) -> bool {
    let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
    let mut waiting = [PollFd::new(connection, PollFlags::IN)];
    retry_on_intr(|| poll(&mut waiting, Some(&left))).unwrap_or(0) > 0
}
