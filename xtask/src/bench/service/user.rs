//! What an ordinary user gets.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use floe_testkit::{copy_program, skip::Need};

use super::{
    autogroup::AutogroupOff,
    broker::Broker,
    entrant::{self, Entrant},
    errand::Errand,
    front::Front,
    stand::Stand,
    trials::{Schedule, Trials},
};
use crate::{
    bench::{
        contender::Contender,
        ordinary_user::OrdinaryUser,
        report::Report,
        setting::{Setting, Subject},
    },
    task_error::{Outcome, TaskError},
};

/// Read through the mounts of an ordinary user: of the service with the kernel's EROFS in front ("front") and through FUSE ("fuse"),
/// of erofsfuse or squashfuse_ll. For scale, the same user reads root's mounts: the kernel's own ("root-kernel"), floe mount
/// with the kernel's EROFS in front ("root-front"), and the same of the service ("root-service"). All
/// fronts have kept metadata. Rounds are interleaved; before each run, the image is unmounted and all caches of the machine are
/// dropped. All contenders must read the same bytes as the kernel first. Files that the user may not read are left
/// out. In parentheses: how many times better the first contender is. Needs root.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    schedule: Schedule,
    /// The number of the user, whom fusermount3 must find in /etc/passwd
    #[arg(long, default_value_t = 65534)]
    uid: u32,
    /// What the service permits users: the value of floe serve --users
    #[arg(long, default_value = "fronts")]
    limits: String,
}

/// The workloads that are run by default.
const WORKLOADS: [&str; 5] = ["whole-tree", "loader", "stat", "find-8", "launch"];

/// Runs the benchmark and prints the results.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let Some(missing) = [Need::Root, Need::Fuse, Need::KernelErofs].into_iter().find_map(Need::missing) {
        return Err(TaskError::new(missing));
    }
    let floe = arguments.setting.contest.floe()?;
    let _autogroup = AutogroupOff::new()?;
    let stand = Stand::new()?;
    // Every user may run the copy.
    let program = stand.folder().join("floe");
    copy_program(&floe, &program);
    let user = OrdinaryUser { uid: arguments.uid };
    let errand = Errand::new(&stand, Some(user), Duration::from_secs_f64(arguments.schedule.seconds))?;
    let broker = Broker::start(&program, &stand.folder().join("service"), Some(&arguments.limits))?;
    let course = Course { arguments, stand: &stand, broker: &broker, program: &program, user, errand: &errand };
    let mut reports = Vec::new();
    for subject in arguments.setting.subjects()? {
        reports.push(course.measure(&subject)?);
    }
    let ended = broker.end().and(stand.clear());
    Report::print(&reports, &arguments.setting.contest).and(ended)
}

struct Course<'run> {
    arguments: &'run Arguments,
    stand: &'run Stand,
    broker: &'run Broker,
    program: &'run Path,
    user: OrdinaryUser,
    errand: &'run Errand,
}

impl Course<'_> {
    fn measure(&self, subject: &Subject) -> Outcome<Report> {
        let (entrants, absent) = self.entrants(subject)?;
        let trials = Trials {
            stand: self.stand,
            errand: self.errand,
            setting: &self.arguments.setting,
            schedule: &self.arguments.schedule,
            defaults: &WORKLOADS,
            subject,
        };
        let results = trials.run(&entrants)?;
        let versions =
            entrants.into_iter().map(|entrant| (entrant.contender.name, entrant.contender.version)).collect();
        let named = Subject { title: format!("an ordinary user, {}", subject.title), ..subject.clone() };
        Report::new(&named, versions, absent, results)
    }

    /// The contenders, and why others do not take part.
    fn entrants(&self, subject: &Subject) -> Outcome<(Vec<Entrant>, Vec<String>)> {
        let contest = &self.arguments.setting.contest;
        let (mut entrants, mut absent) = (Vec::new(), Vec::new());
        let of_floe = |contender, front| Entrant { contender, front: Some(front), cache: None };
        let options = |front: Front| format!("front={}", front.name());
        for (name, front) in [("front", Front::Kernel), ("fuse", Front::Fuse)] {
            let socket = self.broker.users_socket();
            let contender = Contender::service(name, self.program, &socket, &options(front))?.of_user(self.user);
            entrants.push(of_floe(contender, front));
        }
        let peer = Contender::fuse_peer(subject.image.format, contest);
        match peer.and_then(|peer| may_open_fuse().map(|()| peer)) {
            Ok(peer) => entrants.push(Entrant { contender: peer.of_user(self.user), front: None, cache: None }),
            Err(reason) => absent.push(reason),
        }
        match Contender::kernel(subject.image.format) {
            Ok(kernel) => entrants.push(Entrant { contender: kernel.named("root-kernel"), front: None, cache: None }),
            Err(reason) => absent.push(reason),
        }
        let cache = entrant::new_cache(self.stand.folder())?;
        let kept = format!("{},front-metadata=keep,cache-directory={}", options(Front::Kernel), cache.display());
        let contender = Contender::floe("root-front", self.program, &["-o".to_owned(), kept])?;
        entrants.push(Entrant { cache: Some(cache), ..of_floe(contender, Front::Kernel) });
        let contender =
            Contender::service("root-service", self.program, &self.broker.socket(), &options(Front::Kernel))?;
        entrants.push(of_floe(contender, Front::Kernel));
        entrants.retain(|entrant| contest.takes(&entrant.contender.name));
        Ok((entrants, absent))
    }
}

/// Whether ordinary users may open /dev/fuse, as they may where udev has created it.
fn may_open_fuse() -> Result<(), String> {
    let mode = fs::metadata("/dev/fuse").map_err(|error| format!("/dev/fuse: {error}"))?.permissions().mode();
    let is_open = mode & 0o006 == 0o006;
    is_open
        .then_some(())
        .ok_or("erofsfuse and squashfuse_ll: only root may open /dev/fuse (chmod 666 /dev/fuse)".to_owned())
}
