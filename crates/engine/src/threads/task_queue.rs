//! Queues of work for the engine's threads.

use std::{collections::VecDeque, time::Instant};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// A piece of work for a thread of the engine.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// A piece of work in a queue, and the time when it was queued.
pub(crate) struct Task {
    pub(crate) work: Work,
    pub(crate) queued: Instant,
}

impl Task {
    pub(crate) fn new(work: Work) -> Self {
        Self { work, queued: Instant::now() }
    }
}

/// A queue of work, first in first out.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<State>,
    available: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    idle_threads: usize,
    is_closed: bool,
}

impl TaskQueue {
    /// Adds a task and wakes a sleeping thread, if there is one. Returns whether an idle thread is left for the task.
    ///
    /// # Errors
    /// The queue is closed; the error is the task.
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
            self.available.notify_one();
        }
        Ok(is_served)
    }

    /// Removes the next task; sleeps until there is one. Returns `None` once the queue is closed. Calls `idle` before
    /// it sleeps.
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
            state = self.available.wait(state);
            state.idle_threads -= 1;
        }
    }

    /// Removes the next task, if there is one.
    pub(crate) fn pop_now(&self) -> Option<Task> {
        self.lock().tasks.pop_front()
    }

    /// The number of queued tasks.
    pub(crate) fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    /// Whether more threads are idle than tasks are queued.
    pub(crate) fn has_idle_thread(&self) -> bool {
        let state = self.lock();
        state.idle_threads > state.tasks.len()
    }

    /// Closes the queue, which ends its threads. Returns the tasks that were still queued.
    pub(crate) fn close(&self) -> Vec<Task> {
        let mut state = self.lock();
        state.is_closed = true;
        let left = Vec::from(std::mem::take(&mut state.tasks));
        drop(state);
        self.available.notify_all();
        left
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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
