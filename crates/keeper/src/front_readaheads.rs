//! One thread that reads ahead in all fronts of a service.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
    thread,
};

use floe_sync::{Mutex, MutexGuard};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::retry_on_intr,
};

use crate::{
    front_transfer::{FrontReadahead, FrontTransfer, Progress, QUIET},
    place::Place,
    schedule::{KeeperThread, Schedule, start_thread},
};

/// The maximum number of messages that are taken at once, each from another front.
const EVENTS_MAX: usize = 16;

/// Reads ahead in any number of fronts, with one thread, which sleeps while no front has messages. A front whose source hangs delays
/// the readahead of the others, but none of their reads.
pub struct FrontReadaheads {
    fronts: Mutex<BTreeMap<u64, Arc<Front>>>,
    epoll: OwnedFd,
    thread: u32,
    /// Locked by the thread while it reads.
    reading: Mutex<()>,
}

/// The readahead while its thread waits. It goes on when this is dropped.
#[derive(Debug)]
pub struct PausedReadaheads<'readaheads> {
    _only: MutexGuard<'readaheads, ()>,
}

/// The numbers of a front's descriptors, for the next program of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontDescriptors<Descriptor> {
    /// The receiving end of the transfer.
    pub socket: Descriptor,
    /// The hidden file.
    pub image: Descriptor,
    /// The root of the private clone, if there is one.
    pub root: Option<Descriptor>,
}

/// A front with its private clone. Dropping it lets the front end.
struct Front {
    readahead: FrontReadahead,
    /// Locked by the thread alone.
    progress: Mutex<Progress>,
    place: Place,
}

impl FrontReadaheads {
    /// Starts the thread.
    ///
    /// # Errors
    /// There are no descriptors left, or no thread can be started.
    pub fn start(schedule: &Schedule) -> io::Result<Arc<Self>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (sender, receiver) = std::sync::mpsc::channel::<Weak<Self>>();
        let (own, waiting) = (Arc::clone(schedule), epoll.try_clone()?);
        let kind = KeeperThread::Readahead { is_urgent: false };
        let thread = start_thread(FrontReadahead::THREAD, kind, schedule, move || {
            if let Ok(readaheads) = receiver.recv() {
                run(&readaheads, &waiting, &own);
            }
        })?;
        let readaheads = Arc::new(Self { fronts: Mutex::default(), epoll, thread, reading: Mutex::default() });
        // The thread has started.
        let _ = sender.send(Arc::downgrade(&readaheads));
        Ok(readaheads)
    }

    /// The id of the thread.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Reads ahead in the front with this number, until it is [unmounted](Self::drop_unmounted).
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn add(&self, number: u64, place: Place, readahead: FrontReadahead) -> io::Result<()> {
        epoll::add(&self.epoll, readahead.socket(), EventData::new_u64(number), EventFlags::IN)?;
        let front = Arc::new(Front { readahead, progress: Mutex::default(), place });
        let replaced = self.fronts.lock().insert(number, front);
        drop(replaced);
        Ok(())
    }

    /// The sending end of the transfer into a front, for the process that takes the place of the one that had it. `None` if nothing
    /// is read ahead there.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn renew(&self, number: u64) -> io::Result<Option<FrontTransfer>> {
        let (transfer, readahead, place) = {
            let fronts = self.fronts.lock();
            let Some(front) = fronts.get(&number) else { return Ok(None) };
            let (transfer, readahead) = front.readahead.renewed()?;
            (transfer, readahead, front.place.clone())
        };
        self.add(number, place, readahead)?;
        Ok(Some(transfer))
    }

    /// Makes the thread wait before its next read. Returns `None` if it is reading: it may wait for a source.
    pub fn try_pause(&self) -> Option<PausedReadaheads<'_>> {
        self.reading.try_lock().map(|only| PausedReadaheads { _only: only })
    }

    /// Passes the descriptors of all fronts to `pass`. Returns the results, by the numbers of the fronts.
    ///
    /// # Errors
    /// Those of `pass`.
    pub fn pass<Passed>(
        &self,
        mut pass: impl FnMut(BorrowedFd<'_>) -> io::Result<Passed>,
    ) -> io::Result<Vec<(u64, FrontDescriptors<Passed>)>> {
        let all = self.all().into_iter().map(|(number, front)| {
            let (socket, image, root) = front.readahead.descriptors();
            Ok((
                number,
                FrontDescriptors { socket: pass(socket)?, image: pass(image)?, root: root.map(&mut pass).transpose()? },
            ))
        });
        all.collect()
    }

    /// Reads ahead in a front whose descriptors an earlier program of this process has [passed](FrontReadaheads::pass).
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn add_passed(&self, number: u64, place: Place, front: FrontDescriptors<OwnedFd>) -> io::Result<()> {
        let FrontDescriptors { socket, image, root } = front;
        self.add(number, place, FrontReadahead::of_descriptors(socket, image, root))
    }

    /// Drops the clones of all fronts that were unmounted: while a clone exists, the front does not end. To be called when the mount
    /// table has changed.
    pub fn drop_unmounted(&self) {
        let unmounted = self.all().into_iter().filter(|(_, front)| !front.place.is_mounted());
        let dropped: Vec<_> = unmounted.filter_map(|(number, _)| self.fronts.lock().remove(&number)).collect();
        if !dropped.is_empty() {
            // The kernel waits for reads in progress, which another process answers.
            let _ = thread::Builder::new().name("floe-unmount".to_owned()).spawn(move || drop(dropped));
        }
    }

    fn front(&self, number: u64) -> Option<Arc<Front>> {
        self.fronts.lock().get(&number).cloned()
    }

    fn all(&self) -> Vec<(u64, Arc<Front>)> {
        self.fronts.lock().iter().map(|(number, front)| (*number, Arc::clone(front))).collect()
    }
}

impl fmt::Debug for FrontReadaheads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FrontReadaheads").field("thread", &self.thread).finish_non_exhaustive()
    }
}

/// Executes messages as long as the readaheads exist.
fn run(readaheads: &Weak<FrontReadaheads>, epoll: &OwnedFd, schedule: &Schedule) {
    let (mut is_urgent, mut has_copies) = (false, false);
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        let found = retry_on_intr(|| epoll::wait(epoll, spare_capacity(&mut events), has_copies.then_some(&QUIET)));
        let Some(readaheads) = readaheads.upgrade() else { return };
        if found.is_err() {
            return;
        }
        let _reading = readaheads.reading.lock();
        if events.is_empty() {
            for (_, front) in readaheads.all() {
                front.readahead.drop_all_copies(&mut front.progress.lock());
            }
            has_copies = false;
        }
        // Each front has its turn, so that one with many messages does not keep the others waiting.
        for number in events.drain(..).map(|event| event.data.u64()) {
            let Some(front) = readaheads.front(number) else { continue };
            let set_urgency = |urgency: bool| {
                if std::mem::replace(&mut is_urgent, urgency) != urgency {
                    schedule(KeeperThread::Readahead { is_urgent: urgency }, None);
                }
            };
            let mut progress = front.progress.lock();
            if front.readahead.take_message(&mut progress, set_urgency).is_err() {
                // It is closed; the process at the other end has died.
                let _ = epoll::delete(epoll, front.readahead.socket());
            }
            has_copies |= progress.has_copies();
        }
    }
}
