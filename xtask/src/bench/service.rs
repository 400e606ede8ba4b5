//! Benchmarks of the service.

mod autogroup;
mod broker;
mod census;
mod entrant;
mod errand;
mod file_list;
mod fleet;
mod front;
mod idle;
mod image_set;
mod launch;
mod reader_set;
mod readers;
mod speed;
mod stand;
mod tree_digest;
mod trials;
mod user;

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
    /// One image in the service, and in a process of its own
    Speed(speed::Arguments),
    /// The mounts of an ordinary user
    User(user::Arguments),
    /// Readers of many images under load
    #[command(mut_arg("rounds", |rounds| rounds.default_value("10")))]
    Readers(readers::Arguments),
    /// Work in a process of its own.
    #[command(hide = true)]
    Errand(errand::Arguments),
}

/// Runs a benchmark.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.what {
        What::Idle(arguments) => idle::run(arguments),
        What::Speed(arguments) => speed::run(arguments),
        What::User(arguments) => user::run(arguments),
        What::Readers(arguments) => readers::run(arguments),
        What::Errand(arguments) => errand::run(arguments),
    }
}
