//! Work that waits for a thread.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// A piece of work for a thread of the engine.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Which work goes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// Somebody waits for it.
    Demand,
    /// Nobody waits for it yet.
    Ahead,
}

/// A piece of work for a queue, and since when it waits.
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) urgency: Urgency,
    pub(crate) queued: Instant,
}

impl Task {
    pub(crate) fn new(urgency: Urgency, work: Work) -> Self {
        Self { work, urgency, queued: Instant::now() }
    }
}

/// Work that waits for a thread: what is wanted now before what may be wanted later, each in the order it came.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    demand: VecDeque<Task>,
    ahead: VecDeque<Task>,
    idle_threads: usize,
    is_closed: bool,
}

impl TaskQueue {
    /// Adds work and wakes one thread, if one sleeps. Gives whether there is a thread free for it.
    ///
    /// # Errors
    /// The queue was closed; the work comes back.
    pub(crate) fn push(&self, task: Task) -> Result<bool, Task> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(task);
        }
        match task.urgency {
            Urgency::Demand => state.demand.push_back(task),
            Urgency::Ahead => state.ahead.push_back(task),
        }
        let is_served = state.idle_threads >= state.demand.len() + state.ahead.len();
        let somebody_sleeps = state.idle_threads > 0;
        drop(state);
        if somebody_sleeps {
            self.came.notify_one();
        }
        Ok(is_served)
    }

    /// The next work; sleeps until there is some. `None` once the queue is closed. `idle` is called before sleeping.
    pub(crate) fn pop(&self, mut idle: impl FnMut()) -> Option<Task> {
        let mut has_idled = false;
        let mut state = self.lock();
        loop {
            if let Some(task) = state.demand.pop_front().or_else(|| state.ahead.pop_front()) {
                return Some(task);
            }
            if state.is_closed {
                return None;
            }
            if !has_idled {
                has_idled = true;
                drop(state);
                idle();
                state = self.lock();
                continue;
            }
            state.idle_threads += 1;
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle_threads -= 1;
        }
    }

    /// The next work, if there is some.
    pub(crate) fn pop_now(&self) -> Option<Task> {
        let mut state = self.lock();
        state.demand.pop_front().or_else(|| state.ahead.pop_front())
    }

    /// How many pieces of work wait.
    pub(crate) fn len(&self) -> usize {
        let state = self.lock();
        state.demand.len() + state.ahead.len()
    }

    /// Whether a thread sleeps for work.
    pub(crate) fn has_idle_thread(&self) -> bool {
        let state = self.lock();
        state.idle_threads > state.demand.len()
    }

    /// Lets the threads end, and gives the work that waits.
    pub(crate) fn close(&self) -> Vec<Task> {
        let mut state = self.lock();
        state.is_closed = true;
        let mut left = Vec::from(std::mem::take(&mut state.demand));
        left.extend(std::mem::take(&mut state.ahead));
        drop(state);
        self.came.notify_all();
        left
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn demand_goes_first_and_a_closed_queue_gives_its_work_back() {
        let queue = TaskQueue::default();
        let (sender, order) = mpsc::channel();
        for (urgency, name) in [(Urgency::Ahead, 1), (Urgency::Demand, 2), (Urgency::Ahead, 3), (Urgency::Demand, 4)] {
            let sender = sender.clone();
            let task = Task::new(urgency, Box::new(move || sender.send(name).expect("a receiver")));
            assert!(!queue.push(task).unwrap_or(true), "no thread is free");
        }
        for _ in 0..3 {
            (queue.pop(|| {}).expect("work").work)();
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [2, 4, 1]);
        let left = queue.close();
        assert_eq!(left.len(), 1);
        assert!(queue.push(Task::new(Urgency::Demand, Box::new(|| {}))).is_err());
        assert!(queue.pop(|| {}).is_none());
    }
}
