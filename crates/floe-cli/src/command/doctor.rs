//! `floe doctor`: shows the capabilities of this machine.

mod advice;
mod facts;

use std::io;

use advice::{State, advise};
use facts::Facts;

use crate::{
    fail::{Exit, Fail},
    output::Output,
};

/// Show what this machine offers for mounts, what is missing, and the commands that fix it
#[derive(clap::Args)]
#[command(after_help = "\
Changes nothing. Run it as the user who will mount, and in the same container.

Exit codes:
  0  mounting works
  1  mounting does not work
  2  wrong usage")]
pub(crate) struct Arguments {
    /// Write one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Fail> {
    let all = advise(&Facts::gather());
    let works = all.iter().all(|advice| advice.state != State::Missing);
    let exit = if works { Exit::Done } else { Exit::Failed };
    Output::run(|writer| {
        for advice in &all {
            if arguments.json {
                writeln!(writer, "{}", serde_json::to_string(advice).map_err(io::Error::from)?)?;
                continue;
            }
            let mark = match advice.state {
                State::Good => "ok     ",
                State::Limited => "limited",
                State::Missing => "MISSING",
            };
            writeln!(writer, "{mark}  {:<19} {}", advice.topic, advice.finding)?;
            if !advice.remedy.is_empty() {
                writeln!(writer, "         {:<19} -> {}", "", advice.remedy)?;
            }
        }
        Ok(exit.code())
    })
}
