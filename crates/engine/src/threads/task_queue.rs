//! Queues of work for the engine's threads.

use std::time::{Duration, Instant};

use crate::{
    sync::{Condvar, Mutex, MutexGuard},
    turns::{Flow, Turns},
};

/// A piece of work for a thread of the engine.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// A piece of work in a queue.
pub(crate) struct Task {
    /// The flow that the work belongs to.
    pub(crate) flow: Flow,
    pub(crate) work: Work,
    /// When it was queued.
    pub(crate) queued: Instant,
}

impl Task {
    pub(crate) fn new(flow: Flow, work: Work) -> Self {
        Self { flow, work, queued: Instant::now() }
    }
}

/// How many tasks of one flow may run at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum FlowLimit {
    /// As many as there are threads.
    #[default]
    None,
    /// One, so that the tasks of a flow run in their order.
    One,
    /// One, and further ones while fewer of them run than are left of this many. So tasks that wait for a source that does
    /// not answer leave threads for others.
    Left(usize),
}

/// A queue of work: first in first out for each flow, and the flows in turn.
#[derive(Default)]
pub(crate) struct TaskQueue {
    limit: FlowLimit,
    state: Mutex<State>,
    available: Condvar,
}

#[derive(Default)]
struct State {
    tasks: Turns<Task>,
    /// The tasks in progress, and when they began; empty if the number of them does not matter.
    running: Vec<(Flow, Instant)>,
    idle_threads: usize,
    is_closed: bool,
}

impl TaskQueue {
    /// A queue with a limit for each flow.
    pub(crate) fn with_limit(limit: FlowLimit) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a task and wakes a sleeping thread, if there is one. Returns whether the task needs no further thread: an idle
    /// one is left for it, or its flow is at its limit.
    ///
    /// # Errors
    /// The queue is closed; the error is the task.
    pub(crate) fn push(&self, task: Task) -> Result<bool, Task> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(task);
        }
        let is_startable = state.allows(self.limit, task.flow, state.tasks.len_of(task.flow));
        state.tasks.push(task.flow, task);
        if !is_startable {
            return Ok(true);
        }
        let is_served = state.idle_threads >= state.startable_count(self.limit);
        let somebody_sleeps = state.idle_threads > 0;
        drop(state);
        if somebody_sleeps {
            self.available.notify_one();
        }
        Ok(is_served)
    }

    /// Removes the next task; sleeps until there is one. Returns `None` once the queue is closed. Calls `idle` before
    /// it sleeps. The calling thread has ended its previous task, of the flow `ended`.
    pub(crate) fn pop(&self, ended: Option<Flow>, mut idle: impl FnMut()) -> Option<Task> {
        let mut has_idled = false;
        let mut state = self.lock();
        if let Some(place) = state.running.iter().position(|(flow, _)| Some(*flow) == ended) {
            state.running.swap_remove(place);
        }
        loop {
            if let Some(task) = state.start_next(self.limit) {
                // The task that ended may have been the last one that others waited for.
                let is_more =
                    self.limit != FlowLimit::None && state.idle_threads > 0 && state.startable_count(self.limit) > 0;
                drop(state);
                if is_more {
                    self.available.notify_one();
                }
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

    /// Removes the next task, if there is one, regardless of limits.
    pub(crate) fn pop_now(&self) -> Option<Task> {
        self.lock().tasks.pop()
    }

    /// The number of queued tasks.
    pub(crate) fn len(&self) -> usize {
        self.lock().tasks.len()
    }

    /// Whether a task of `flow` is in progress.
    pub(crate) fn is_running(&self, flow: Flow) -> bool {
        self.lock().running.iter().any(|(other, _)| *other == flow)
    }

    /// The number of tasks in progress, if each of them began longer than `time` ago.
    pub(crate) fn all_stuck_count(&self, time: Duration) -> Option<usize> {
        let state = self.lock();
        state.running.iter().all(|(_, began)| began.elapsed() > time).then_some(state.running.len())
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
        let mut tasks = std::mem::take(&mut state.tasks);
        drop(state);
        self.available.notify_all();
        std::iter::from_fn(|| tasks.pop()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Whether a task of `flow` may begin besides those that run and `more`.
    fn allows(&self, limit: FlowLimit, flow: Flow, more: usize) -> bool {
        let own_count = || self.running.iter().filter(|(other, _)| *other == flow).count() + more;
        match limit {
            FlowLimit::None => true,
            FlowLimit::One => own_count() == 0,
            FlowLimit::Left(count) => {
                let own_count = own_count();
                own_count == 0 || own_count < count.saturating_sub(self.running.len() + more)
            }
        }
    }

    /// The number of queued tasks that may begin now.
    fn startable_count(&self, limit: FlowLimit) -> usize {
        let of_flow =
            |(flow, count): (Flow, usize)| (0..count).take_while(|more| self.allows(limit, flow, *more)).count();
        if limit == FlowLimit::None { self.tasks.len() } else { self.tasks.flows().map(of_flow).sum() }
    }

    /// Removes the next task that may begin.
    fn start_next(&mut self, limit: FlowLimit) -> Option<Task> {
        let mut tasks = std::mem::take(&mut self.tasks);
        let task = tasks.pop_if(|flow, _| self.allows(limit, flow, 0));
        self.tasks = tasks;
        if limit != FlowLimit::None
            && let Some(task) = &task
        {
            self.running.push((task.flow, Instant::now()));
        }
        task
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const IMAGE: Flow = Flow(1);
    const OTHER: Flow = Flow(2);

    fn nothing(flow: Flow) -> Task {
        Task::new(flow, Box::new(|| {}))
    }

    #[test]
    fn work_keeps_its_order_and_a_closed_queue_gives_it_back() {
        let queue = TaskQueue::default();
        let (sender, order) = mpsc::channel();
        for name in 1..=4 {
            let sender = sender.clone();
            let task = Task::new(IMAGE, Box::new(move || sender.send(name).expect("a receiver")));
            assert!(!queue.push(task).unwrap_or(true), "no thread is free");
        }
        for _ in 0..3 {
            (queue.pop(None, || {}).expect("work").work)();
        }
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        let left = queue.close();
        assert_eq!(left.len(), 1);
        assert!(queue.push(nothing(IMAGE)).is_err());
        assert!(queue.pop(None, || {}).is_none());
    }

    #[test]
    fn tasks_of_one_flow_run_one_after_the_other_where_that_is_the_limit() {
        let queue = TaskQueue::with_limit(FlowLimit::One);
        let push = |flow| queue.push(nothing(flow)).unwrap_or(false);
        assert!(!push(IMAGE) && push(IMAGE), "the second one waits for the first");
        assert!(!push(OTHER));
        let flows = [queue.pop(None, || {}), queue.pop(None, || {})].map(|task| task.expect("work").flow);
        assert_eq!(flows, [IMAGE, OTHER]);
        assert_eq!((queue.all_stuck_count(Duration::ZERO), queue.all_stuck_count(Duration::MAX)), (Some(2), None));
        assert_eq!(queue.pop(Some(IMAGE), || {}).expect("work").flow, IMAGE);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_flow_takes_no_more_threads_than_it_leaves_to_others() {
        let queue = TaskQueue::with_limit(FlowLimit::Left(8));
        let begin = |flow: Flow| {
            let pushed: Vec<_> = (0..20).map(|_| queue.push(nothing(flow)).unwrap_or(true)).collect();
            let unserved_count = pushed.into_iter().filter(|is_served| !is_served).count();
            (0..unserved_count).for_each(|_| drop(queue.pop(None, || {}).expect("work")));
            unserved_count
        };
        assert_eq!([1, 2, 3, 4, 5].map(|flow| begin(Flow(flow))), [4, 2, 1, 1, 1]);
        assert_eq!(queue.pop(Some(Flow(4)), || {}).expect("work").flow, Flow(4), "each may have one");
    }
}
