//! Measurements beside the peers.

use crate::complaint::Outcome;

/// Measurements beside the peers.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// Measures.
pub(crate) fn run(_arguments: &Arguments) -> Outcome {
    Ok(())
}
