//! Work on the same thing by one thread at a time.

use std::{borrow::Borrow, collections::HashSet, hash::Hash};

use crate::{Condvar, Mutex, MutexGuard};

/// The things that threads work on at present, each thing by one thread.
#[derive(Debug)]
pub struct Turns<K> {
    busy: Mutex<HashSet<K>>,
    ended: Condvar,
}

/// The right to work on a thing, until this is dropped.
#[derive(Debug)]
pub struct Turn<'a, K: Eq + Hash> {
    turns: &'a Turns<K>,
    thing: K,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { busy: Mutex::default(), ended: Condvar::default() }
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    /// Waits until no other thread works on the thing.
    pub fn take<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(&self, thing: &Q) -> Turn<'_, K>
    where
        K: Borrow<Q>,
    {
        let mut busy = self.ended.wait_while(self.busy.lock(), |busy: &mut HashSet<K>| busy.contains(thing));
        busy.insert(thing.to_owned());
        Turn { turns: self, thing: thing.to_owned() }
    }

    /// Takes the right, if no other thread has it.
    pub fn try_take(&self, thing: &K) -> Option<Turn<'_, K>> {
        let is_free = self.busy.lock().insert(thing.clone());
        is_free.then(|| Turn { turns: self, thing: thing.clone() })
    }

    /// The things that threads work on. No thread begins or ends until the guard is dropped.
    pub fn busy(&self) -> MutexGuard<'_, HashSet<K>> {
        self.busy.lock()
    }
}

impl<K: Eq + Hash> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.turns.busy.lock().remove(&self.thing);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        thread,
    };

    use super::*;

    #[test]
    fn one_thread_at_a_time_works_on_a_thing() {
        let (turns, working) = (Turns::<String>::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _turn = turns.take("a");
                    assert_eq!(working.fetch_add(1, Relaxed), 0);
                    thread::yield_now();
                    working.fetch_sub(1, Relaxed);
                });
            }
        });
        let (a, b) = ("a".to_owned(), "b".to_owned());
        let turn = turns.try_take(&a).expect("free");
        assert!(turns.try_take(&a).is_none() && turns.try_take(&b).is_some());
        assert_eq!(turns.busy().len(), 1);
        drop(turn);
        assert!(turns.busy().is_empty() && turns.try_take(&a).is_some());
    }
}
