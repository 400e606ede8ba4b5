//! The project's own tasks: `cargo xtask --help`.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod dist;
mod fixtures;
mod mutate;
mod nightly;
mod roots;
mod roundtrip;
mod stress;
mod task_error;
mod tidy;

use clap::{Parser, Subcommand};
use task_error::TaskError;

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, lints, tidy and fixtures: all checks except the tests
    Lint,
    /// All checks: lint, then the tests
    Ci,
    /// Check what the compiler does not: dependencies between crates and modules, file lengths and names, unsafe code
    Tidy,
    /// Check the golden images in fixtures/, or rebuild them
    Fixtures(fixtures::Arguments),
    /// Build the files of a release: static programs, packages, a container image, checksums
    Dist(dist::Arguments),
    /// Measure Floe against other programs
    Bench(Box<bench::Arguments>),
    /// Build images of a real tree, read each with Floe, the kernel and the reference tool, and compare with the tree
    Roundtrip(roundtrip::Arguments),
    /// Make container images of real systems, and compare the trees that containerd and Floe give
    Roots(roots::Arguments),
    /// Mutate the structures of real images, and run everything that reads images on them
    Mutate(Box<mutate::Arguments>),
    /// Run the tests on every reference image, and those that take hours
    Nightly(nightly::Arguments),
    /// Read, tune, query and unmount real mounts at random; all pages must return to the pool
    Stress(stress::Arguments),
}

fn main() -> Result<(), TaskError> {
    match Arguments::parse().task {
        Task::Lint => ci::lint(),
        Task::Ci => ci::all(),
        Task::Tidy => tidy::run(),
        Task::Fixtures(arguments) => fixtures::run(&arguments),
        Task::Roundtrip(arguments) => roundtrip::run(&arguments),
        Task::Roots(arguments) => roots::run(&arguments),
        Task::Mutate(arguments) => mutate::run(&arguments),
        Task::Nightly(arguments) => nightly::run(&arguments),
        Task::Stress(arguments) => stress::run(&arguments),
        Task::Dist(arguments) => dist::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
    }
}
