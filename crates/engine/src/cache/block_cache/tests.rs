use super::*;
use crate::{PAGE_BYTES, memory::page_pool::CacheSize, metrics::latency::Latencies};

fn pool(page_count: usize) -> PagePool {
    let size = CacheSize { bytes: (page_count * PAGE_BYTES) as u64, growth_bytes: 0 };
    PagePool::new(0, size, Arc::new(Latencies::new())).expect("a small pool")
}

fn block(offset: u64, decoded_len: DecodedLen) -> StoredBlock {
    StoredBlock {
        device: DeviceId(0),
        offset,
        stored_len: StoredLen::Known(1),
        decoded_len,
        encoding: Encoding::Stored,
    }
}

fn put(cache: &Arc<BlockCache>, pool: &PagePool, block: &StoredBlock, len: usize) {
    let BlockLookup::Lead(lead) = cache.find_or_lead(block) else { panic!("nothing cached yet") };
    let pages = cache.make_room(pool, len, Effort::Demand).expect("room");
    lead.end(Ok(Arc::new(CachedBlock::new(pages, len, true))));
}

#[test]
fn the_budget_holds_and_used_blocks_stay() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let favourite = block(0, DecodedLen::Exact(PAGE_BYTES as u32));
    put(&cache, &pool, &favourite, PAGE_BYTES);
    // Miri takes a second for each block.
    let block_count = if cfg!(miri) { 100 } else { 1000 };
    for offset in 1..block_count {
        assert!(cache.peek(&favourite).is_some(), "used between any two evictions of its shard");
        put(&cache, &pool, &block(offset, DecodedLen::Exact(PAGE_BYTES as u32)), PAGE_BYTES);
    }
    assert!(pool.counters().cache_pages <= 64);
    assert!(cache.counters(&pool).evictions >= block_count - 64);
}

#[test]
fn a_prefix_serves_only_what_it_holds() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    put(&cache, &pool, &block(0, DecodedLen::AtLeast(100)), 100);
    assert!(cache.peek(&block(0, DecodedLen::AtLeast(50))).is_some());
    assert!(cache.peek(&block(0, DecodedLen::AtLeast(101))).is_none());
    assert!(cache.peek(&block(0, DecodedLen::Exact(101))).is_none());
    put(&cache, &pool, &block(0, DecodedLen::Exact(200)), 200);
    assert!(cache.peek(&block(0, DecodedLen::AtLeast(101))).is_some());
}

#[test]
fn failures_are_not_remembered() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let wanted = block(0, DecodedLen::Exact(1));
    for _ in 0..2 {
        let BlockLookup::Lead(lead) = cache.find_or_lead(&wanted) else { panic!("nothing cached") };
        let BlockLookup::InFlight(flight) = cache.find_or_lead(&wanted) else { panic!("in flight") };
        lead.end(Err(Error::NoMemory));
        assert!(matches!(cache.join(&flight, &wanted), Err(Error::NoMemory)));
    }
    let BlockLookup::Lead(lead) = cache.find_or_lead(&wanted) else { panic!("nothing cached") };
    let BlockLookup::InFlight(flight) = cache.find_or_lead(&wanted) else { panic!("in flight") };
    drop(lead);
    assert!(matches!(cache.join(&flight, &wanted), Ok(None)), "a waiter may try for itself");
}

#[test]
fn a_smaller_budget_also_evicts_blocks_in_constant_use() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let blocks: Vec<_> = (0..4).map(|offset| block(offset, DecodedLen::Exact(PAGE_BYTES as u32))).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        blocks.iter().for_each(|block| put(&cache, &pool, block, PAGE_BYTES));
        for block in &blocks {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop(cache.peek(block));
                }
            });
        }
        while cache.counters(&pool).hits < 100 {
            std::thread::yield_now();
        }
        pool.set_cache_size(CacheSize { bytes: 0, growth_bytes: 0 }).expect("a smaller cache");
        cache.keep_budget(&pool);
        is_over.store(true, Relaxed);
    });
    assert!(blocks.iter().all(|block| cache.peek(block).is_none()));
    assert_eq!(pool.counters().cache_pages, 0);
}
