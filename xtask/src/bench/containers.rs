//! Containers of images in a registry.

mod conversion;
mod image;
mod launched;
mod layout;
mod mounters;
mod node;
mod nodes;
mod stargz;
mod start;

use clap::Subcommand;
pub(crate) use node::Node;

use crate::task_error::Outcome;

/// Containers of images in a registry, with a real containerd.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// From the pull to the first line of a program: Floe's snapshotter, containerd's own, and the limit, always cold
    Start(start::Arguments),
    /// Launches with what Floe mounts and what other programs mount: apptainer, an AppImage, rootless Podman, always cold
    Mounters(mounters::Arguments),
    /// Converting the layers of an image to EROFS: Floe and ctr
    Convert(conversion::Arguments),
    /// 1,000 nodes that start an image at the same time, simulated: bytes from the registry, and when nodes are ready
    Nodes(nodes::Arguments),
}

/// Runs a benchmark.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    match &arguments.what {
        What::Start(arguments) => start::run(arguments),
        What::Mounters(arguments) => mounters::run(arguments),
        What::Convert(arguments) => conversion::run(arguments),
        What::Nodes(arguments) => nodes::run(arguments),
    }
}
