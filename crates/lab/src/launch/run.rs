//! Runs the launches in their order, and collects their measurements.

use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::{
    command::{self, CommandRun, HotProcess},
    meter::{Meter, Tier},
    mounted::{Extras, Mounted, forget_image},
    options::{Comparison, LaunchOptions, Temperature},
    outcome::Launch,
    variant::{Decompressors, ImageKind, Reader, Variant},
};
use crate::{
    Error, Result,
    interrupt_sys::Interrupt,
    report::write_perfetto,
    stage::{Stage, Surroundings},
    trace::{ProcessTree, Trace},
};

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchReport {
    /// The command.
    pub command: Vec<String>,
    /// The state of the caches and the process at each launch.
    pub temperature: Temperature,
    /// The method of measuring.
    pub tier: Tier,
    /// The variants, starting with the baseline.
    pub variants: Vec<VariantReport>,
    /// The published comparison that the variants reproduce, if any, and whether it uses two images.
    pub comparison: Option<(Comparison, bool)>,
    /// Every launch in order, including discarded ones.
    pub launches: Vec<Launch>,
    /// The conditions of the measurement.
    pub surroundings: Surroundings,
    /// Whether the run was interrupted before all launches were made.
    pub is_interrupted: bool,
    /// The Perfetto traces written.
    pub traces: Vec<PathBuf>,
}

/// The description of a variant.
#[derive(Clone, Debug, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: PathBuf,
    /// The image's size in bytes.
    pub image_bytes: u64,
    /// The threads whose latency counts as that of decompression.
    pub decompressors: String,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'run> {
    /// The number of launches made.
    pub done: usize,
    /// The number of launches planned.
    pub total: usize,
    /// The variant of the last launch.
    pub variant: &'run str,
    /// The duration of the last launch in nanoseconds.
    pub wall_ns: u64,
}

/// Runs the launches of `options`.
///
/// All changes to the machine are undone when this function returns, or by a helper process if this process dies. If
/// the run is interrupted, the results so far are returned.
pub fn run(
    options: &LaunchOptions,
    interrupt: &Interrupt,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<LaunchReport> {
    options.check()?;
    // The run has a thread of its own: this thread enters its own mount namespace, and its child processes end with it.
    std::thread::scope(|scope| {
        let session = scope.spawn(|| Session::new(options, interrupt)?.run(progress));
        session.join().map_err(|_| Error::new("the run panicked"))?
    })
}

struct Session<'run> {
    options: &'run LaunchOptions,
    interrupt: &'run Interrupt,
    meter: Meter,
    decompressors: Vec<Decompressors>,
    /// For each variant, the number of switches missing from the written trace.
    trace_flaws: Vec<Option<u64>>,
    report: LaunchReport,
    // Dropped in this order; the undo journal comes last.
    live: Vec<Option<Live>>,
    stage: Stage,
}

/// A variant that stays mounted between launches.
struct Live {
    process: Option<HotProcess>,
    mounted: Mounted,
}

impl<'run> Session<'run> {
    fn new(options: &'run LaunchOptions, interrupt: &'run Interrupt) -> Result<Self> {
        let mut stage = Stage::new(&options.stage, interrupt)?;
        let kinds = options.variants.iter().map(image_kind).collect::<Result<Vec<_>>>()?;
        let meter = Meter::new(&stage.undo, options.tier)?;
        meter.notes.iter().chain(&real_time_note()).for_each(|note| stage.note(note));
        let decompressors: Vec<_> =
            options.variants.iter().zip(kinds).map(|(variant, kind)| variant.decompressors(kind)).collect();
        let variants =
            options.variants.iter().zip(&decompressors).map(|(variant, who)| describe(variant, who)).collect();
        let report = LaunchReport {
            command: options.command.clone(),
            temperature: options.temperature,
            tier: meter.tier,
            variants,
            comparison: options.comparison,
            launches: Vec::new(),
            surroundings: Surroundings::default(),
            is_interrupted: false,
            traces: Vec::new(),
        };
        let count = options.variants.len();
        Ok(Self {
            options,
            interrupt,
            meter,
            decompressors,
            trace_flaws: vec![None; count],
            report,
            live: std::iter::repeat_with(|| None).take(count).collect(),
            stage,
        })
    }

    fn run(mut self, progress: &mut (dyn FnMut(Progress<'_>) + Send)) -> Result<LaunchReport> {
        let options = self.options;
        let steps = block(options.variants.len(), options.launch_count, options.control_count);
        let total = steps.len() * options.block_count;
        'run: for block in 0..options.block_count {
            for step in &steps {
                if self.interrupt.is_requested() || !self.step(*step, block)? {
                    self.report.is_interrupted = true;
                    break 'run;
                }
                let last = self.report.launches.last();
                progress(Progress {
                    done: self.report.launches.len(),
                    total,
                    variant: &options.variants[step.variant].name,
                    wall_ns: last.map_or(0, |launch| launch.wall_ns),
                });
            }
            self.live.iter_mut().for_each(|live| *live = None);
        }
        self.note_idle_workers();
        self.live.clear();
        self.report.surroundings = self.stage.end();
        Ok(self.report)
    }

    /// Notes the variants whose launches queued no work for the kernel's workers.
    fn note_idle_workers(&mut self) {
        for (index, decompressors) in self.decompressors.iter().enumerate() {
            let mut launches = self.report.launches.iter().filter(|launch| launch.variant == index && launch.is_traced);
            let Decompressors::Workqueue(_) = decompressors else { continue };
            if launches.all(|launch| launch.decompression.as_ref().is_none_or(|latency| latency.waits_ns.is_empty())) {
                let name = &self.options.variants[index].name;
                self.stage.note(format!(
                    "{name}: the kernel decompressed in the reading thread, as for file-backed mounts; \
                     with the option loop it uses its workers, as for a disk"
                ));
            }
        }
    }

    /// Makes one launch; returns false if the run was interrupted.
    fn step(&mut self, step: Step, block: usize) -> Result<bool> {
        let variant = &self.options.variants[step.variant];
        let mut live = match self.live[step.variant].take() {
            Some(live) => live,
            None => match self.prepare(variant, step)? {
                Some(live) => live,
                None => return Ok(false),
            },
        };
        let mut launch = Launch { variant: step.variant, block, ..Launch::default() };
        let tree_before = self.wants_trace(step.variant).then(ProcessTree::read);
        if let Some(process) = &mut live.process {
            process.prepare();
        }
        let begun = self.meter.begin(step.is_traced, live.mounted.server_pid())?;
        let ran = match &mut live.process {
            Some(process) => process.run(self.options, self.interrupt),
            None => command::run(self.options, &mut live.mounted, &self.stage.load, self.interrupt),
        };
        let Some(ran) = ran.map_err(|error| Error::new(format!("{}: {error}", variant.name)))? else {
            return Ok(false);
        };
        fill(&mut launch, &ran);
        let decompressors = &self.decompressors[step.variant];
        let trace = match self.meter.end(&begun, ran.pid, ran.totals.as_ref(), decompressors, &mut launch) {
            // A killed process may no longer answer.
            Err(_) if ran.is_starved => None,
            trace => trace?,
        };
        if ran.is_starved {
            launch.discarded =
                Some("the command or the process that reads the image was killed by the OOM killer".to_owned());
        }
        if let (Some(trace), Some(tree), None) = (&trace, tree_before, &launch.discarded) {
            self.write_trace(step.variant, trace, &tree, &launch)?;
        }
        if self.options.temperature == Temperature::Cold {
            let account = live.mounted.end();
            // A killed process has written no statistics.
            launch.account = if ran.is_starved { None } else { account? };
        } else if !ran.is_starved {
            self.live[step.variant] = Some(live);
        }
        self.report.launches.push(launch);
        Ok(true)
    }

    /// Mounts a variant and brings it to the requested temperature; `None` if the run was interrupted.
    fn prepare(&mut self, variant: &Variant, step: Step) -> Result<Option<Live>> {
        let is_cold = self.options.temperature == Temperature::Cold;
        if is_cold && variant.reader != Reader::Directory {
            forget_image(&variant.image)?;
        }
        if is_cold && self.options.drop_all_caches {
            rustix::fs::sync();
            std::fs::write("/proc/sys/vm/drop_caches", "3")
                .map_err(|error| Error::io("cannot drop the machine's caches (needs root)", error))?;
        }
        self.stage.load.revive()?;
        // Marks are needed only for the written trace and cost time, so other launches run without them.
        let wants_marks = step.is_traced && self.wants_trace(step.variant) && self.options.programs.is_own_floe();
        let extras = Extras { wants_account: is_cold, decode_marks: self.meter.marker().filter(|_| wants_marks) };
        let stage = &self.stage;
        let mounted = stage.mount_points.mount(variant, step.variant, &self.options.programs, &stage.load, &extras)?;
        let mut live = Live { process: None, mounted };
        match self.options.temperature {
            Temperature::Cold => {}
            Temperature::Warm => {
                let ran = command::run(self.options, &mut live.mounted, &self.stage.load, self.interrupt);
                if ran.map_err(|error| Error::new(format!("{}: {error}", variant.name)))?.is_none() {
                    return Ok(None);
                }
            }
            Temperature::Hot => {
                let mut process = HotProcess::start(self.options, live.mounted.path(), &self.stage.load)?;
                if process.run(self.options, self.interrupt)?.is_none() {
                    return Ok(None);
                }
                live.process = Some(process);
            }
        }
        Ok(Some(live))
    }

    /// Whether a trace of a variant is requested and none without missing switches exists yet.
    fn wants_trace(&self, variant: usize) -> bool {
        self.options.trace_directory.is_some() && self.trace_flaws[variant] != Some(0)
    }

    fn write_trace(&mut self, variant: usize, trace: &Trace, tree: &ProcessTree, launch: &Launch) -> Result<()> {
        let Some(directory) = &self.options.trace_directory else { return Ok(()) };
        // A later launch replaces the trace only if fewer switches are missing.
        let flaws = launch.unexplained_switches;
        if self.trace_flaws[variant].is_some_and(|before| before <= flaws) {
            return Ok(());
        }
        let path = directory.join(format!("launch-{variant}.perfetto-trace.gz"));
        let name = &self.options.variants[variant].name;
        write_perfetto(
            &path,
            trace,
            (tree, &ProcessTree::read()),
            &[(format!("launch: {name}"), launch.start_ns, launch.wall_ns)],
        )?;
        if self.trace_flaws[variant].replace(flaws).is_none() {
            self.report.traces.push(path);
        }
        Ok(())
    }
}

fn fill(launch: &mut Launch, ran: &CommandRun) {
    launch.start_ns = ran.start_ns;
    launch.wall_ns = ran.wall_ns;
    launch.minor_faults = ran.usage.minor_faults;
    launch.major_faults = ran.usage.major_faults;
    launch.cpu_ns = ran.usage.user_ns + ran.usage.system_ns;
}

fn image_kind(variant: &Variant) -> Result<Option<ImageKind>> {
    if variant.reader == Reader::Directory { Ok(None) } else { ImageKind::of(&variant.image).map(Some) }
}

fn describe(variant: &Variant, decompressors: &Decompressors) -> VariantReport {
    VariantReport {
        name: variant.name.clone(),
        image: variant.image.clone(),
        image_bytes: std::fs::metadata(&variant.image).map_or(0, |status| status.len()),
        decompressors: decompressors.to_string(),
    }
}

/// A note if real-time priorities are denied to this process.
fn real_time_note() -> Option<String> {
    let is_refused = !rustix::process::geteuid().is_root() && getrlimit(Resource::Rtprio).current == Some(0);
    is_refused.then(|| "real-time priorities are denied to this user: readers fall back to normal ones".to_owned())
}

/// One planned launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The index of the variant.
    pub variant: usize,
    /// Whether it is traced; the others are controls.
    pub is_traced: bool,
}

/// The launches of one block: A B B A A B B A…, so that drift affects all variants alike.
///
/// Control passes, which are not traced, are distributed among the others.
pub fn block(variant_count: usize, launch_count: usize, control_count: usize) -> Vec<Step> {
    let pass_count = launch_count + control_count;
    let mut steps = Vec::with_capacity(pass_count * variant_count);
    for pass in 0..pass_count {
        // A pass is a control if one more control is due by its end than by its beginning.
        let controls_until = |passes: usize| passes * control_count / pass_count.max(1);
        let is_traced = controls_until(pass + 1) == controls_until(pass);
        let forward = (0..variant_count).map(|variant| Step { variant, is_traced });
        if pass % 2 == 0 { steps.extend(forward) } else { steps.extend(forward.rev()) }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_interleaved_and_controls_spread() {
        let rows = [
            (2, 4, 0, "ABBAABBA"),
            (3, 2, 0, "ABCCBA"),
            (1, 3, 1, "AAAa"),
            (2, 4, 2, "ABBAabBAABba"),
            (2, 0, 1, "ab"),
            (2, 0, 0, ""),
        ];
        for (variants, launches, controls, expected) in rows {
            let found: String = block(variants, launches, controls)
                .iter()
                .map(|step| {
                    let letter = char::from(b'A' + u8::try_from(step.variant).unwrap());
                    if step.is_traced { letter } else { letter.to_ascii_lowercase() }
                })
                .collect();
            assert_eq!(found, expected);
        }
    }
}
