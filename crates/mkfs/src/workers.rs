//! Runs jobs on several threads and consumes their results in order.

use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use floe_image::start_error;
use floe_sync::Mutex;
use rustix::process::Resource;

use crate::error::{Error, Result};

/// The maximum number of files that a thread has open: two, while it compares files.
const DESCRIPTORS_OF_THREAD: usize = 2;
/// The number of descriptors reserved for the rest of the program: the image, temporary files, archives.
const DESCRIPTORS_KEPT: usize = 24;

/// Runs jobs on `threads` threads. `next` returns each job with the memory that it takes until its result is consumed.
/// At most `cost_max` is in use at once, unless a single job takes more. If `next` returns `None` while results are
/// outstanding, it is called again after each result. `worker` creates the function that processes jobs, once per
/// thread. `consume` receives the results in job order on the calling thread. The first error stops everything.
pub(crate) fn run<Job: Send, Output: Send, Worker: FnMut(Job) -> Result<Output>>(
    threads: NonZeroUsize,
    cost_max: usize,
    worker: impl Fn() -> Result<Worker> + Sync,
    mut next: impl FnMut() -> Option<(Job, usize)>,
    mut consume: impl FnMut(Output) -> Result<()>,
) -> Result<()> {
    let (job_sender, job_receiver) = mpsc::channel::<(u64, Job)>();
    let (result_sender, result_receiver) = mpsc::channel::<(u64, Result<Output>)>();
    let job_receiver = Mutex::new(job_receiver);
    let stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut unstarted = None;
        for number in 0..threads.get().min(threads_with_descriptors()) {
            let result_sender = result_sender.clone();
            let (job_receiver, stopped, worker) = (&job_receiver, &stopped, &worker);
            let started = thread::Builder::new().spawn_scoped(scope, move || {
                let mut work: Option<Worker> = None;
                loop {
                    let Ok((number, job)) = job_receiver.lock().recv() else { return };
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    let result = match &mut work {
                        Some(work) => work(job),
                        None => worker().and_then(|made| work.insert(made)(job)),
                    };
                    if result_sender.send((number, result)).is_err() {
                        return;
                    }
                }
            });
            // A build with fewer threads gives the same result.
            if let Err(error) = started {
                unstarted = (number == 0).then_some(error);
                break;
            }
        }
        drop(result_sender);
        if let Some(error) = unstarted {
            return Err(Error::Thread(start_error(error)));
        }
        let result = feed(cost_max, &job_sender, &result_receiver, &mut next, &mut consume);
        stopped.store(true, Ordering::Relaxed);
        drop(job_sender);
        result
    })
}

/// The number of threads that can have files open at the same time.
fn threads_with_descriptors() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (limit.saturating_sub(DESCRIPTORS_KEPT) / DESCRIPTORS_OF_THREAD).max(1)
}

fn feed<Job, Output>(
    cost_max: usize,
    jobs: &mpsc::Sender<(u64, Job)>,
    results: &mpsc::Receiver<(u64, Result<Output>)>,
    next: &mut dyn FnMut() -> Option<(Job, usize)>,
    consume: &mut dyn FnMut(Output) -> Result<()>,
) -> Result<()> {
    let mut costs = BTreeMap::new();
    let mut early = BTreeMap::new();
    let (mut cost_under_way, mut sent, mut consumed) = (0usize, 0, 0);
    let mut waiting = None;
    loop {
        waiting = waiting.or_else(&mut *next);
        while let Some((_, cost)) = &waiting {
            if cost_under_way > 0 && cost_under_way.saturating_add(*cost) > cost_max {
                break;
            }
            let Some((job, cost)) = waiting.take() else { break };
            jobs.send((sent, job)).map_err(|_| Error::Cancelled)?;
            costs.insert(sent, cost);
            (sent, cost_under_way) = (sent + 1, cost_under_way + cost);
            waiting = next();
        }
        if consumed == sent {
            return Ok(());
        }
        // All workers have ended only if one panicked; the scope reports the panic.
        let (number, result) = results.recv().map_err(|_| Error::Cancelled)?;
        early.insert(number, result);
        while let Some(result) = early.remove(&consumed) {
            consume(result?)?;
            cost_under_way -= costs.remove(&consumed).unwrap_or(0);
            consumed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_arrive_in_order_and_errors_stop_the_run() {
        for threads in [1, 3, 8] {
            let threads = NonZeroUsize::new(threads).expect("it is not zero");
            let mut numbers = 0..200u64;
            let mut results = Vec::new();
            let work = || {
                Ok(|number: u64| {
                    thread::sleep(std::time::Duration::from_micros(number * 37 % 100));
                    Ok(number * 2)
                })
            };
            let next = || numbers.next().map(|number| (number, 10));
            run(threads, 100, work, next, |result| {
                results.push(result);
                Ok(())
            })
            .expect("no job fails");
            assert_eq!(results, (0..200).map(|number| number * 2).collect::<Vec<u64>>());

            let mut numbers = 0..200u64;
            let work = || Ok(|number| if number == 50 { Err(Error::Cancelled) } else { Ok(number) });
            let mut count = 0;
            let result = run(
                threads,
                100,
                work,
                || numbers.next().map(|number| (number, 10)),
                |_| {
                    count += 1;
                    Ok(())
                },
            );
            assert!(matches!(result, Err(Error::Cancelled)) && count == 50);
        }
    }
}
