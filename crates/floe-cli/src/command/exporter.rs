//! `floe exporter`: metrics of all mounts for Prometheus.

mod collect;
mod peer;
mod serve;

use std::net::SocketAddr;

use crate::fail::Fail;
use serve::serve;

/// Serve the metrics of all mounts of this machine to Prometheus
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9598")]
    listen: SocketAddr,
    /// Include the mounts of all users; only root can use this
    #[arg(long)]
    all_users: bool,
}

const HELP: &str = "\
The metrics are those of floe status --prometheus, and floe_mount_up: 0 if the program that serves
a mount does not answer. Each scrape finds the mounts anew.

Examples:
  floe exporter
  floe exporter --all-users --listen '[::]:9598'
  systemctl enable --now floe-exporter";

/// Runs the command.
///
/// # Errors
/// The address cannot be used, or this user may not query the mounts of others.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    if arguments.all_users && !rustix::process::geteuid().is_root() {
        return Err(Fail::usage("only root may use --all-users"));
    }
    match serve(arguments.listen, arguments.all_users) {
        Err(error) => Err(Fail::failed(format!("cannot serve metrics at {}: {error}", arguments.listen))),
    }
}
