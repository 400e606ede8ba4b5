//! `mount.fuse.floe`: the helper that mount(8) calls for `mount -t fuse.floe IMAGE DIR`.

use std::ffi::OsString;

use clap::Parser;
use floe_sandbox::Mode;

use super::mount::{Order, fulfil};
use crate::{
    exit::Exit,
    fail::Fail,
    mount_options::{Settings, Strictness},
};

/// Mounts an image for mount(8).
#[derive(Parser)]
#[command(name = "mount.fuse.floe", version)]
struct Arguments {
    /// The image
    image: OsString,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    directory: OsString,
    /// Options: key=value,… (see floe mount -o help)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown options
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything except mounting
    #[arg(short = 'f')]
    fake: bool,
    /// Has no effect
    #[arg(short = 'n')]
    no_table: bool,
    /// Has no effect
    #[arg(short = 'v')]
    verbose: bool,
    /// The file system type; has no effect
    #[arg(short = 't', value_name = "TYPE")]
    file_system: Option<String>,
    /// A mount namespace; has no effect
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// Runs the helper, which returns when the mount works.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    let arguments = Arguments::try_parse_from(arguments).unwrap_or_else(|error| {
        let _ = error.print();
        // To mount(8), exit code 1 means wrong usage.
        std::process::exit(if error.use_stderr() { 1 } else { 0 })
    });
    let strictness = if arguments.sloppy { Strictness::Sloppy } else { Strictness::MountHelper };
    let mut settings = Settings { sandbox, ..Settings::default() };
    for list in &arguments.options {
        settings.take_list(list, strictness).map_err(|fail| fail.with_exit(Exit::Failed))?;
    }
    if arguments.fake {
        return Ok(Exit::Done.code());
    }
    let order = Order { in_background: true, ..Order::new(arguments.image, arguments.directory, settings) };
    match fulfil(order) {
        Ok(0) => Ok(Exit::Done.code()),
        Ok(_) => Ok(Exit::MountHelper.code()),
        Err(fail) => Err(fail.with_exit(Exit::MountHelper)),
    }
}
