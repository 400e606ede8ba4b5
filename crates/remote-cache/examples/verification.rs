//! Measures verification on this machine: its speed, and its share of a cold read's CPU time.

use std::{error::Error, fs::File, io, os::unix::fs::FileExt, sync::Arc, time::Duration};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    Cache, CacheOptions, CachedSource, Cause, Digest, DigestTable, Location, ObjectKey, RangeFetcher, SourceOptions,
    Trust, VerityOptions, append_verity,
};
use floe_testkit::Random;
use rustix::time::{ClockId, clock_gettime};

const IMAGE_BYTES: usize = 256 << 20;
const READ_BYTES: usize = 1 << 20;

/// Serves an object from memory.
struct Memory(Bytes);

impl RangeFetcher for Memory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<Bytes> {
        Ok(self.0.slice(range.offset() as usize..range.end() as usize))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("image");
    std::fs::write(&path, Random::new(1).noise(IMAGE_BYTES))?;
    let file = File::options().read(true).write(true).open(&path)?;
    let before = cpu_time();
    let root = append_verity(&file, &VerityOptions::default())?;
    println!("making a dm-verity tree: {:.0} MB/s", megabytes(IMAGE_BYTES as u64, cpu_time() - before));
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let bytes = Bytes::from(bytes);
    let before = cpu_time();
    let plain = Digest::of(&bytes);
    println!(
        "SHA-256 of it all: {:.0} MB/s ({})",
        megabytes(bytes.len() as u64, cpu_time() - before),
        &plain.to_string()[..8]
    );

    let table = Trust::Table(DigestTable::of(&mut &*bytes)?.into());
    let location = Trust::Location(Location { url: "memory".to_owned(), etag: "1".to_owned() });
    for (name, trust) in [("dm-verity", Trust::Verity(root)), ("digest table", table), ("unverified", location)] {
        let mut options = CacheOptions::new(folder.path().join("cache"), Arc::new(|text: &str| eprintln!("{text}")));
        options.size_bytes_max = Some(4 << 30);
        let cache = Cache::open(options)?;
        let key = ObjectKey { trust, len: bytes.len() as u64 };
        let mut output = vec![0; READ_BYTES];
        for pass in ["cold", "warm, another process", "warm"] {
            // "warm" uses the source of the pass before.
            let fetcher = Arc::new(Memory(bytes.clone()));
            let source = CachedSource::open(Some(&cache), key.clone(), fetcher, SourceOptions::default())?;
            let read = |output: &mut [u8]| {
                (0..IMAGE_BYTES as u64).step_by(READ_BYTES).try_for_each(|offset| source.read_at(offset, output))
            };
            if pass == "warm" {
                read(&mut output)?;
            }
            let before = cpu_time();
            read(&mut output)?;
            let cpu = cpu_time() - before;
            let counts = source.counts();
            let hashing = Duration::from_nanos(counts.hashed_ns);
            println!(
                "{name}, {pass}: {:.0} MB/s of CPU time; {} MB hashed, {:.0} MB/s, {:.1} % of a core at 1 Gbit/s",
                megabytes(IMAGE_BYTES as u64, cpu),
                counts.hashed_bytes / 1_000_000,
                megabytes(counts.hashed_bytes, hashing),
                100.0 * 125.0 / megabytes(counts.hashed_bytes, hashing).max(1.0)
                    * f64::from(u8::from(counts.hashed_bytes > 0)),
            );
        }
        cache.drop_object(&key.id())?;
    }
    Ok(())
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn megabytes(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64().max(1e-9)
}
