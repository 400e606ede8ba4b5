//! Supervises the workers: an exit or a stall is a finding, which is minimised, and another worker continues.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use super::{
    recipe::Recipe,
    verdict::{Case, Fault, FaultKind},
    worker::BEGINS,
};
use crate::task_error::{During, Outcome, TaskError};

/// The CPU time limit of one image.
const CPU_MAX: Duration = Duration::from_secs(20);

/// The limit of the time waited for one image, whatever else is running. Only the time in which this process ran counts:
/// all processes of a run may be stopped for minutes and then continued.
const WAITED_MAX: Duration = Duration::from_secs(180);

const POLL: Duration = Duration::from_millis(200);

/// A running worker.
pub(super) struct WorkerProcess {
    child: Child,
    lines: Receiver<String>,
    stderr: thread::JoinHandle<String>,
}

impl WorkerProcess {
    /// Starts a worker with these arguments.
    ///
    /// # Errors
    /// The worker cannot be started.
    pub(super) fn start(arguments: &[String]) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mutate").args(arguments);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().during("a worker")?;
        let (sender, lines) = channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        thread::spawn(move || {
            let lines = stdout.map(|stdout| BufReader::new(stdout).lines()).into_iter().flatten();
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stderr = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.map(|mut stderr| stderr.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self { child, lines, stderr })
    }

    /// Passes each case to `each` until the worker exits, including a case that ended the worker, with that as its
    /// fault. Returns the number of the last case if the worker exited early.
    ///
    /// # Errors
    /// The worker failed without an image at fault.
    pub(super) fn follow(mut self, each: &mut dyn FnMut(Case)) -> Outcome<Option<u64>> {
        let mut open: Option<(Case, Duration, Duration)> = None;
        let mut verdict = None;
        loop {
            match self.lines.recv_timeout(POLL) {
                Ok(line) => match line.strip_prefix(BEGINS) {
                    Some(case) => {
                        let case = serde_json::from_str(case).during("a worker's line")?;
                        open = Some((case, Duration::ZERO, self.cpu()));
                    }
                    None => {
                        open = None;
                        each(serde_json::from_str(&line).during("a worker's line")?);
                    }
                },
                Err(RecvTimeoutError::Timeout) => {
                    let Some((_, waited, cpu)) = &mut open else { continue };
                    *waited += POLL;
                    let spent = self.cpu().saturating_sub(*cpu);
                    if spent > CPU_MAX || *waited > WAITED_MAX {
                        let words = format!("killed after {spent:?} of a CPU and {waited:?} of waiting");
                        verdict = Some(Fault::new(FaultKind::Hang, words));
                        self.child.kill()?;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.child.wait()?;
        let words = self.stderr.join().unwrap_or_default();
        match open {
            Some((mut case, ..)) => {
                let ended = format!("{status} (signal {:?}): {}", status.signal(), words.trim());
                case.verdict.faults.push(verdict.unwrap_or(Fault::new(FaultKind::Crash, ended)));
                let index = case.verdict.index;
                each(case);
                Ok(Some(index))
            }
            None if status.success() => Ok(None),
            None => Err(TaskError::new(format!("a worker exited with {status}: {}", words.trim()))),
        }
    }

    /// The CPU time used so far.
    fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name, in parentheses, may contain spaces.
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
        let ticks: u64 = fields.take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
    }
}

/// The maximum number of smaller images tried.
const TRIALS_MAX: usize = 80;

/// Removes the parts of a recipe that a fault does not need, within the trial limit. `arguments` are those of a worker.
///
/// # Errors
/// Workers cannot be started.
pub(super) fn minimise(recipe: &Recipe, fault: &Fault, arguments: &[String], folder: &Path) -> Outcome<Recipe> {
    let mut trials = Trials { signature: fault.signature(), arguments, folder, left: TRIALS_MAX };
    let mut best = recipe.clone();
    if !trials.shows(&best)? {
        return Ok(best);
    }
    trials.shrink(&mut best, |recipe| recipe.changes.len(), |recipe, index| drop(recipe.changes.remove(index)))?;
    for change in 0..best.changes.len() {
        let count = |recipe: &Recipe| recipe.changes[change].edits.len();
        trials.shrink(&mut best, count, |recipe, index| drop(recipe.changes[change].edits.remove(index)))?;
        for edit in 0..best.changes[change].edits.len() {
            trials.shorten(&mut best, change, edit)?;
        }
    }
    Ok(best)
}

/// Trials of smaller images, each in a process of its own.
struct Trials<'a> {
    signature: String,
    arguments: &'a [String],
    folder: &'a Path,
    left: usize,
}

impl Trials<'_> {
    /// Removes each of `count` parts that is not needed.
    fn shrink(
        &mut self,
        best: &mut Recipe,
        count: impl Fn(&Recipe) -> usize,
        remove: impl Fn(&mut Recipe, usize),
    ) -> Outcome {
        for index in (0..count(best)).rev() {
            if count(best) < 2 {
                break;
            }
            let mut smaller = best.clone();
            remove(&mut smaller, index);
            if self.shows(&smaller)? {
                *best = smaller;
            }
        }
        Ok(())
    }

    /// Shortens an edit by halves from both ends.
    fn shorten(&mut self, best: &mut Recipe, change: usize, edit: usize) -> Outcome {
        for from_front in [true, false] {
            let mut step = best.changes[change].edits[edit].bytes.len() / 2;
            while step > 0 {
                let mut smaller = best.clone();
                let place = &mut smaller.changes[change].edits[edit];
                if step < place.bytes.len() {
                    if from_front {
                        place.bytes.drain(..step);
                        place.offset += step;
                    } else {
                        place.bytes.truncate(place.bytes.len() - step);
                    }
                    if self.shows(&smaller)? {
                        *best = smaller;
                        continue;
                    }
                }
                step /= 2;
            }
        }
        Ok(())
    }

    /// Whether the image of a recipe still causes the fault.
    fn shows(&mut self, recipe: &Recipe) -> Outcome<bool> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
        self.left = left;
        let path = self.folder.join("recipe.json");
        fs::write(&path, serde_json::to_vec(recipe).map_err(std::io::Error::from)?)?;
        let mut arguments = self.arguments.to_vec();
        arguments.extend(["--recipe".to_owned(), path.display().to_string()]);
        let mut is_shown = false;
        WorkerProcess::start(&arguments)?.follow(&mut |case| {
            is_shown |= case.verdict.faults.iter().any(|fault| fault.signature() == self.signature);
        })?;
        Ok(is_shown)
    }
}
