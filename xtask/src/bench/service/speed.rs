//! The speed of one image in the service.

use std::{path::PathBuf, time::Duration};

use floe_testkit::skip::Need;

use super::{
    autogroup::AutogroupOff,
    broker::Broker,
    entrant::Entrant,
    errand::Errand,
    front::Front,
    stand::Stand,
    trials::{Schedule, Trials},
};
use crate::{
    bench::{
        report::Report,
        setting::{Setting, Subject},
    },
    task_error::{Outcome, TaskError},
};

/// Read one image through the service, and through floe mount, which may be another build (--base): with the kernel's EROFS in front
/// and through FUSE, in a table each. All fronts have kept metadata. Rounds are interleaved; before each run, the image is
/// unmounted and all caches of the machine are dropped. Both must read the same bytes as the kernel first. In parentheses: how many times better the service is. Needs root.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    schedule: Schedule,
    /// The program for floe mount [the one that is measured]
    #[arg(long, value_name = "PROGRAM")]
    base: Option<PathBuf>,
    /// Options of floe mount for fronts, besides front= and cache-directory=. An earlier Floe may have none for kept metadata
    #[arg(long, value_name = "OPTIONS", default_value = "front-metadata=keep")]
    base_options: String,
    /// Options of the mounts of the service, besides front=, such as transport=uring
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    service_options: String,
    /// Only with this in front
    #[arg(long, value_enum)]
    front: Option<Front>,
}

/// The workloads that are run by default.
const WORKLOADS: [&str; 5] = ["whole-tree", "random-1", "random-8", "find-8", "launch"];

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(missing) = [Need::Root, Need::Fuse].into_iter().find_map(Need::missing) {
        return Err(TaskError::new(missing));
    }
    let floe = arguments.setting.contest.floe()?;
    let base = arguments.base.as_ref().unwrap_or(&floe);
    let _autogroup = AutogroupOff::new()?;
    let stand = Stand::new()?;
    let errand = Errand::new(&stand, None, Duration::from_secs_f64(arguments.schedule.seconds))?;
    let broker = Broker::start(&floe, &stand.folder().join("service"), None)?;
    let mut reports = Vec::new();
    for subject in arguments.setting.subjects()? {
        for front in Front::ALL.into_iter().filter(|front| arguments.front.is_none_or(|only| only == *front)) {
            let of_service = (&*floe, &broker, &*arguments.service_options);
            let mut entrants = Entrant::pair(front, of_service, (base, &arguments.base_options), stand.folder())?;
            entrants.retain(|entrant| arguments.setting.contest.takes(&entrant.contender.name));
            let trials = Trials {
                stand: &stand,
                errand: &errand,
                setting: &arguments.setting,
                schedule: &arguments.schedule,
                defaults: &WORKLOADS,
                subject: &subject,
            };
            let results = trials.run(&entrants)?;
            let versions =
                entrants.into_iter().map(|entrant| (entrant.contender.name, entrant.contender.version)).collect();
            let named = Subject { title: format!("front={}, {}", front.name(), subject.title), ..subject.clone() };
            reports.push(Report::new(&named, versions, Vec::new(), results)?);
        }
    }
    let ended = broker.end().and(stand.clear());
    Report::print(&reports, &arguments.setting.contest).and(ended)
}
