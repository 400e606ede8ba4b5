//! What every measurement needs around it, and the way back from it.

use std::time::Duration;

use serde::Serialize;

use crate::Result;
use crate::interrupt_sys::Interrupt;
use crate::launch::MountPoints;
use crate::load::{Load, LoadKind};
use crate::machine::{
    AUTOGROUP, Counts, CpuNoise, Environment, GroupCounts, Setting, Undo, enter_private_mounts, noise_floor,
    read_setting,
};

/// How long each CPU is listened to before a run.
const NOISE_TIME: Duration = Duration::from_millis(200);

/// What is asked for around a measurement.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Load beside it.
    pub load: Vec<LoadKind>,
    /// How long load runs before the first measurement.
    pub load_lead: Duration,
    /// Leaves autogroup as it is instead of turning it off as Android does.
    pub keep_autogroup: bool,
}

impl Default for StageOptions {
    fn default() -> Self {
        Self { load: Vec::new(), load_lead: Duration::from_secs(1), keep_autogroup: false }
    }
}

/// What there was around a measurement: the part that all reports share.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Surroundings {
    /// The load beside it.
    pub load: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// What the machine takes from a thread that never sleeps, before the run and without the load.
    pub noise: Vec<CpuNoise>,
    /// What happened in the memory group, if there was one.
    pub memory: Option<GroupCounts>,
    /// What a reader of the numbers should know.
    pub notes: Vec<String>,
}

/// A machine made ready; everything is undone when it is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    surroundings: Surroundings,
    counts: Counts,
    // Dropped in this order, the way back last.
    pub(crate) mount_points: MountPoints,
    pub(crate) load: Load,
    _autogroup: Option<Setting>,
    pub(crate) undo: Undo,
}

impl Stage {
    /// Makes the machine ready, once no other lab is at work on it. The calling thread gets mounts of its own, if that is allowed.
    pub(crate) fn new(options: &StageOptions, interrupt: &Interrupt) -> Result<Self> {
        let undo = Undo::alone(interrupt)?;
        enter_private_mounts();
        let mut notes = Vec::new();
        let mut environment = Environment::read();
        let autogroup = if options.keep_autogroup { None } else { turn_autogroup_off(&undo, &mut notes) };
        environment.autogroup = read_setting(AUTOGROUP);
        let noise = noise_floor(NOISE_TIME);
        let mount_points = MountPoints::new(&undo)?;
        let load = Load::start(&undo, &options.load)?;
        if !options.load.is_empty() {
            std::thread::sleep(options.load_lead);
        }
        let kinds = options.load.iter().map(ToString::to_string).collect();
        let surroundings = Surroundings { load: kinds, environment, noise, memory: None, notes };
        Ok(Self { surroundings, counts: Counts::read(), mount_points, load, _autogroup: autogroup, undo })
    }

    /// Adds something that a reader should know.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.surroundings.notes.push(note.into());
    }

    /// Undoes everything and tells what there was.
    pub(crate) fn end(mut self) -> Surroundings {
        let mut surroundings = std::mem::take(&mut self.surroundings);
        surroundings.environment.during = self.counts.until_now();
        surroundings.memory = self.load.memory_counts();
        surroundings.notes.extend(self.load.notes());
        surroundings
    }
}

impl Surroundings {
    /// The lines of a report about the machine.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for noise in &self.noise {
            lines.push(format!(
                "noise floor, CPU {}: {:.2} % taken away, at most {:.0} µs at a time",
                noise.cpu,
                noise.percent(),
                noise.gap_ns_max as f64 / 1000.0,
            ));
        }
        if let Some(memory) = &self.memory {
            lines.push(format!(
                "memory group: limit hit {} times, {} processes killed, at most {} KiB used",
                memory.limit_hits,
                memory.out_of_memory_kills,
                memory.peak_bytes >> 10,
            ));
        }
        lines.extend(self.environment.lines());
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines
    }

    /// The load in words.
    pub fn load_text(&self) -> String {
        if self.load.is_empty() { "no load".to_owned() } else { format!("load {}", self.load.join(", ")) }
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
