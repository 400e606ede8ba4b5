//! The project's own tasks: `cargo xtask --help`.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod complaint;
mod dist;
mod fixtures;
mod mutate;
mod roundtrip;
mod stress;
mod tidy;

use clap::{Parser, Subcommand};
use complaint::Complaint;

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, docs, tidy and fixtures: everything that is checked beside the tests.
    Lint,
    /// Everything that is checked: lint, then the tests.
    Ci,
    /// Check what the compiler does not: who depends on whom, file lengths and names, where unsafe code is.
    Tidy,
    /// Check the golden images in fixtures/, or make them anew.
    Fixtures(fixtures::Arguments),
    /// Build what a release consists of: static programs, packages, a container image, sums.
    Dist(dist::Arguments),
    /// Measure Floe beside its peers.
    Bench(Box<bench::Arguments>),
    /// Make images of a real tree, read each by Floe, the kernel and the reference tool, and compare all with the tree.
    Roundtrip(roundtrip::Arguments),
    /// Change the structures of real images, and send them through everything that reads them.
    Mutate(Box<mutate::Arguments>),
    /// Read, tune, ask and unmount real mounts at random; all pages must come back.
    Stress(stress::Arguments),
}

fn main() -> Result<(), Complaint> {
    match Arguments::parse().task {
        Task::Lint => ci::lint(),
        Task::Ci => ci::all(),
        Task::Tidy => tidy::run(),
        Task::Fixtures(arguments) => fixtures::run(&arguments),
        Task::Roundtrip(arguments) => roundtrip::run(&arguments),
        Task::Mutate(arguments) => mutate::run(&arguments),
        Task::Stress(arguments) => stress::run(&arguments),
        Task::Dist(arguments) => dist::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
    }
}
