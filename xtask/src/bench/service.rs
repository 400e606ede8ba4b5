//! Benchmarks of the service.

mod broker;
mod census;
mod fleet;
mod front;
mod idle;
mod image_set;
mod stand;
mod tree_digest;

use clap::Subcommand;

use crate::task_error::Outcome;

/// Measure the service: many idle mounts, its speed, ordinary users, readers under load
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Many idle mounts: memory, threads, wake-ups, time of a mount
    #[command(mut_arg("rounds", |rounds| rounds.default_value("1")))]
    Idle(idle::Arguments),
}

/// Runs a benchmark.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.what {
        What::Idle(arguments) => idle::run(arguments),
    }
}
