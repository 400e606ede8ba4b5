//! Runs the measured command.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal},
};

use super::{
    mounted::{CapturedStderr, Mounted},
    options::LaunchOptions,
};
use crate::{
    Error, Result,
    error::ErrorContext,
    interrupt_sys::Interrupt,
    load::{Load, end},
    process_sys::{Usage, die_with_parent, wait_with_usage},
    sched::{ThreadTotals, process_totals},
    trace::boot_time_ns,
};

/// How often a wait checks for an interruption.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How long a hot process may take to exit when its input ends.
const HOT_END_TIME_MAX: Duration = Duration::from_secs(2);

/// A finished launch.
#[derive(Debug)]
pub(crate) struct CommandRun {
    pub(crate) pid: u32,
    pub(crate) start_ns: u64,
    pub(crate) wall_ns: u64,
    pub(crate) usage: Usage,
    /// The totals of its main thread at its exit.
    pub(crate) totals: Option<ThreadTotals>,
    /// Whether the command, or the process that reads the image, was killed by the OOM killer, under a load that makes
    /// memory short.
    pub(crate) is_starved: bool,
}

/// Launches the command on a mounted image and waits for it; `None` if the run was interrupted.
pub(crate) fn run(
    options: &LaunchOptions,
    mounted: &mut Mounted,
    load: &Load,
    interrupt: &Interrupt,
) -> Result<Option<CommandRun>> {
    let said = CapturedStderr::new()?;
    let mut command = command(options, mounted.path())?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.writer()?);
    let command = load.confine(die_with_parent(&mut command, Signal::KILL))?;
    let kills_before = load.out_of_memory_kills();
    let (start_ns, begin) = (boot_time_ns(), Instant::now());
    let child = command.spawn().context(|| format!("cannot run {}", options.command[0]))?;
    let pid = child.id();
    let wait = wait_for_end(pid, options.launch_time_max, interrupt);
    let wall_ns = nanoseconds(begin.elapsed());
    if !matches!(wait, Ok(Waited::Ended)) {
        kill(pid);
    }
    // The process is a zombie until this process waits for it, so its counts are still readable.
    let totals = process_totals(pid).ok().and_then(|mut totals| totals.remove(&pid.cast_signed()));
    let (status, usage) = wait_with_usage(pid).context(|| "cannot wait for the command".to_owned())?;
    let was_killed = status.signal() == Some(Signal::KILL.as_raw()) || mounted.has_lost_server();
    let is_starved = was_killed && load.out_of_memory_kills() > kills_before;
    match wait? {
        Waited::Interrupted => Ok(None),
        Waited::TooLong => Err(Error::new(format!(
            "{} did not exit within {} s: the command must exit by itself",
            options.command[0],
            options.launch_time_max.as_secs(),
        ))),
        Waited::Ended if status.success() || is_starved => {
            Ok(Some(CommandRun { pid, start_ns, wall_ns, usage, totals, is_starved }))
        }
        Waited::Ended => Err(failure(options, status, &said)),
    }
}

/// A long-running command that processes one line at a time.
#[derive(Debug)]
pub(crate) struct HotProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    said: CapturedStderr,
    totals: Option<ThreadTotals>,
}

impl HotProcess {
    pub(crate) fn start(options: &LaunchOptions, directory: &Path, load: &Load) -> Result<Self> {
        let said = CapturedStderr::new()?;
        let mut command = command(options, directory)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said.writer()?);
        let command = load.confine(die_with_parent(&mut command, Signal::KILL))?;
        let mut child = command.spawn().context(|| format!("cannot run {}", options.command[0]))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new("the started command has no pipes"));
        };
        Ok(Self { child, input: Some(input), output: BufReader::new(output), said, totals: None })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Records the counts before a launch.
    pub(crate) fn prepare(&mut self) {
        self.totals = self.read_totals();
    }

    /// Writes one line and waits for one in return.
    pub(crate) fn run(&mut self, options: &LaunchOptions, interrupt: &Interrupt) -> Result<Option<CommandRun>> {
        let (start_ns, begin) = (boot_time_ns(), Instant::now());
        let line = format!("{}\n", options.hot_line);
        let sent = self.input.as_mut().map(|input| input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(Error::new(format!("the command no longer reads its input: {}", self.said.last_line())));
        }
        loop {
            if interrupt.is_requested() {
                return Ok(None);
            }
            if begin.elapsed() > options.launch_time_max {
                return Err(Error::new("a hot launch must answer with one line; the command wrote none in time"));
            }
            let mut polled = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if self.output.buffer().is_empty()
                && !matches!(rustix::event::poll(&mut polled, Some(&LOOK_INTERVAL)), Ok(1..))
            {
                continue;
            }
            let mut answer = String::new();
            let length =
                self.output.read_line(&mut answer).context(|| "cannot read the command's output".to_owned())?;
            if length == 0 {
                return Err(Error::new(format!("the command ended: {}", self.said.last_line())));
            }
            break;
        }
        let wall_ns = nanoseconds(begin.elapsed());
        let totals = self.read_totals().zip(self.totals.take()).map(|(after, before)| after.since(&before));
        let usage = Usage { user_ns: totals.as_ref().map_or(0, |totals| totals.running_ns), ..Usage::default() };
        Ok(Some(CommandRun { pid: self.pid(), start_ns, wall_ns, usage, totals, is_starved: false }))
    }

    fn read_totals(&self) -> Option<ThreadTotals> {
        process_totals(self.pid()).ok()?.remove(&self.pid().cast_signed())
    }
}

impl Drop for HotProcess {
    fn drop(&mut self) {
        self.input = None;
        let begin = Instant::now();
        while begin.elapsed() < HOT_END_TIME_MAX && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        end(&mut self.child, HOT_END_TIME_MAX);
    }
}

fn command(options: &LaunchOptions, directory: &Path) -> Result<Command> {
    let path = directory.to_str().ok_or_else(|| Error::new("the mount's path is not text"))?;
    let mut words = options.command.iter().map(|word| word.replace("{mount}", path));
    let program = words.next().ok_or_else(|| Error::new("no command to launch: put one after --"))?;
    let mut command = Command::new(program);
    command.args(words).current_dir(directory);
    Ok(command)
}

enum Waited {
    Ended,
    TooLong,
    Interrupted,
}

fn wait_for_end(pid: u32, time_max: Duration, interrupt: &Interrupt) -> Result<Waited> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or_else(|| Error::new("the command has no process ID"))?;
    let ended =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).context(|| "cannot watch the command".to_owned())?;
    let begin = Instant::now();
    loop {
        let mut polled = [PollFd::new(&ended, PollFlags::IN)];
        if matches!(rustix::event::poll(&mut polled, Some(&LOOK_INTERVAL)), Ok(1..)) {
            return Ok(Waited::Ended);
        }
        if interrupt.is_requested() {
            return Ok(Waited::Interrupted);
        }
        if begin.elapsed() > time_max {
            return Ok(Waited::TooLong);
        }
    }
}

fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn failure(options: &LaunchOptions, status: ExitStatus, said: &CapturedStderr) -> Error {
    Error::new(format!("the command {:?} failed ({status}): {}", options.command.join(" "), said.last_line()))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
