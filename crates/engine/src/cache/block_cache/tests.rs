use std::sync::atomic::AtomicBool;

use floe_image::{DeviceId, Encoding, StoredLen};

use super::*;
use crate::{
    PAGE_BYTES,
    cache::{key::SourceNumbers, volume_blocks::VolumeBlocks},
    memory::page_pool::CacheSize,
    metrics::latency::Latencies,
};

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

/// The cache as a volume with this number uses it.
fn volume(cache: &Arc<BlockCache>, number: u64) -> VolumeBlocks {
    VolumeBlocks::new(cache, &cache.share(), &Arc::new(SourceNumbers::new(number, number)))
}

fn put(volume: &VolumeBlocks, pool: &PagePool, block: &StoredBlock, len: usize) {
    let BlockLookup::Lead(lead) = volume.find_or_lead(block) else { panic!("nothing cached yet") };
    let pages = volume.make_room(pool, len, Effort::Demand).expect("room");
    lead.end(Ok(Arc::new(CachedBlock::new(pages, len, true))));
}

#[test]
fn the_budget_holds_and_used_blocks_stay() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let volume = volume(&cache, 1);
    let favourite = block(0, DecodedLen::Exact(PAGE_BYTES as u32));
    put(&volume, &pool, &favourite, PAGE_BYTES);
    // Miri takes a second for each block.
    let block_count = if cfg!(miri) { 100 } else { 1000 };
    for offset in 1..block_count {
        assert!(volume.peek(&favourite).is_some(), "used between any two evictions of its shard");
        put(&volume, &pool, &block(offset, DecodedLen::Exact(PAGE_BYTES as u32)), PAGE_BYTES);
    }
    assert!(pool.counters().cache_pages <= 64);
    assert!(cache.counters(&pool).evictions >= block_count - 64);
}

#[test]
fn a_prefix_serves_only_what_it_holds() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let volume = volume(&cache, 1);
    put(&volume, &pool, &block(0, DecodedLen::AtLeast(100)), 100);
    assert!(volume.peek(&block(0, DecodedLen::AtLeast(50))).is_some());
    assert!(volume.peek(&block(0, DecodedLen::AtLeast(101))).is_none());
    assert!(volume.peek(&block(0, DecodedLen::Exact(101))).is_none());
    put(&volume, &pool, &block(0, DecodedLen::Exact(200)), 200);
    assert!(volume.peek(&block(0, DecodedLen::AtLeast(101))).is_some());
}

#[test]
fn failures_are_not_remembered() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let volume = volume(&cache, 1);
    let wanted = block(0, DecodedLen::Exact(1));
    for _ in 0..2 {
        let BlockLookup::Lead(lead) = volume.find_or_lead(&wanted) else { panic!("nothing cached") };
        let BlockLookup::InFlight(flight) = volume.find_or_lead(&wanted) else { panic!("in flight") };
        lead.end(Err(Error::NoMemory));
        assert!(matches!(volume.join(&flight, &wanted), Err(Error::NoMemory)));
    }
    let BlockLookup::Lead(lead) = volume.find_or_lead(&wanted) else { panic!("nothing cached") };
    let BlockLookup::InFlight(flight) = volume.find_or_lead(&wanted) else { panic!("in flight") };
    drop(lead);
    assert!(matches!(volume.join(&flight, &wanted), Ok(None)), "a waiter may try for itself");
}

#[test]
fn a_smaller_budget_also_evicts_blocks_in_constant_use() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let volume = volume(&cache, 1);
    let blocks: Vec<_> = (0..4).map(|offset| block(offset, DecodedLen::Exact(PAGE_BYTES as u32))).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        blocks.iter().for_each(|block| put(&volume, &pool, block, PAGE_BYTES));
        for block in &blocks {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    drop(volume.peek(block));
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
    assert!(blocks.iter().all(|block| volume.peek(block).is_none()));
    assert_eq!(pool.counters().cache_pages, 0);
}

#[test]
fn a_scan_leaves_other_contents_their_floors() {
    let pool = pool(64);
    let cache = Arc::new(BlockCache::new(&pool, 0));
    let [first, second, third] = [1, 2, 3].map(|number| volume(&cache, number));
    let page = |offset| block(offset, DecodedLen::Exact(PAGE_BYTES as u32));
    let kept_count = |volume: &VolumeBlocks| (0..60).filter(|offset| volume.contains(&page(*offset))).count();
    // All of them fit, so none is evicted yet.
    (0..50).for_each(|offset| put(&first, &pool, &page(offset), PAGE_BYTES));
    (0..8).for_each(|offset| put(&second, &pool, &page(offset), PAGE_BYTES));
    let scan = |volume: &VolumeBlocks, start: u64| {
        (start..start + 300).for_each(|offset| put(volume, &pool, &page(offset), PAGE_BYTES));
    };
    scan(&third, 100);
    // Half of the budget is divided by three.
    assert!(kept_count(&first) > 32 / 3 && kept_count(&second) == 8, "{}", kept_count(&first));
    scan(&first, 500);
    assert_eq!(kept_count(&second), 8);
    assert!(pool.counters().cache_pages <= 64);
    // Nothing is left of a volume that is gone, and its part goes to the others.
    cache.forget(3);
    assert!((100..400).all(|offset| !third.contains(&page(offset))) && kept_count(&second) == 8);
    scan(&first, 800);
    assert_eq!(kept_count(&second), 8);
    [1, 2].iter().for_each(|owner| cache.forget(*owner));
    assert_eq!(pool.counters().cache_pages, 0);
}
