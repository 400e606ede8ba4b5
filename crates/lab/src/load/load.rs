//! Running load: processes that load the CPUs and the disk.

use std::{
    ffi::CString,
    fs::OpenOptions,
    io::Write,
    os::{
        fd::AsFd,
        unix::{fs::OpenOptionsExt, process::CommandExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use rustix::{
    process::Signal,
    time::{ClockId, Timespec},
};

use super::LoadKind;
use crate::{
    Error, Result,
    error::ErrorContext,
    machine::{ControlGroup, GroupCounts, Undo},
    process_sys::{ForkedChild, die_with_parent, join_group, join_group_in_child, read_block, touch_fresh_pages},
};

/// How long fio may take to reject its job file.
const FIO_BEGIN: Duration = Duration::from_millis(700);
/// How long fio may take to end its jobs.
const FIO_END: Duration = Duration::from_secs(5);

/// Running load. It ends when this value is dropped, or when the thread that started it ends.
#[derive(Debug, Default)]
pub struct Load {
    kinds: Vec<LoadKind>,
    workers: Vec<ForkedChild>,
    hog: Option<ForkedChild>,
    filler: Option<ForkedChild>,
    fio: Vec<Child>,
    group: Option<ControlGroup>,
    /// How much the hog allocates repeatedly, in bytes.
    hog_bytes: u64,
    /// How often the hog was killed by the OOM killer and restarted.
    hog_kill_count: u64,
    notes: Vec<String>,
}

impl Load {
    /// Starts all of `kinds`; on failure ends those already started.
    pub fn start(undo: &Undo, kinds: &[LoadKind]) -> Result<Self> {
        let mut load = Self::default();
        load.kinds = kinds.to_vec();
        for kind in kinds {
            match kind {
                LoadKind::Cpu { count, percent } => load.workers.extend(spawn_burners(*count, *percent)?),
                LoadKind::RandomRead { file } => {
                    let (reader, is_direct) = spawn_random_reader(file)?;
                    load.workers.push(reader);
                    if !is_direct {
                        let note = "does not support direct reads: reads may not reach the disk";
                        load.notes.push(format!("{} {note}", file.shown()));
                    }
                }
                LoadKind::Memory { limit_bytes, hog_bytes } => load.start_hog(undo, *limit_bytes, *hog_bytes)?,
                LoadKind::Fio { job } => load.fio.push(start_fio(job)?),
            }
        }
        Ok(load)
    }

    /// The requested kinds.
    pub fn kinds(&self) -> &[LoadKind] {
        &self.kinds
    }

    /// Moves a running process into the load's limits.
    pub(crate) fn confine_process(&self, pid: u32) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let entered = std::io::Write::write_all(&mut group.entrance()?, pid.to_string().as_bytes());
        entered.context(|| format!("cannot put process {pid} into a control group"))
    }

    /// Makes a command start within the load's limits.
    pub fn confine<'command>(&self, command: &'command mut Command) -> Result<&'command mut Command> {
        match &self.group {
            Some(group) => Ok(join_group(command, group.entrance()?)),
            None => Ok(command),
        }
    }

    /// The counts of the memory control group, if there is one.
    pub fn memory_counts(&self) -> Option<GroupCounts> {
        self.group.as_ref().map(ControlGroup::counts)
    }

    /// How many processes the OOM killer has killed so far.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        self.memory_counts().map_or(0, |counts| counts.out_of_memory_kills)
    }

    /// The process IDs of burners and readers.
    pub fn pids(&self) -> Vec<u32> {
        self.workers.iter().chain(&self.hog).chain(&self.filler).map(ForkedChild::pid).collect()
    }

    /// Notes for the report about load that deviated from the request or ended early.
    pub fn notes(&mut self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let ended = self.workers.iter_mut().filter_map(|worker| worker.has_ended().then_some(())).count();
        if ended > 0 {
            notes.push(format!("{ended} load processes ended before the measurement"));
        }
        if self.hog_kill_count > 0 {
            notes.push(format!(
                "the memory hog was killed {} times and restarted: the limit is small for the measured processes",
                self.hog_kill_count
            ));
        }
        for fio in &mut self.fio {
            if let Ok(Some(status)) = fio.try_wait() {
                notes.push(format!("fio ended before the measurement ({status}): use a longer runtime"));
            }
        }
        notes
    }

    /// Restarts the hog if it was killed: without it there is no pressure.
    pub(crate) fn revive(&mut self) -> Result<()> {
        if self.hog.as_mut().is_some_and(ForkedChild::has_ended) {
            self.hog_kill_count += 1;
            self.spawn_hog()?;
        }
        Ok(())
    }

    fn start_hog(&mut self, undo: &Undo, limit_bytes: u64, hog_bytes: u64) -> Result<()> {
        let group = ControlGroup::with_memory_limit(undo, limit_bytes)?;
        self.filler = Some(spawn_filler(&group, limit_bytes)?);
        self.group = Some(group);
        self.hog_bytes = hog_bytes;
        self.spawn_hog()
    }

    fn spawn_hog(&mut self) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let entrance = group.entrance()?;
        let size_bytes = usize::try_from(self.hog_bytes).map_err(|_| Error::new("memory limit too large"))?;
        let page_bytes = rustix::param::page_size();
        let hog = ForkedChild::spawn(c"floe-hog", Some(entrance.as_fd()), |kept| {
            join_group_in_child(kept);
            loop {
                if !touch_fresh_pages(size_bytes, page_bytes) {
                    sleep(Duration::from_millis(10));
                }
                sleep(Duration::from_millis(1));
            }
        });
        let hog = hog.context(|| "cannot start the memory hog".to_owned())?;
        // Makes the hog the preferred victim of the OOM killer.
        let _ = std::fs::write(format!("/proc/{}/oom_score_adj", hog.pid()), "1000");
        self.hog = Some(hog);
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The hog must end before its group is removed. fio gets SIGTERM first, because its jobs are separate
        // processes.
        self.workers.clear();
        self.hog = None;
        self.filler = None;
        for fio in &mut self.fio {
            end(fio, FIO_END);
        }
    }
}

/// Sends SIGTERM to a child; kills it if it does not exit in time.
pub(crate) fn end(child: &mut Child, patience: Duration) {
    let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) else { return };
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let _ = rustix::process::kill_process(pid, Signal::TERM);
    let begin = Instant::now();
    while begin.elapsed() < patience {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn start_fio(job: &Path) -> Result<Child> {
    let job = job.canonicalize().context(|| format!("cannot find the fio job {}", job.shown()))?;
    let mut command = Command::new("fio");
    command.arg("--output=/dev/null").arg(&job).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.current_dir(job.parent().unwrap_or(Path::new("/"))).process_group(0);
    let mut child = die_with_parent(&mut command, Signal::TERM)
        .spawn()
        .context(|| "cannot run fio (install it, or use --load cpu=8x90%)".to_owned())?;
    std::thread::sleep(FIO_BEGIN);
    if let Ok(Some(status)) = child.try_wait() {
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
        }
        let said = said.lines().next().unwrap_or("no message").to_owned();
        return Err(Error::new(format!("fio ended at once ({status}): {said}")));
    }
    Ok(child)
}

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
fn spawn_burners(count: u32, percent: u32) -> Result<Vec<ForkedChild>> {
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
fn spawn_random_reader(path: &Path) -> Result<(ForkedChild, bool)> {
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
fn spawn_filler(group: &ControlGroup, limit_bytes: u64) -> Result<ForkedChild> {
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
fn sleep(duration: Duration) {
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
