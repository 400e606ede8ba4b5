//! Whether those who list directories want attributes too.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use floe_image::Nid;

/// How many entries with attributes a thread gets before it has shown that it uses them: an inode that is made for nothing
/// costs the kernel some 6 µs, one that has to be looked up some 25 µs.
const FIRST_CREDIT: u32 = 4096;

/// One of so many entries is given without attributes, for the lookup that shows that they are wanted.
const PROBE_INTERVAL: u32 = 64;

/// How many further entries with attributes a lookup is worth.
const EARNED: u32 = 2 * PROBE_INTERVAL;

/// The most that a thread keeps: the largest directory that it is given with all attributes.
const CREDIT_MAX: u32 = 128 << 10;

/// Of how many threads is remembered what they did. Beyond it all of them start anew.
const LISTERS_MAX: usize = 1024;

/// Of how many directories is remembered who listed them last. Beyond it they are forgotten.
const DIRECTORIES_MAX: usize = 16 << 10;

/// Which threads want attributes with the names that they list.
///
/// An entry with attributes makes an inode in the kernel, whether anybody looks at it or not; an entry with a name alone
/// costs a lookup if somebody does. So each thread has a credit: entries with attributes use it up, and lookups in what it
/// listed, its own or those of others, earn more. While there is credit, an entry now and then comes without attributes: only
/// its lookup can show that they are still wanted. Directories have a credit of their own, as walkers enter them all.
#[derive(Default)]
pub(crate) struct Listings {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listers: HashMap<u32, Allowance>,
    /// Who listed a directory last.
    directories: HashMap<Nid, u32>,
}

/// How many entries with attributes a thread may still be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    directories: Credit,
    others: Credit,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Credit {
    left: u32,
    /// How many entries until the next probe.
    until_probe: u32,
}

impl Listings {
    /// What a thread that lists a directory may be given.
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

    /// Notes what is left of what a thread was allowed, after what it may have earned meanwhile.
    pub(crate) fn end(&self, lister: u32, before: Allowance, after: Allowance) {
        if let Some(now) = self.lock().listers.get_mut(&lister) {
            now.directories.spend(before.directories, after.directories);
            now.others.spend(before.others, after.others);
        }
    }

    /// Notes that a thread looked up a name that there is in a directory.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allowance {
    /// An allowance without an end and without probes, for those who always get attributes.
    pub(crate) const ENDLESS: Self = {
        let credit = Credit { left: u32::MAX, until_probe: u32::MAX };
        Self { directories: credit, others: credit }
    };

    /// An allowance for names alone.
    pub(crate) const NONE: Self = {
        let credit = Credit { left: 0, until_probe: u32::MAX };
        Self { directories: credit, others: credit }
    };

    /// Whether the next entry comes with attributes, which it then is charged for.
    pub(crate) fn take(&mut self, is_directory: bool) -> bool {
        self.credit(is_directory).take()
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

    /// Lists so many files; gives how many of them came with attributes.
    fn list(listings: &Listings, lister: u32, count: u32) -> u32 {
        let before = listings.begin(lister, DIRECTORY);
        let mut after = before;
        let given = (0..count).filter(|_| after.take(false)).count();
        listings.end(lister, before, after);
        given as u32
    }

    #[test]
    fn names_that_nobody_looks_up_come_without_attributes_in_the_end() {
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
        // It wants them no more.
        let given: u32 = (0..1000).map(|_| list(&listings, 7, 1000)).sum();
        assert!(given <= CREDIT_MAX, "{given}");
        assert_eq!(list(&listings, 7, 1000), 0);
        (0..8).for_each(|_| listings.looked_up(7, DIRECTORY, false));
        assert!(list(&listings, 7, 1000) > 900, "it wants them again");
    }

    #[test]
    fn lookups_of_others_count_for_who_listed_and_those_of_directories_apart() {
        let listings = Listings::default();
        while list(&listings, 7, 1000) > 0 {}
        listings.looked_up(99, Nid(1), false);
        listings.looked_up(99, DIRECTORY, true);
        assert_eq!(list(&listings, 7, 1000), 0, "it listed no such directory, and was looked up for directories");
        listings.looked_up(99, DIRECTORY, false);
        assert_eq!(list(&listings, 7, 1000), EARNED);
    }

    #[test]
    fn what_is_remembered_has_limits() {
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
