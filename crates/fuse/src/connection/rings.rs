//! The rings of a mount that is served over io_uring.

use std::{fmt, fs, io, os::fd::OwnedFd, sync::Arc};

use floe_fuse_wire::Ring;
use floe_keeper::RingPermission;
use floe_sync::{Mutex, MutexGuard};
use rustix::thread::sched_getaffinity;

/// The CPUs for which the kernel has queues.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// Rings for the next mount with these options. A process that confines itself creates them before, because it cannot create
/// any later.
#[derive(Clone)]
pub struct Rings {
    state: Arc<Mutex<State>>,
}

struct State {
    /// Each with the CPU of its thread.
    rings: Vec<(Ring, usize)>,
    /// The permission that root has given to all mounts, if so.
    general: Option<RingPermission>,
    /// The permission that the keeper holds for the next mount alone, until this is closed.
    kept: Option<OwnedFd>,
    /// Whether the kernel permits the next mount to use them.
    is_permitted: bool,
}

impl Rings {
    /// Creates a ring for each CPU that this process may use. Together they have a queue for each CPU that this machine can
    /// have; those of CPUs that the process may not use are spread over the rings.
    ///
    /// If root has permitted rings to all mounts, holds that permission until the mount has begun: other mounts of this program
    /// do not change the kernel's parameter meanwhile.
    ///
    /// # Errors
    /// The kernel has no io_uring, or this process may not use it.
    pub fn new() -> io::Result<Self> {
        let possible = count(&fs::read_to_string(POSSIBLE_CPUS)?).ok_or(io::ErrorKind::InvalidData)?;
        let allowed = sched_getaffinity(None)?;
        let own: Vec<u16> = (0..possible).filter(|cpu| allowed.is_set(usize::from(*cpu))).collect();
        let mut queues: Vec<Vec<u16>> = own.iter().map(|cpu| vec![*cpu]).collect();
        let others = (0..possible).filter(|cpu| !own.contains(cpu));
        for (index, cpu) in others.enumerate() {
            let ring = index % queues.len().max(1);
            queues.get_mut(ring).ok_or(io::ErrorKind::InvalidData)?.push(cpu);
        }
        let rings = own.iter().zip(queues).map(|(cpu, queues)| Ok((Ring::new(queues)?, usize::from(*cpu))));
        let rings = rings.collect::<io::Result<_>>()?;
        let state = State { rings, general: RingPermission::general(), kept: None, is_permitted: false };
        Ok(Self { state: Arc::new(Mutex::new(state)) })
    }

    /// Whether the next mount may use them: it is permitted, and no mount has taken them.
    pub(crate) fn are_available(&self) -> bool {
        let state = self.lock();
        state.is_permitted && !state.rings.is_empty()
    }

    /// Sets whether a permission for the next mount alone is held. Without it, the mount needs the general one.
    pub(crate) fn permit(&self, is_given: bool) {
        let mut state = self.lock();
        state.is_permitted = is_given || state.general.is_some();
    }

    /// As [`Rings::permit`], with a permission that holds until the descriptor is closed.
    pub(crate) fn permit_with(&self, kept: Option<OwnedFd>) {
        self.permit(kept.is_some());
        self.lock().kept = kept;
    }

    /// Releases the permissions, once the mount has begun.
    pub(crate) fn release_permission(&self) {
        let mut state = self.lock();
        (state.general, state.kept) = (None, None);
    }

    /// Takes the rings out, each with the CPU of its thread.
    pub(crate) fn take(&self) -> Vec<(Ring, usize)> {
        std::mem::take(&mut self.lock().rings)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Rings").finish_non_exhaustive()
    }
}

/// One more than the highest CPU number in a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    list.trim().rsplit(['-', ',']).next()?.parse::<u16>().ok()?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_up_to_the_last_one() {
        for (list, expected) in [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-3,8-9", Some(10)), ("", None), ("0-x", None)]
        {
            assert_eq!(count(list), expected, "{list:?}");
        }
    }
}
