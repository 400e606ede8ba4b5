//! Running load.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use floe_image::ShownName;
use rustix::process::Signal;

use super::burner::{sleep, spawn_burners, spawn_filler, spawn_random_reader};
use super::kind::LoadKind;
use crate::error::ErrorContext;
use crate::machine::{ControlGroup, GroupCounts, Undo};
use crate::process_sys::{ForkedChild, die_with_parent, join_group, join_group_in_child, touch_fresh_pages};
use crate::{Error, Result};

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
