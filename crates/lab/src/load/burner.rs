//! Processes that load the CPUs and the disk.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use floe_image::ShownName;
use rustix::time::{ClockId, Timespec};

use crate::error::ErrorContext;
use crate::machine::ControlGroup;
use crate::process_sys::{ForkedChild, read_block};
use crate::{Error, Result};

/// How many numbers are sorted at a time, as in fio's `cpumode=qsort`.
const SORTED_COUNT: usize = 256 << 10;
/// How long a burner works before it sleeps, the default of fio's `cpuchunks`.
const CYCLE: Duration = Duration::from_micros(50_000);
/// The size and alignment of random reads.
const BLOCK_BYTES: usize = 4096;
/// The read size of the filler.
const FILL_BYTES: usize = 1 << 20;

/// Starts processes that each demand `percent` of a CPU: they sort for 50 ms of CPU time and sleep for the rest of the
/// cycle.
///
/// The model is fio's `ioengine=cpuio` with `cpumode=qsort`. The sleep is computed from CPU time, so that a burner
/// demands the same share when it has to share its CPU.
pub(super) fn spawn_burners(count: u32, percent: u32) -> Result<Vec<ForkedChild>> {
    let rest = CYCLE.mul_f64(f64::from(100 - percent) / f64::from(percent));
    let mut numbers = vec![0_i32; SORTED_COUNT];
    (0..count)
        .map(|index| {
            let name = CString::new(format!("floe-burn/{index}")).unwrap_or_default();
            ForkedChild::spawn(&name, None, |_| burn(&mut numbers, index, rest))
                .context(|| format!("cannot start CPU burner {index}"))
        })
        .collect()
}

/// Starts a process that reads random blocks of a file, with O_DIRECT if the file system supports it.
///
/// Also returns whether it supports O_DIRECT.
pub(super) fn spawn_random_reader(path: &Path) -> Result<(ForkedChild, bool)> {
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    let (file, is_direct) = match open(libc::O_DIRECT) {
        Ok(file) => (file, true),
        Err(_) => (open(0).context(|| format!("cannot open {} for random reads", path.shown()))?, false),
    };
    let size = file.metadata().context(|| format!("cannot stat {}", path.shown()))?.len();
    let block_count = size / BLOCK_BYTES as u64;
    if block_count == 0 {
        return Err(Error::new(format!("{} is too small for random reads: give a file of some MiB", path.shown())));
    }
    // Contains a page-aligned block, which direct reads need.
    let mut buffer = vec![0_u8; 2 * BLOCK_BYTES];
    let start = buffer.as_ptr().align_offset(BLOCK_BYTES);
    let block = &mut buffer[start..start + BLOCK_BYTES];
    let child = ForkedChild::spawn(c"floe-randread", Some(file.as_fd()), |kept| {
        let mut random = Xorshift(0x9e37_79b9);
        loop {
            let offset = u64::from(random.next()) % block_count * BLOCK_BYTES as u64;
            if !read_block(kept, block, offset) {
                // If the file is unreadable, do not spin.
                sleep(Duration::from_millis(1));
            }
        }
    });
    Ok((child.context(|| "cannot start the random reader".to_owned())?, is_direct))
}

/// Starts a process inside a memory control group that reads a file as large as the group's limit repeatedly. The group
/// is then always full of reclaimable pages, and allocations take time.
pub(super) fn spawn_filler(group: &ControlGroup, limit_bytes: u64) -> Result<ForkedChild> {
    let context = || "cannot make a file to fill the memory group with".to_owned();
    // On a disk, because pages of a memory file cannot be reclaimed.
    let path = Path::new("/var/tmp").join(format!("floe-lab-fill-{}-{:08x}", std::process::id(), fastrand::u32(..)));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).context(context)?;
    let unlinked = std::fs::remove_file(&path);
    let mut block = vec![1_u8; FILL_BYTES];
    for _ in 0..limit_bytes.div_ceil(FILL_BYTES as u64) {
        file.write_all(&block).context(context)?;
    }
    // Pages are charged to the process that reads them first, which must not be this one.
    file.sync_data().and(unlinked).context(context)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context(context)?;
    let child = ForkedChild::spawn(c"floe-fill", Some(file.as_fd()), |kept| {
        let mut offset = 0;
        // The process must join the group before it reads.
        sleep(Duration::from_millis(50));
        loop {
            let is_read = read_block(kept, &mut block, offset);
            offset = if is_read { offset + FILL_BYTES as u64 } else { 0 };
            sleep(Duration::from_millis(1));
        }
    });
    let child = child.context(|| "cannot start the memory filler".to_owned())?;
    let entered = group.entrance()?.write_all(child.pid().to_string().as_bytes());
    entered.context(|| "cannot put the memory filler into its group".to_owned())?;
    Ok(child)
}

/// Sorts random numbers in three orders, again and again, and sleeps after the CPU time of each cycle.
fn burn(numbers: &mut [i32], index: u32, rest: Duration) {
    let mut random = Xorshift(0x1234_5678 ^ index.wrapping_mul(0x9e37_79b9));
    loop {
        let start = cpu_time();
        while cpu_time().saturating_sub(start) < CYCLE {
            numbers.iter_mut().for_each(|number| *number = random.next().cast_signed());
            numbers.sort_unstable();
            numbers.sort_unstable_by(|left, right| right.cmp(left));
            numbers.sort_unstable_by_key(|number| number.swap_bytes());
        }
        if !rest.is_zero() {
            sleep(rest);
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sleeps without taking locks.
pub(super) fn sleep(duration: Duration) {
    let tv_nsec = i64::from(duration.subsec_nanos());
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec });
}

/// A pseudo-random generator.
struct Xorshift(u32);

impl Xorshift {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }
}
