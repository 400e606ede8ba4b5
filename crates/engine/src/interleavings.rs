//! Runs the engine's shared structures under many interleavings of their threads: `cargo test -p floe-engine --lib
//! --features shuttle interleavings`.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use floe_image::{DecodedLen, DeviceId, Encoding, StoredBlock, StoredLen};
use shuttle::thread;

use crate::{
    Blocking, PAGE_BYTES,
    cache::{
        block_cache::{BlockCache, BlockLookup},
        cached_block::CachedBlock,
        flight::{Flight, FlightCounters},
        key::SourceNumbers,
        metadata_cache::MetadataCache,
        volume_blocks::VolumeBlocks,
    },
    memory::{
        arenas::Arenas,
        byte_budget::ByteBudget,
        page_pool::{CacheSize, Effort, PagePool},
        page_run_sys::Arena,
    },
    metrics::latency::Latencies,
    threads::task_queue::{FlowLimit, Task, TaskQueue},
    turns::Flow,
};

/// The number of interleavings that each test tries.
const ORDERS: usize = 20_000;

fn cache_of(page_count: usize) -> CacheSize {
    CacheSize { bytes: (page_count * PAGE_BYTES) as u64, growth_bytes: 0 }
}

fn try_orders(run: impl Fn() + Send + Sync + 'static) {
    let run = Arc::new(run);
    let again = Arc::clone(&run);
    shuttle::check_random(move || run(), ORDERS / 2);
    shuttle::check_pct(move || again(), ORDERS / 2, 3);
}

#[test]
fn a_flight_reaches_every_waiter_and_every_subscriber() {
    try_orders(|| {
        let (flight, counters) = (Arc::new(Flight::new()), Arc::new(FlightCounters::default()));
        let told = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..3)
            .map(|index| {
                let (flight, counters, told) = (Arc::clone(&flight), Arc::clone(&counters), Arc::clone(&told));
                thread::spawn(move || match index {
                    0 => flight.subscribe(Box::new(move |result| {
                        assert_eq!(result.expect("a result"), 5);
                        told.fetch_add(1, SeqCst);
                    })),
                    _ => {
                        assert_eq!(flight.wait(&counters).expect("a result"), 5);
                        told.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        flight.end(Ok(5), &counters);
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        assert_eq!(told.load(SeqCst), 3);
    });
}

#[test]
fn threads_that_take_pages_stay_below_the_limit_together() {
    try_orders(|| {
        let arena = Arena::new(8, false).expect("a small arena");
        let arenas = Arc::new(Arenas::new(Some(arena), 3));
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let arenas = Arc::clone(&arenas);
                thread::spawn(move || arenas.take(2))
            })
            .collect();
        let taken: Vec<_> = takers.into_iter().filter_map(|taker| taker.join().expect("no panic")).collect();
        assert_eq!((taken.len(), arenas.used_count()), (1, 2));
    });
}

/// Two threads that execute what is in the queue until it is closed.
fn workers_of(queue: &Arc<TaskQueue>) -> Vec<thread::JoinHandle<()>> {
    (0..2)
        .map(|_| {
            let queue = Arc::clone(queue);
            thread::spawn(move || {
                let mut ended = None;
                while let Some(task) = queue.pop(ended, || {}) {
                    ended = Some(task.flow);
                    (task.work)();
                }
            })
        })
        .collect()
}

#[test]
fn a_queue_loses_no_work_and_lets_its_threads_end() {
    try_orders(|| {
        let (queue, done) = (Arc::new(TaskQueue::default()), Arc::new(AtomicUsize::new(0)));
        let workers = workers_of(&queue);
        for _ in 0..3 {
            let done = Arc::clone(&done);
            assert!(
                queue
                    .push(Task::new(
                        Flow::ENGINE,
                        Box::new(move || {
                            done.fetch_add(1, SeqCst);
                        })
                    ))
                    .is_ok()
            );
        }
        let left = queue.close().len();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        assert_eq!(done.load(SeqCst) + left, 3);
    });
}

#[test]
fn a_queue_with_a_limit_loses_no_work() {
    for limit in [FlowLimit::One, FlowLimit::Left(2)] {
        try_orders(move || {
            let (queue, done) = (Arc::new(TaskQueue::with_limit(limit)), Arc::new(AtomicUsize::new(0)));
            let workers = workers_of(&queue);
            for flow in [1, 1, 2, 1] {
                let done = Arc::clone(&done);
                let work = move || {
                    thread::yield_now();
                    done.fetch_add(1, SeqCst);
                };
                assert!(queue.push(Task::new(Flow(flow), Box::new(work))).is_ok());
            }
            while done.load(SeqCst) < 4 {
                thread::yield_now();
            }
            assert!(queue.close().is_empty());
            workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        });
    }
}

#[test]
fn shares_of_a_budget_lose_no_waiter() {
    try_orders(|| {
        let budget = ByteBudget::divided(10);
        let shares = [budget.share(), budget.share()];
        let takers: Vec<_> = (0..3)
            .map(|taker| {
                let share = Arc::clone(&shares[taker % 2]);
                thread::spawn(move || {
                    drop(share.take_now(6));
                    drop(share.take(6));
                })
            })
            .collect();
        takers.into_iter().for_each(|taker| taker.join().expect("no panic"));
        assert_eq!(budget.used_bytes(), 0);
    });
}

#[test]
fn metadata_is_made_once_and_failures_reach_only_their_own() {
    for single_lock in [false, true] {
        try_orders(move || {
            let cache =
                if single_lock { MetadataCache::single_lock(1) } else { MetadataCache::<u32, u32>::sharded(640) };
            let (cache, made) = (Arc::new(cache), Arc::new(AtomicUsize::new(0)));
            let walkers: Vec<_> = (0..3u32)
                .map(|walker| {
                    let (cache, made) = (Arc::clone(&cache), Arc::clone(&made));
                    thread::spawn(move || {
                        for key in [walker % 2, 1] {
                            let value = cache.find_or_make(
                                key,
                                Blocking::Allowed,
                                |_| true,
                                || {
                                    made.fetch_add(1, SeqCst);
                                    thread::yield_now();
                                    Ok(key + 10)
                                },
                            );
                            assert_eq!(value.expect("made"), key + 10);
                        }
                    })
                })
                .collect();
            walkers.into_iter().for_each(|walker| walker.join().expect("no panic"));
            assert!(single_lock || made.load(SeqCst) == 2);
        });
    }
}

#[test]
fn a_block_is_decoded_once_and_a_lead_that_is_dropped_frees_the_others() {
    try_orders(|| {
        let pool = Arc::new(PagePool::new(0, cache_of(8), Arc::new(Latencies::new())).expect("a small pool"));
        let (cache, decoded) = (Arc::new(BlockCache::new(&pool, 0)), Arc::new(AtomicUsize::new(0)));
        let cache = Arc::new(VolumeBlocks::new(&cache, &cache.share(), &Arc::new(SourceNumbers::new(1, 2))));
        let block = StoredBlock {
            device: DeviceId(0),
            offset: 0,
            stored_len: StoredLen::Known(1),
            decoded_len: DecodedLen::Exact(100),
            encoding: Encoding::Stored,
        };
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let (pool, cache, decoded) = (Arc::clone(&pool), Arc::clone(&cache), Arc::clone(&decoded));
                thread::spawn(move || {
                    let mut gave_up = false;
                    loop {
                        match cache.find_or_lead(&block) {
                            BlockLookup::Ready(cached) => break assert_eq!(cached.bytes().len(), 100),
                            BlockLookup::InFlight(flight) => match cache.join(&flight, &block) {
                                Ok(Some(_)) => break,
                                Ok(None) => {}
                                Err(error) => panic!("{error}"),
                            },
                            BlockLookup::Lead(lead) if reader == 0 && !gave_up => {
                                gave_up = true;
                                drop(lead);
                            }
                            BlockLookup::Lead(lead) => {
                                decoded.fetch_add(1, SeqCst);
                                let pages = cache.make_room(&pool, 100, Effort::Demand).expect("room");
                                lead.end(Ok(Arc::new(CachedBlock::new(pages, 100, true))));
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        assert_eq!(decoded.load(SeqCst), 1);
    });
}

#[test]
fn pages_have_one_owner_and_all_come_back() {
    try_orders(|| {
        let pool = Arc::new(PagePool::new(3, cache_of(4), Arc::new(Latencies::new())).expect("a small pool"));
        let takers: Vec<_> = (1..4u8)
            .map(|mark| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let mut run =
                        pool.temporary(PAGE_BYTES * usize::from(mark), Effort::Demand).expect("from somewhere");
                    run.fill(mark);
                    thread::yield_now();
                    assert!(run.iter().all(|&byte| byte == mark));
                })
            })
            .collect();
        takers.into_iter().for_each(|taker| taker.join().expect("no panic"));
        assert_eq!(pool.counters().used_pages, 0);
    });
}
