//! Output files of a measurement.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{fail::Fail, output::Output};

/// Output files of a measurement, besides the table on standard output.
#[derive(clap::Args)]
pub(super) struct Outputs {
    /// Write all raw values and the environment as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Outputs {
    /// Writes the text to standard output, and the requested files.
    ///
    /// # Errors
    /// An output cannot be written.
    pub(super) fn write(&self, text: &str, page: impl FnOnce() -> String, report: &impl Serialize) -> Result<(), Fail> {
        Output::run(|out| out.write_all(text.as_bytes()).map(|()| 0))?;
        if let Some(path) = &self.html {
            fs::write(path, page()).map_err(|error| not_written(path, &error))?;
        }
        if let Some(path) = &self.json {
            let bytes = serde_json::to_vec(report).map_err(|error| Fail::failed(error.to_string()))?;
            fs::write(path, bytes).map_err(|error| not_written(path, &error))?;
        }
        Ok(())
    }
}

fn not_written(path: &Path, error: &std::io::Error) -> Fail {
    Fail::failed(format!("{}: {error}", path.display()))
}
