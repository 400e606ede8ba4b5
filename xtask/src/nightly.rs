//! Endurance: the tests on every reference image, and what takes too long before a change is accepted.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use floe_testkit::workspace_root;

use crate::task_error::{During, Outcome, TaskError};

/// Runs the long tests: all parts, or those named.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The parts to run; without any, all
    parts: Vec<String>,
    /// List the parts with their times, and run nothing
    #[arg(long)]
    list: bool,
}

/// A part of the nightly run.
struct Part {
    name: &'static str,
    about: &'static str,
    /// About how long it takes on two CPUs.
    minutes: u32,
    /// The arguments of cargo, separated by spaces.
    command: &'static str,
    /// Variables of the environment, as `NAME=value` separated by spaces.
    variables: &'static str,
}

const PARTS: &[Part] = &[
    Part {
        name: "docs",
        about: "the documentation of all crates, private items included, without a warning",
        minutes: 3,
        command: "doc --workspace --no-deps --document-private-items",
        variables: "RUSTDOCFLAGS=-Dwarnings",
    },
    Part {
        name: "images",
        about: "all tests, with every reference image instead of one in twenty, and all combinations of options",
        minutes: 30,
        command: "test --workspace --no-fail-fast",
        variables: "FLOE_IMAGES=all FLOE_GO=1",
    },
    Part {
        name: "combinations",
        about: "every reference image with all 24 combinations of the engine's options",
        minutes: 10,
        command: "test -p floe --test library -- --ignored",
        variables: "FLOE_IMAGES=all",
    },
    Part {
        name: "faults",
        about: "every single read of the source fails once",
        minutes: 15,
        command: "test -p floe-cli --test reading faults",
        variables: "FLOE_FAULTS=all",
    },
    Part {
        name: "handovers",
        about: "a mount changes its process 100 times and is killed 40 times",
        minutes: 5,
        command: "test -p floe-cli --test mounts handover",
        variables: "FLOE_HANDOVERS=100",
    },
    Part {
        name: "outages",
        about: "servers of remote images fail for a minute each",
        minutes: 20,
        command: "test -p floe-cli --test remotes remote_faults",
        variables: "FLOE_OUTAGE_S=60",
    },
    Part {
        name: "cache",
        about: "the disk cache after 2,000 power losses, 200 killed processes and 10,000 corrupt files",
        minutes: 10,
        command: "test -p floe-remote-cache --test cache",
        variables: "FLOE_POWER_LOSSES=2000 FLOE_KILLS=200 FLOE_CORRUPT_FILES=2000 FLOE_HOSTILE_FETCHERS=700",
    },
    Part {
        name: "interrupted",
        about: "builds of images that are killed or fail at 200 random points in each of five ways",
        minutes: 15,
        command: "test -p floe-cli --test building interrupted",
        variables: "FLOE_INTERRUPTED_BUILDS=200",
    },
    Part {
        name: "roundtrip",
        about: "SquashFS images of ten packages and of the reference trees, with all compressors and block sizes",
        minutes: 60,
        command: "run --release -p xtask -- roundtrip --format squashfs --corpus --package coreutils --package bash \
                  --package tzdata --package perl-base --package libc6 --package openssl --package git --package vim-tiny \
                  --package python3.11-minimal --package iproute2 --every 6",
        variables: "",
    },
    Part {
        name: "roots",
        about: "container images of ten Debian systems: the trees of Floe against what containerd unpacks",
        minutes: 20,
        command: "run --release -p xtask -- roots",
        variables: "",
    },
    Part {
        name: "servers",
        about: "20,000 wrong answers of servers, and 200 clients at a time",
        minutes: 10,
        command: "test -p floe-remote",
        variables: "FLOE_HOSTILE_ANSWERS=20000 FLOE_CLIENTS=200",
    },
    Part {
        name: "interleavings",
        about: "the engine's shared structures under a scheduler that tries many interleavings",
        minutes: 10,
        command: "test -p floe-engine --lib --features shuttle",
        variables: "",
    },
    Part {
        name: "mutate",
        about: "mutated images, in everything that reads images",
        minutes: 60,
        command: "run --release -p xtask -- mutate --minutes 60 --jobs 2",
        variables: "",
    },
    Part {
        name: "kept",
        about: "what is kept of 10,000 mutated images, mounted by the kernel",
        minutes: 5,
        command: "test -p floe-front --test images mutated",
        variables: "FLOE_MUTATED=10000 FLOE_IMAGES=all",
    },
    Part {
        name: "stress",
        about: "real mounts under random load, with dropped caches and killed processes",
        minutes: 60,
        command: "run --release -p xtask -- stress --minutes 60 --jobs 2 --drop-caches",
        variables: "",
    },
];

/// How long each fuzz target runs, in minutes.
const FUZZ_MINUTES: u32 = 10;

/// Runs the parts one after the other, past failures, and then prints the result and the time of each.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let targets = fuzz_targets()?;
    let names = || PARTS.iter().map(|part| part.name).chain(["fuzz"]);
    if let Some(unknown) = arguments.parts.iter().find(|name| !names().any(|known| known == name.as_str())) {
        let known: Vec<&str> = names().collect();
        return Err(TaskError::new(format!("there is no part '{unknown}', only {}", known.join(", "))));
    }
    if arguments.list {
        for Part { name, about, minutes, .. } in PARTS {
            println!("{name:<14} {minutes:>4} min  {about}");
        }
        let minutes = FUZZ_MINUTES * targets.len() as u32;
        println!(
            "{:<14} {minutes:>4} min  {} fuzz targets (needs cargo-fuzz and a nightly compiler)",
            "fuzz",
            targets.len()
        );
        return Ok(());
    }
    let is_wanted = |name: &str| arguments.parts.is_empty() || arguments.parts.iter().any(|part| part == name);
    let mut results = Vec::new();
    for part in PARTS.iter().filter(|part| is_wanted(part.name)) {
        results.push(timed(part.name, || cargo(part.command.split(' '), part.variables)));
    }
    if is_wanted("fuzz") {
        for target in targets {
            let seconds = format!("-max_total_time={}", FUZZ_MINUTES * 60);
            let command = ["+nightly", "fuzz", "run", &target, "--", &seconds];
            results.push(timed(&format!("fuzz {target}"), || cargo(command.into_iter(), "")));
        }
    }
    let mut failures = Vec::new();
    println!("== nightly");
    for (name, took, result) in results {
        println!("{name:<24} {:>5} s  {}", took.as_secs(), if result.is_ok() { "passed" } else { "FAILED" });
        failures.extend(result.err().map(|error| format!("{name}: {error}")));
    }
    TaskError::from_lines("nightly parts failed", &failures)
}

fn timed(name: &str, work: impl FnOnce() -> Outcome) -> (String, Duration, Outcome) {
    println!("== {name}");
    let started = Instant::now();
    let result = work();
    (name.to_owned(), started.elapsed(), result)
}

fn cargo<'a>(arguments: impl Iterator<Item = &'a str>, variables: &str) -> Outcome {
    // `+nightly` is an argument of the proxy in PATH, not of the cargo that runs this task.
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(workspace_root());
    command.envs(variables.split(' ').filter_map(|variable| variable.split_once('=')));
    for variable in ["CARGO", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    let status = command.status().during("cargo cannot be run")?;
    if status.success() { Ok(()) } else { Err(TaskError::new(format!("cargo ends with {status}"))) }
}

/// The names of the fuzz targets.
fn fuzz_targets() -> Outcome<Vec<String>> {
    let folder = workspace_root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).during(folder.display())? {
        names.extend(entry?.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}
