//! `floe tune`: changes options of a running mount.

use std::path::PathBuf;

use crate::{
    fail::{Exit, Fail},
    output::Output,
};
use floe_mount::control::{Answer, Client, Question};

/// Change options of a running mount; without KEY=VALUE, list them
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The mountpoint
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options and their values, as for -o of floe mount
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

const HELP: &str = "\
All changes are checked before the first one is applied. Only the user who mounted the image can
change options.

Examples:
  floe tune /mnt
  floe tune /mnt cache=256M+1G prefetch=sequential
  floe tune /mnt priority=normal workers=shared

Exit codes:
  0  done
  1  not a mount of Floe, the mount of another user, its program is gone, or it refuses
  2  wrong usage";

/// Runs the command.
///
/// # Errors
/// The mount does not answer, or refuses the change.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let mounted = Client::find(&arguments.directory)?;
    if !arguments.changes.is_empty() {
        mounted.ask(&Question::Tune(arguments.changes))?;
        return Ok(Exit::Done.code());
    }
    let Answer::Options(options) = mounted.ask(&Question::Options)? else {
        return Err(Fail::failed("the mount is served by another version of Floe: use the program that serves it"));
    };
    Output::run(|writer| {
        for option in &options {
            let remark = if option.is_tunable { "" } else { "  (fixed while mounted)" };
            writeln!(writer, "{}={}{remark}", option.key, option.value)?;
        }
        Ok(Exit::Done.code())
    })
}
