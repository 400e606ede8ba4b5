//! Benchmarks against other programs.

mod cold;
mod containers;
mod contender;
mod extract;
mod kept;
mod listing;
mod mkfs;
mod mkfs_options;
mod ordinary_user;
mod process_tree;
mod read;
mod remote;
mod report;
mod requests;
mod results;
mod scale;
mod service;
mod session;
mod setting;
mod subject;
mod workload;

use clap::Subcommand;
pub(crate) use containers::Node;
pub(crate) use session::Session;

use crate::task_error::Outcome;

/// Benchmarks against other programs.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Reading through a mount: Floe, the FUSE peers and the kernel, interleaved, always cold.
    Read(read::Arguments),
    /// Extracting or checking whole images: Floe and the reference tools, interleaved, always cold.
    Extract(extract::Arguments),
    /// Building images: Floe, mkfs.erofs and mksquashfs, interleaved.
    Mkfs(mkfs::Arguments),
    /// Building images of growing trees: many files, much data, a sparse file.
    Scale(scale::Arguments),
    /// The service: many idle mounts, its speed, ordinary users, readers under load.
    Service(service::Arguments),
    /// Launching out of images in a registry: Floe, a download of all, and the limit, always cold.
    Remote(remote::Arguments),
    /// Containers out of images in a registry, with a real containerd, and the conversion of images.
    Containers(containers::Arguments),
}

/// Runs a benchmark.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.what {
        What::Read(arguments) => read::run(arguments),
        What::Extract(arguments) => extract::run(arguments),
        What::Mkfs(arguments) => mkfs::run(arguments),
        What::Scale(arguments) => scale::run(arguments),
        What::Service(arguments) => service::run(arguments),
        What::Remote(arguments) => remote::run(arguments),
        What::Containers(arguments) => containers::run(arguments),
    }
}
