//! Makes the launches and collects what they show.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::command::{self, HotProcess, Ran};
use super::meter::{Meter, Tier};
use super::mounted::{MountPoints, Mounted, forget_image};
use super::options::{LaunchOptions, Temperature};
use super::outcome::Launch;
use super::plan::{Step, block};
use super::variant::{Decompressors, ImageKind, Reader, Variant};
use crate::interrupt_sys::Interrupt;
use crate::load::Load;
use crate::machine::{
    AUTOGROUP, Counts, CpuNoise, Environment, GroupCounts, Setting, Undo, enter_private_mounts, noise_floor,
    read_setting,
};
use crate::report::write_perfetto;
use crate::trace::{ProcessTree, Trace};
use crate::{Error, Result};

/// How long each CPU is listened to before a run.
const NOISE_TIME: Duration = Duration::from_millis(200);

/// Everything that a run showed.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchReport {
    /// The command.
    pub command: Vec<String>,
    /// What was in memory.
    pub temperature: Temperature,
    /// How it was measured.
    pub tier: Tier,
    /// The variants, the baseline first.
    pub variants: Vec<VariantReport>,
    /// The load beside it.
    pub load: Vec<String>,
    /// Every launch, in order, discarded ones included.
    pub launches: Vec<Launch>,
    /// The machine.
    pub environment: Environment,
    /// What the machine takes from a thread that never sleeps, before the run and without the load.
    pub noise: Vec<CpuNoise>,
    /// What happened in the memory group, if there was one.
    pub memory: Option<GroupCounts>,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
    /// Whether the run was ended before all launches were made.
    pub is_interrupted: bool,
    /// Traces for Perfetto that were written.
    pub traces: Vec<PathBuf>,
}

/// A variant, described.
#[derive(Clone, Debug, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: PathBuf,
    /// The image's size in bytes.
    pub image_bytes: u64,
    /// Whose latency counts as decompression's.
    pub decompressors: String,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'run> {
    /// Launches made.
    pub done: usize,
    /// Launches to be made.
    pub total: usize,
    /// The variant of the last one.
    pub variant: &'run str,
    /// Its time in nanoseconds.
    pub wall_ns: u64,
}

/// Makes the launches that `options` ask for.
///
/// Everything that the run changes on the machine is undone when this returns, and by a keeper if the process dies.
/// When the end is asked for, what was measured until then is returned.
pub fn run(
    options: &LaunchOptions,
    interrupt: &Interrupt,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<LaunchReport> {
    options.check()?;
    // A thread of its own: it enters mounts of its own, and its children end with it.
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
    /// For each variant, the switches missing from the trace that was written.
    trace_flaws: Vec<Option<u64>>,
    report: LaunchReport,
    counts: Counts,
    // Dropped in this order, the way back last.
    live: Vec<Option<Live>>,
    mount_points: MountPoints,
    load: Load,
    _autogroup: Option<Setting>,
    _undo: Undo,
}

/// A variant that stays mounted between launches.
struct Live {
    process: Option<HotProcess>,
    mounted: Mounted,
}

impl<'run> Session<'run> {
    fn new(options: &'run LaunchOptions, interrupt: &'run Interrupt) -> Result<Self> {
        let undo = Undo::new()?;
        enter_private_mounts();
        let mut notes = Vec::new();
        let mut environment = Environment::read();
        let autogroup = if options.keep_autogroup { None } else { turn_autogroup_off(&undo, &mut notes) };
        environment.autogroup = read_setting(AUTOGROUP);
        let kinds = options.variants.iter().map(image_kind).collect::<Result<Vec<_>>>()?;
        let meter = Meter::new(&undo, options.tier)?;
        notes.extend(meter.notes.iter().cloned());
        let noise = noise_floor(NOISE_TIME);
        notes.extend(real_time_note());
        let mount_points = MountPoints::new(&undo)?;
        let decompressors: Vec<_> =
            options.variants.iter().zip(kinds).map(|(variant, kind)| variant.decompressors(kind)).collect();
        let variants =
            options.variants.iter().zip(&decompressors).map(|(variant, who)| describe(variant, who)).collect();
        let load = Load::start(&undo, &options.load)?;
        if !options.load.is_empty() {
            std::thread::sleep(options.load_lead);
        }
        let report = LaunchReport {
            command: options.command.clone(),
            temperature: options.temperature,
            tier: meter.tier,
            variants,
            load: options.load.iter().map(ToString::to_string).collect(),
            launches: Vec::new(),
            environment,
            noise,
            memory: None,
            notes,
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
            counts: Counts::read(),
            live: std::iter::repeat_with(|| None).take(count).collect(),
            mount_points,
            load,
            _autogroup: autogroup,
            _undo: undo,
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
        self.report.environment.during = self.counts.until_now();
        self.report.memory = self.load.memory_counts();
        self.report.notes.extend(self.load.notes());
        Ok(self.report)
    }

    /// Makes one launch; false if the end was asked for meanwhile.
    fn step(&mut self, step: Step, block: usize) -> Result<bool> {
        let variant = &self.options.variants[step.variant];
        let mut live = match self.live[step.variant].take() {
            Some(live) => live,
            None => match self.prepare(variant, step.variant)? {
                Some(live) => live,
                None => return Ok(false),
            },
        };
        let mut launch = Launch { variant: step.variant, block, ..Launch::default() };
        let wants_trace = self.options.trace_directory.is_some() && self.trace_flaws[step.variant] != Some(0);
        let tree_before = wants_trace.then(ProcessTree::read);
        if let Some(process) = &mut live.process {
            process.prepare();
        }
        let begun = self.meter.begin(step.is_traced, live.mounted.server_pid())?;
        let ran = match &mut live.process {
            Some(process) => process.run(self.options, self.interrupt),
            None => command::run(self.options, live.mounted.path(), &self.load, self.interrupt),
        };
        let Some(ran) = ran.map_err(|error| Error::new(format!("{}: {error}", variant.name)))? else {
            return Ok(false);
        };
        fill(&mut launch, &ran);
        let decompressors = &self.decompressors[step.variant];
        let trace = self.meter.end(&begun, ran.pid, ran.totals.as_ref(), decompressors, &mut launch)?;
        if let (Some(trace), Some(tree), None) = (&trace, tree_before, &launch.discarded) {
            self.write_trace(step.variant, trace, &tree, &launch)?;
        }
        self.report.launches.push(launch);
        if self.options.temperature != Temperature::Cold {
            self.live[step.variant] = Some(live);
        }
        Ok(true)
    }

    /// Mounts a variant and makes it as cold, or as warm, as is asked for; `None` if the end was asked for meanwhile.
    fn prepare(&mut self, variant: &Variant, index: usize) -> Result<Option<Live>> {
        let is_cold = self.options.temperature == Temperature::Cold;
        if is_cold && variant.reader != Reader::Directory {
            forget_image(&variant.image)?;
        }
        if is_cold && self.options.drop_all_caches {
            rustix::fs::sync();
            std::fs::write("/proc/sys/vm/drop_caches", "3")
                .map_err(|error| Error::io("cannot drop the machine's caches (needs root)", error))?;
        }
        let mounted = self.mount_points.mount(variant, index, &self.options.programs, &self.load)?;
        let mut live = Live { process: None, mounted };
        match self.options.temperature {
            Temperature::Cold => {}
            Temperature::Warm => {
                let ran = command::run(self.options, live.mounted.path(), &self.load, self.interrupt);
                if ran.map_err(|error| Error::new(format!("{}: {error}", variant.name)))?.is_none() {
                    return Ok(None);
                }
            }
            Temperature::Hot => {
                let mut process = HotProcess::start(self.options, live.mounted.path(), &self.load)?;
                if process.run(self.options, self.interrupt)?.is_none() {
                    return Ok(None);
                }
                live.process = Some(process);
            }
        }
        Ok(Some(live))
    }

    fn write_trace(&mut self, variant: usize, trace: &Trace, tree: &ProcessTree, launch: &Launch) -> Result<()> {
        let Some(directory) = &self.options.trace_directory else { return Ok(()) };
        // A later launch is better only if the kernel showed more of it.
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

fn fill(launch: &mut Launch, ran: &Ran) {
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

fn turn_autogroup_off(undo: &Undo, notes: &mut Vec<String>) -> Option<Setting> {
    match Setting::set(undo, AUTOGROUP, "0") {
        Ok(setting) => setting,
        Err(error) => {
            notes.push(format!(
                "{error}: autogroup holds load of other sessions off, so latency looks better than it is"
            ));
            None
        }
    }
}

/// Says so if threads of this process could not be real-time threads.
fn real_time_note() -> Option<String> {
    let is_refused = !rustix::process::geteuid().is_root() && getrlimit(Resource::Rtprio).current == Some(0);
    is_refused.then(|| "real-time priorities are refused to this user: readers fall back to normal ones".to_owned())
}
