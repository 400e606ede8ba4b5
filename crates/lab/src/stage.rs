//! The preparation of the machine for a measurement, and its restoration.

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

/// How long each CPU is sampled for noise before a run.
const NOISE_TIME: Duration = Duration::from_millis(200);

/// The requested conditions of a measurement.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Background load.
    pub load: Vec<LoadKind>,
    /// How long the load runs before the first measurement.
    pub load_lead: Duration,
    /// Leave autogroup unchanged instead of disabling it as Android does.
    pub keep_autogroup: bool,
}

impl Default for StageOptions {
    fn default() -> Self {
        Self { load: Vec::new(), load_lead: Duration::from_secs(1), keep_autogroup: false }
    }
}

/// The conditions of a measurement, which all reports contain.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Surroundings {
    /// The background load.
    pub load: Vec<String>,
    /// The machine.
    pub environment: Environment,
    /// The noise floor before the run, without the load.
    pub noise: Vec<CpuNoise>,
    /// The events in the memory control group, if there was one.
    pub memory: Option<GroupCounts>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// A prepared machine; all changes are undone when it is dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    surroundings: Surroundings,
    counts: Counts,
    // Dropped in this order; the undo journal comes last.
    pub(crate) mount_points: MountPoints,
    pub(crate) load: Load,
    _autogroup: Option<Setting>,
    pub(crate) undo: Undo,
}

impl Stage {
    /// Prepares the machine, when no other lab is running. The calling thread gets a private mount namespace, if
    /// permitted.
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

    /// Adds a remark for the reader.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.surroundings.notes.push(note.into());
    }

    /// Undoes all changes; returns the conditions.
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
                "noise floor, CPU {}: {:.2} % lost, at most {:.0} µs at a time",
                noise.cpu,
                noise.percent(),
                noise.gap_ns_max as f64 / 1000.0,
            ));
        }
        if let Some(memory) = &self.memory {
            lines.push(format!(
                "memory control group: limit hit {} times, {} processes killed, at most {} KiB used",
                memory.limit_hits,
                memory.out_of_memory_kills,
                memory.peak_bytes >> 10,
            ));
        }
        lines.extend(self.environment.lines());
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines
    }

    /// The load as text.
    pub(crate) fn load_text(&self) -> String {
        if self.load.is_empty() { "no load".to_owned() } else { format!("load {}", self.load.join(", ")) }
    }
}

fn turn_autogroup_off(undo: &Undo, notes: &mut Vec<String>) -> Option<Setting> {
    match Setting::set(undo, AUTOGROUP, "0") {
        Ok(setting) => setting,
        Err(error) => {
            notes.push(format!(
                "{error}: autogroup shields against load of other sessions, so latency looks better than it is"
            ));
            None
        }
    }
}
