//! What the fronts of a service share: the readahead in them, and the renderings of metadata in progress.

use std::{
    collections::HashMap,
    fs::File,
    io,
    sync::{Arc, mpsc::Sender},
    thread,
};

use floe_keeper::{FrontReadaheads, FrontTransfer, Schedule};
use floe_sync::Mutex;

use crate::kept_front::KeptFront;

/// The maximum number of renderings for later mounts that are in progress.
const LATER_MAX: usize = 64;

/// The mount table, whose changes poll(2) reports.
const TABLE_PATH: &str = "/proc/self/mountinfo";

/// What the fronts of a service share.
#[derive(Default)]
pub(super) struct Fronts {
    shared: Mutex<Option<Shared>>,
    renderings: Mutex<HashMap<u64, Rendering>>,
}

/// What exists from the first front on.
struct Shared {
    readaheads: Arc<FrontReadaheads>,
    /// The mount table, which is watched: an unmounted front ends once its clone is dropped.
    _table: File,
}

/// A rendering in progress.
struct Rendering {
    domain: u64,
    purpose: Purpose,
}

/// Who needs what is rendered.
pub(super) enum Purpose {
    /// A mount that waits for it.
    Mount(Sender<bool>),
    /// Later mounts, and where it is to be kept.
    Later(Box<KeptFront>, File),
}

impl Fronts {
    /// The readahead in all fronts, which begins with the first one. `watch` is to report changes of the mount table, an open file.
    ///
    /// # Errors
    /// There are no descriptors left, or no thread can be started.
    pub(super) fn readaheads(
        &self,
        schedule: &Schedule,
        watch: impl FnOnce(&File) -> rustix::io::Result<()>,
    ) -> io::Result<Arc<FrontReadaheads>> {
        let mut shared = self.shared.lock();
        if let Some(shared) = &*shared {
            return Ok(Arc::clone(&shared.readaheads));
        }
        let table = File::open(TABLE_PATH)?;
        let readaheads = FrontReadaheads::start(schedule)?;
        watch(&table)?;
        *shared = Some(Shared { readaheads: Arc::clone(&readaheads), _table: table });
        Ok(readaheads)
    }

    /// Notes that the mount table has changed.
    pub(super) fn note_changes(&self) {
        let readaheads = self.shared.lock().as_ref().map(|shared| Arc::clone(&shared.readaheads));
        readaheads.iter().for_each(|readaheads| readaheads.drop_unmounted());
    }

    /// The transfer into a front for the next process behind it, and the thread at its other end; `None` if nothing is read ahead
    /// there.
    pub(super) fn renew(&self, number: u64) -> Option<(FrontTransfer, u32)> {
        let shared = self.shared.lock();
        let readaheads = &shared.as_ref()?.readaheads;
        // The front works without readahead.
        Some((readaheads.renew(number).ok()??, readaheads.thread()))
    }

    /// Notes a rendering in a domain. Returns `false` if it is one for later mounts that others make unnecessary, or if there are too
    /// many of those.
    pub(super) fn begin(&self, number: u64, domain: u64, purpose: Purpose) -> bool {
        let mut renderings = self.renderings.lock();
        if let Purpose::Later(front, _) = &purpose {
            let later: Vec<_> = renderings.values().filter_map(Rendering::later).collect();
            if later.len() >= LATER_MAX || later.iter().any(|other| other.identity() == front.identity()) {
                return false;
            }
        }
        renderings.insert(number, Rendering { domain, purpose });
        true
    }

    /// Forgets a rendering.
    pub(super) fn forget(&self, number: u64) {
        self.renderings.lock().remove(&number);
    }

    /// Notes the end of a rendering, as a domain tells it, which an attacker may control.
    pub(super) fn note_rendered(&self, domain: u64, number: u64, is_done: bool) {
        let purpose = {
            let mut renderings = self.renderings.lock();
            let is_its = renderings.get(&number).is_some_and(|rendering| rendering.domain == domain);
            if is_its { renderings.remove(&number).map(|rendering| rendering.purpose) } else { None }
        };
        match purpose {
            None => {}
            Some(Purpose::Mount(waiter)) => {
                // It may have given up.
                let _ = waiter.send(is_done);
            }
            Some(Purpose::Later(mut front, rendered)) if is_done => {
                // The copy takes time. If it fails, the next mount tries again.
                let work = move || drop(front.keep_copy(&rendered));
                let _ = thread::Builder::new().name("floe-keep".to_owned()).spawn(work);
            }
            Some(Purpose::Later(..)) => {}
        }
    }

    /// Notes the end of a domain: its renderings are lost.
    pub(super) fn note_end(&self, domain: u64) {
        self.renderings.lock().retain(|_, rendering| rendering.domain != domain);
    }
}

impl Rendering {
    fn later(&self) -> Option<&KeptFront> {
        match &self.purpose {
            Purpose::Mount(_) => None,
            Purpose::Later(front, _) => Some(front),
        }
    }
}
