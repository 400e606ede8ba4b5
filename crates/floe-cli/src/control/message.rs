//! What is asked and answered.

use serde::{Deserialize, Serialize};

use crate::{status::Report, tuning::Switch};

/// What a mount is asked.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    /// How it does.
    Status,
    /// Which switches it has.
    Switches,
    /// To move switches: `key=value` each.
    Tune(Vec<String>),
}

/// What it answers.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// How it does.
    Status(Box<Report>),
    /// Its switches as they are now.
    Switches(Vec<Switch>),
    /// It does not do it, and why: one line.
    Refused(String),
}
