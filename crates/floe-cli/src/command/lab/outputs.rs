//! Output files of a measurement.

use std::path::PathBuf;

use serde::Serialize;

use crate::{fail::Fail, output::Output, report_file::ReportFile};

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

/// The output files, open for writing.
pub(super) struct OpenOutputs {
    json: Option<ReportFile>,
    html: Option<ReportFile>,
}

impl Outputs {
    /// Opens the files, before the measurement.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn open(&self) -> Result<OpenOutputs, Fail> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(ReportFile::open).transpose();
        Ok(OpenOutputs { json: open(&self.json)?, html: open(&self.html)? })
    }
}

impl OpenOutputs {
    /// Writes the requested files, and the text to standard output.
    ///
    /// # Errors
    /// An output cannot be written.
    pub(super) fn write(self, text: &str, page: impl FnOnce() -> String, report: &impl Serialize) -> Result<(), Fail> {
        if let Some(file) = self.html {
            file.write(page().as_bytes())?;
        }
        if let Some(file) = self.json {
            file.write(&serde_json::to_vec(report).map_err(|error| Fail::failed(error.to_string()))?)?;
        }
        Output::run(|out| out.write_all(text.as_bytes()).map(|()| 0)).map(drop)
    }
}
