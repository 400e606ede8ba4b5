//! Adaptive readdirplus: detects which threads use attributes of the entries that they list.

use std::collections::HashMap;

use floe_image::Nid;
use floe_sync::{Mutex, MutexGuard};

/// The initial credit of a thread, in entries with attributes. An unused inode costs the kernel about 6 µs, a lookup
/// about 25 µs.
const FIRST_CREDIT: u32 = 4096;

/// One in this many entries is a probe, listed without attributes. Its lookup shows whether attributes are still used.
const PROBE_INTERVAL: u32 = 64;

/// The credit that a lookup earns, in entries with attributes.
const EARNED: u32 = 2 * PROBE_INTERVAL;

/// The maximum of a credit: the largest directory whose entries are all listed with attributes.
const CREDIT_MAX: u32 = 128 << 10;

/// The number of threads whose credit is remembered. When it is exceeded, all credits return to the initial value.
const LISTERS_MAX: usize = 1024;

/// The number of directories whose last lister is remembered. When it is exceeded, all of them are forgotten.
const DIRECTORIES_MAX: usize = 16 << 10;

/// Detects which threads use attributes of the entries that they list.
///
/// An entry with attributes creates an inode in the kernel whether it is used or not; an entry without costs a lookup
/// if it is used. Therefore each thread has a credit. Entries with attributes consume it. Lookups in directories that
/// the thread listed, by any thread, earn more. While there is credit, some entries are probes without attributes,
/// because only their lookups show that attributes are still used. Directories have a separate credit, because tree
/// walkers enter all of them.
#[derive(Default)]
pub(crate) struct Listings {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listers: HashMap<u32, Allowance>,
    /// The last lister of each directory.
    directories: HashMap<Nid, u32>,
}

/// How many more entries with attributes a thread may get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    directories: Credit,
    others: Credit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Credit {
    left: u32,
    /// The number of entries until the next probe.
    until_probe: u32,
}

impl Listings {
    /// Returns the allowance of a thread that lists a directory.
    pub(crate) fn begin(&self, lister: u32, directory: Nid) -> Allowance {
        let mut state = self.lock();
        if state.directories.len() >= DIRECTORIES_MAX {
            state.directories.clear();
        }
        state.directories.insert(directory, lister);
        if state.listers.len() >= LISTERS_MAX && !state.listers.contains_key(&lister) {
            state.listers.clear();
        }
        *state.listers.entry(lister).or_default()
    }

    /// Subtracts what a listing consumed, keeping what the thread earned in the meantime.
    pub(crate) fn end(&self, lister: u32, before: Allowance, after: Allowance) {
        if let Some(now) = self.lock().listers.get_mut(&lister) {
            now.directories.spend(before.directories, after.directories);
            now.others.spend(before.others, after.others);
        }
    }

    /// Notes that a thread looked up an existing name in a directory.
    pub(crate) fn looked_up(&self, caller: u32, parent: Nid, is_directory: bool) {
        let mut state = self.lock();
        let Some(&lister) = state.directories.get(&parent) else { return };
        let earner = if state.listers.contains_key(&caller) { caller } else { lister };
        if let Some(allowance) = state.listers.get_mut(&earner) {
            let credit = allowance.credit(is_directory);
            credit.left = (credit.left + EARNED).min(CREDIT_MAX);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Allowance {
    /// The allowance of threads that always get attributes: unlimited, without probes.
    pub(crate) const ENDLESS: Self = {
        let credit = Credit { left: u32::MAX, until_probe: u32::MAX };
        Self { directories: credit, others: credit }
    };

    /// The allowance of threads that get no attributes.
    pub(crate) const NONE: Self = {
        let credit = Credit { left: 0, until_probe: u32::MAX };
        Self { directories: credit, others: credit }
    };

    /// Whether the next entry gets attributes. If so, it is charged.
    pub(crate) fn take(&mut self, is_directory: bool) -> bool {
        self.credit(is_directory).take()
    }

    /// Whether no file gets attributes any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.others.left == 0
    }

    fn credit(&mut self, is_directory: bool) -> &mut Credit {
        if is_directory { &mut self.directories } else { &mut self.others }
    }
}

impl Default for Allowance {
    fn default() -> Self {
        let credit = Credit { left: FIRST_CREDIT, until_probe: PROBE_INTERVAL / 2 };
        Self { directories: credit, others: credit }
    }
}

impl Credit {
    fn take(&mut self) -> bool {
        match (self.left, self.until_probe) {
            (0, _) => false,
            (_, 0) => {
                self.until_probe = PROBE_INTERVAL;
                false
            }
            _ => {
                self.left -= 1;
                self.until_probe -= 1;
                true
            }
        }
    }

    fn spend(&mut self, before: Self, after: Self) {
        self.left = self.left.saturating_sub(before.left - after.left);
        self.until_probe = after.until_probe;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: Nid = Nid(36);

    /// Lists `count` files; returns how many of them got attributes.
    fn list(listings: &Listings, lister: u32, count: u32) -> u32 {
        let before = listings.begin(lister, DIRECTORY);
        let mut after = before;
        let given = (0..count).filter(|_| after.take(false)).count();
        listings.end(lister, before, after);
        given as u32
    }

    #[test]
    fn unused_attributes_are_no_longer_listed() {
        let listings = Listings::default();
        let given: u32 = (0..100).map(|_| list(&listings, 7, 1000)).sum();
        assert_eq!(given, FIRST_CREDIT);
        assert_eq!(list(&listings, 7, 1000), 0);
        assert!(list(&listings, 8, 1000) > 900, "another thread has its own credit");
    }

    #[test]
    fn lookups_of_probes_keep_attributes_coming() {
        let listings = Listings::default();
        for _ in 0..1000 {
            let given = list(&listings, 7, 1000);
            assert!((980..1000).contains(&given), "{given}");
            (given..1000).for_each(|_| listings.looked_up(7, DIRECTORY, false));
        }
        // The thread stops using attributes.
        let given: u32 = (0..1000).map(|_| list(&listings, 7, 1000)).sum();
        assert!(given <= CREDIT_MAX, "{given}");
        assert_eq!(list(&listings, 7, 1000), 0);
        (0..8).for_each(|_| listings.looked_up(7, DIRECTORY, false));
        assert!(list(&listings, 7, 1000) > 900, "the thread wants attributes again");
    }

    #[test]
    fn lookups_by_others_earn_credit_and_directories_have_their_own() {
        let listings = Listings::default();
        while list(&listings, 7, 1000) > 0 {}
        listings.looked_up(99, Nid(1), false);
        listings.looked_up(99, DIRECTORY, true);
        assert_eq!(list(&listings, 7, 1000), 0, "only lookups of directories earned credit");
        listings.looked_up(99, DIRECTORY, false);
        assert_eq!(list(&listings, 7, 1000), EARNED);
    }

    #[test]
    fn memory_of_listers_and_directories_is_limited() {
        let listings = Listings::default();
        for index in 0..3 * DIRECTORIES_MAX as u32 {
            let allowance = listings.begin(index, Nid(index.into()));
            listings.end(index, allowance, allowance);
        }
        let state = listings.lock();
        assert!(state.listers.len() <= LISTERS_MAX && state.directories.len() <= DIRECTORIES_MAX);
    }

    #[test]
    fn an_endless_allowance_has_no_probes_and_none_gives_nothing() {
        let (mut endless, mut none) = (Allowance::ENDLESS, Allowance::NONE);
        assert!((0..1 << 20).all(|_| endless.take(false) && endless.take(true)));
        assert!((0..100).all(|_| !none.take(false) && !none.take(true)));
    }
}
