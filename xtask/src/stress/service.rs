//! `cargo xtask stress --domain-kills …`: kills and upgrades the processes of a service while its mounts are used, and measures how
//! long readers wait.

mod pauses;
mod served;
mod uses;

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{Random, skip::Need};

use self::{
    pauses::{Event, Pauses},
    served::Served,
    uses::Uses,
};
use super::Arguments;
use crate::task_error::{During, Outcome, TaskError};

/// The number of files of the tree, and the length of each.
const FILES: usize = 64;
const FILE_BYTES: usize = 1 << 20;

/// The shortest and the longest time between two events, in milliseconds. The time without an event is measured, too.
const INTERVAL_MS: (u64, u64) = (600, 1800);

/// How long mounts may take to be managed again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets readers use mounts of a service through FUSE and behind the kernel's EROFS, of both formats, while events happen in random
/// order. Prints how long readers wait.
///
/// # Errors
/// A read fails or has wrong bytes, a mount is lost, or a mount is not managed after an event.
pub(super) fn run(arguments: &Arguments, program: &Path) -> Outcome {
    let mut random = Random::new(arguments.seed);
    let folder = tempfile::Builder::new().prefix("floe-stress-").tempdir()?;
    let tree = folder.path().join("tree");
    let contents = uses::write_tree(&tree, FILES, FILE_BYTES, &mut random)?;
    // The name shows which program runs.
    let copies = [folder.path().join("first"), folder.path().join("second")];
    for copy in &copies {
        floe_testkit::copy_program(program, copy);
    }
    let mut served = Served::start(&copies[0], folder.path())?;
    for (format, compressor) in [("erofs", "lz4"), ("squashfs", "zstd")] {
        let image = folder.path().join(format);
        let mut made = Command::new(program);
        made.args(["mkfs", "--format", format, "--compress", compressor]).arg(&image).arg(&tree);
        let output = made.output().during("floe mkfs")?;
        if !output.status.success() {
            return Err(TaskError::new(String::from_utf8_lossy(&output.stderr).trim()));
        }
        let fronts: &[&str] = match Need::KernelErofs.missing() {
            None => &["fuse", "kernel"],
            Some(missing) => {
                eprintln!("without the kernel's EROFS in front: {missing}");
                &["fuse"]
            }
        };
        for front in fronts {
            served.mount(&image, front)?;
        }
    }
    let mut events = Vec::new();
    for (event, count) in [
        (Event::DomainKill, arguments.domain_kills),
        (Event::BrokerKill, arguments.broker_kills),
        (Event::Upgrade, arguments.upgrades),
    ] {
        events.extend((0..count).map(|_| event));
    }
    for last in (1..events.len()).rev() {
        events.swap(last, random.below(last as u64 + 1) as usize);
    }
    let uses = Uses::begin(&served.places(), &contents)?;
    let (mut pauses, mut upgrades) = (Pauses::default(), 0);
    let (shortest, longest) = INTERVAL_MS;
    let outcome = events.iter().enumerate().try_for_each(|(index, event)| -> Outcome {
        let quiet = Instant::now();
        thread::sleep(Duration::from_millis(shortest + random.below(longest - shortest)));
        pauses.add(Event::None, uses.longest_since(quiet));
        let began = Instant::now();
        match event {
            Event::DomainKill => served.kill_domain(&mut random)?,
            Event::BrokerKill => served.replace_broker(&copies[upgrades % 2])?,
            Event::Upgrade => {
                upgrades += 1;
                served.upgrade(&copies[upgrades % 2])?;
            }
            Event::None => {}
        }
        // Also what ends later.
        served.wait_until_managed(PATIENCE)?;
        thread::sleep(Duration::from_millis(shortest / 2));
        pauses.add(*event, uses.longest_since(began));
        uses.check().during(format!("event {index}, {event:?}"))?;
        if (index + 1).is_multiple_of(20) {
            eprintln!("{:>4} events, {} reads", index + 1, uses.reads());
        }
        Ok(())
    });
    let reads = uses.reads();
    outcome.and(uses.end())?;
    let messages = served.end()?;
    print!("{pauses}");
    println!("{} events, {reads} reads, none failed, no wrong byte, no mount lost", events.len());
    let lost: Vec<_> = messages.lines().filter(|line| line.contains("lost") || line.contains("not managed")).collect();
    if lost.is_empty() { Ok(()) } else { Err(TaskError::new(lost.join("\n"))) }
}
