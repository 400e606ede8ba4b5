//! Work that waits for a thread.

use std::{collections::VecDeque, sync::PoisonError, time::Instant};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// A piece of work for a thread of the engine.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// A piece of work for a queue, and since when it waits.
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) queued: Instant,
}

impl Task {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, queued: Instant::now() }
    }
}

/// Work that waits for a thread, in the order it came.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<State>,
    came: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
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
        state.tasks.push_back(task);
        let is_served = state.idle_threads >= state.tasks.len();
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
            if let Some(task) = state.tasks.pop_front() {
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
        self.lock().tasks.pop_front()
    }

    /// How many pieces of work wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    /// Whether a thread sleeps for work.
    pub(crate) fn has_idle_thread(&self) -> bool {
        let state = self.lock();
        state.idle_threads > state.tasks.len()
    }

    /// Lets the threads end, and gives the work that waits.
    pub(crate) fn close(&self) -> Vec<Task> {
        let mut state = self.lock();
        state.is_closed = true;
        let left = Vec::from(std::mem::take(&mut state.tasks));
        drop(state);
        self.came.notify_all();
        left
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_keeps_its_order_and_a_closed_queue_gives_it_back() {
        let queue = TaskQueue::default();
        let (sender, order) = mpsc::channel();
        for name in 1..=4 {
            let sender = sender.clone();
            let task = Task::new(Box::new(move || sender.send(name).expect("a receiver")));
            assert!(!queue.push(task).unwrap_or(true), "no thread is free");
        }
        for _ in 0..3 {
            (queue.pop(|| {}).expect("work").work)();
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        let left = queue.close();
        assert_eq!(left.len(), 1);
        assert!(queue.push(Task::new(Box::new(|| {}))).is_err());
        assert!(queue.pop(|| {}).is_none());
    }
}
