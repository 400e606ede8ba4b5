//! Measurements beside the peers.

mod cold;
mod contender;
mod extract;
mod listing;
mod mkfs;
mod mkfs_options;
mod read;
mod report;
mod results;
mod session;
mod setting;
mod subject;
mod workload;

use clap::Subcommand;

use crate::complaint::Outcome;

/// Measurements beside the peers.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Reading through a mount: Floe, the FUSE peers and the kernel, interleaved, each time cold.
    Read(read::Arguments),
    /// Whole images extracted or checked: Floe and the reference tools, interleaved, each time cold.
    Extract(extract::Arguments),
    /// Images built: Floe, mkfs.erofs and mksquashfs, interleaved.
    Mkfs(mkfs::Arguments),
}

/// Measures.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.what {
        What::Read(arguments) => read::run(arguments),
        What::Extract(arguments) => extract::run(arguments),
        What::Mkfs(arguments) => mkfs::run(arguments),
    }
}
