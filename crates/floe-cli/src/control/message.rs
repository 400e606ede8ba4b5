//! What is asked and answered.

use serde::{Deserialize, Serialize};

use crate::{mount_options::ShownOption, status::Report};

/// What a mount is asked.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    /// How it does.
    Status,
    /// Which options it has.
    Options,
    /// To change options: `key=value` each.
    Tune(Vec<String>),
}

/// What it answers.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// How it does.
    Status(Box<Report>),
    /// Its options as they are now.
    Options(Vec<ShownOption>),
    /// It does not do it, and why: one line.
    Refused(String),
}
