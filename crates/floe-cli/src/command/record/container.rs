//! Records what a container reads from its layers.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use floe_image::ShownName;
use floe_keeper::MountTable;
use floe_mkfs::{NameUsage, Profile, ProfileStep, RecordedStep};
use floe_mount::quantity;

use super::counts;
use crate::{
    cancellation,
    fail::{Exit, Fail},
    output::{ReportFile, remark},
};
use layers::ContainerLayers;
use recording::Recording;

mod layers;
mod recording;

/// A launch is over when nothing new was used for this long.
const QUIET: Duration = Duration::from_secs(5);

/// The maximum duration of a recording.
const TIME_MAX: Duration = Duration::from_secs(60);

/// How often a container that does not exist yet is looked for, and how often its accesses are counted.
const SEARCH_INTERVAL: Duration = Duration::from_millis(20);
const COUNT_INTERVAL: Duration = Duration::from_millis(200);

/// The file that makes the kernel drop its caches, and what is written into it for pages, names and inodes.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Which container is recorded, and how.
#[derive(Args)]
pub(crate) struct ContainerArguments {
    /// Record what this container reads from layers that Floe has mounted, until nothing new is read for 5 seconds, for at most a
    /// minute. The container may start later
    #[arg(long, value_name = "ID", conflicts_with_all = ["directory", "command"])]
    container: Option<String>,

    /// The same for the container with this control group, below /sys/fs/cgroup
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["directory", "command", "container"])]
    cgroup: Option<PathBuf>,

    /// Record a container for this long, from its first access on
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    duration: Option<Duration>,

    /// Let the kernel drop its caches before, so that reads of cached bytes are visible. It has one cache for the whole machine
    #[arg(long)]
    drop_caches: bool,
}

/// Records a container, and writes the profile.
///
/// # Errors
/// No layer of the container is a mount of Floe, or the profile cannot be written.
pub(crate) fn run(arguments: &ContainerArguments, output: &Path) -> Result<u8, Fail> {
    let wanted = match (&arguments.container, &arguments.cgroup) {
        (Some(id), _) => Wanted::Container(id),
        (None, Some(group)) => Wanted::Group(group),
        (None, None) => return Err(Fail::usage("name a container")),
    };
    let output_file = ReportFile::open(output)?;
    let cancel = cancellation::on_signals()?;
    let is_cancelled = || cancel.load(std::sync::atomic::Ordering::Relaxed);
    let mut recording = Recording::default();
    let mut found = wanted.layers()?;
    if arguments.drop_caches {
        fs::write(DROP_CACHES, "3").map_err(|error| Fail::failed(format!("{DROP_CACHES}: {error}")))?;
    }
    if found.is_none() {
        remark(format_args!("waiting for {wanted}\n"));
    }
    // Layers are recorded before the container exists, because its first reads are the ones that matter.
    let layers = loop {
        recording.begin(&table()?, found.as_ref());
        if let Some(layers) = found {
            break layers;
        }
        if is_cancelled() {
            return Err(Fail::failed(format!("{wanted} has not started")).with_exit(Exit::Interrupted));
        }
        thread::sleep(SEARCH_INTERVAL);
        found = wanted.layers()?;
    };
    recording.keep(&layers.devices);
    if recording.is_empty() {
        return Err(Fail::failed(format!("{wanted} has no layer that this user has mounted with Floe")));
    }
    remark(format_args!("recording {wanted}\n"));
    let (mut count, mut begun, mut changed) = (0, None, Instant::now());
    while !is_cancelled() && layers.is_there() {
        let now = recording.count();
        if now > count {
            (count, changed) = (now, Instant::now());
            begun.get_or_insert(changed);
        }
        let is_over = begun.is_some_and(|begun: Instant| match arguments.duration {
            Some(duration) => begun.elapsed() >= duration,
            None => changed.elapsed() >= QUIET || begun.elapsed() >= TIME_MAX,
        });
        if is_over {
            break;
        }
        thread::sleep(COUNT_INTERVAL);
    }
    let profile = merged(&recording.end()?);
    output_file.write(profile.to_text().as_bytes())?;
    say!("floe: {} are in {}; floe convert --profile places their files first", counts(&profile), output.shown());
    Ok(Exit::Done.code())
}

/// The container that is to be recorded.
enum Wanted<'a> {
    Container(&'a str),
    Group(&'a Path),
}

impl Wanted<'_> {
    /// The layers of the container, if it exists.
    fn layers(&self) -> Result<Option<ContainerLayers>, Fail> {
        match self {
            Self::Container(id) => Ok(ContainerLayers::of_container(id)),
            Self::Group(group) => Ok(ContainerLayers::of_group(group)),
        }
    }
}

impl std::fmt::Display for Wanted<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Container(id) => write!(formatter, "the container {}", id.escape_debug()),
            Self::Group(group) => write!(formatter, "the control group {}", group.shown()),
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    quantity::limit(text)?.ok_or_else(|| format!("'{text}' is not a duration, such as 30s"))
}

fn table() -> Result<MountTable, Fail> {
    MountTable::read().map_err(|error| Fail::failed(format!("cannot read the mount table: {error}")))
}

/// One profile of those of all layers, the uppermost first. A name that an upper layer does not have is not missing if a lower one has it.
fn merged(profiles: &[Profile]) -> Profile {
    let mut found: HashSet<&[u8]> = HashSet::new();
    for step in profiles.iter().flat_map(Profile::steps) {
        match step {
            ProfileStep::Range(range) => drop(found.insert(&range.path)),
            ProfileStep::Name(name) if name.usage != NameUsage::Missing => drop(found.insert(&name.path)),
            ProfileStep::Name(_) => {}
        }
    }
    let steps = profiles.iter().flat_map(Profile::steps).filter_map(|step| match step {
        ProfileStep::Range(range) => Some(RecordedStep::Range(range.clone())),
        ProfileStep::Name(name) if name.usage == NameUsage::Missing && found.contains(&name.path[..]) => None,
        ProfileStep::Name(name) => Some(RecordedStep::Name(name.path.clone(), name.usage)),
    });
    Profile::of_steps(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_make_one_profile() {
        let profile = |text: &str| Profile::parse(&format!("# floe profile 2\n{text}")).expect("a profile");
        let upper = profile("missing /bin/sh\nmissing /etc/none\nlist /etc\n0 10 /etc/config\n");
        let lower = profile("missing /etc/none\n0 4096 /bin/sh\nname /lib\n");
        let text = merged(&[upper, lower]).to_text();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines, ["missing /etc/none", "list /etc", "0 10 /etc/config", "0 4096 /bin/sh", "name /lib"]);
    }
}
