//! `floe tune`: changes options of a mount that is running.

use std::path::PathBuf;

use crate::{
    control::{Answer, Mounted, Question},
    exit::Exit,
    fail::Fail,
    output::Output,
};

/// Change options of a mount that is running; without any, list them
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Arguments {
    /// The directory it is mounted on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options and their values, as -o of floe mount takes them
    #[arg(value_name = "KEY=VALUE")]
    changes: Vec<String>,
}

const HELP: &str = "\
All changes are checked before the first is made. Only the user who mounted may make any.

Examples:
  floe tune /mnt
  floe tune /mnt cache=256M read-around=off
  floe tune /mnt priority=normal workers=shared

Exit codes:
  0  it was done
  1  it is no mount of Floe, is another user's, its program is gone, or it refuses
  2  wrong usage";

/// Runs the command.
///
/// # Errors
/// The mount does not answer, or refuses.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Fail> {
    let mounted = Mounted::find(&arguments.directory)?;
    if !arguments.changes.is_empty() {
        return mounted.ask(&Question::Tune(arguments.changes)).map(|_| Exit::Done.code());
    }
    let Answer::Options(options) = mounted.ask(&Question::Options)? else {
        return Err(Fail::failed("the mount is served by another version of Floe: use the same program"));
    };
    Output::run(|writer| {
        for option in &options {
            let remark = if option.is_tunable { "" } else { "  (fixed while mounted)" };
            writeln!(writer, "{}={}{remark}", option.key, option.value)?;
        }
        Ok(Exit::Done.code())
    })
}
