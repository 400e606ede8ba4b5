//! What a mount has done, written down when it ends.

use std::{fs::File, io::Write, path::PathBuf};

use floe_engine::{Engine, Stage};
use serde_json::{Value, json};

use crate::fail::Fail;

/// A file for the account, made before there is anything to tell: whoever removes it meanwhile finds nothing later.
pub(crate) struct AccountFile {
    file: File,
    path: PathBuf,
}

impl AccountFile {
    /// Makes the file.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn create(path: PathBuf) -> Result<Self, Fail> {
        match File::create(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(error) => Err(Fail::failed(format!("cannot write {}: {error}", path.display()))),
        }
    }

    /// Writes the counters of `engine`, and how long the stages of its reads took, as JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(mut self, engine: &Engine) -> Result<(), Fail> {
        let written = self.file.write_all(account(engine).to_string().as_bytes());
        written.map_err(|error| Fail::failed(format!("cannot write {}: {error}", self.path.display())))
    }
}

fn account(engine: &Engine) -> Value {
    let counters = engine.counters();
    let stages = Stage::ALL.map(|stage| {
        let summary = engine.latency(stage);
        let value = json!({
            "count": summary.count,
            "total_ns": summary.total_ns,
            "p50_ns": summary.p50_ns,
            "p99_ns": summary.p99_ns,
            "max_ns": summary.max_ns,
        });
        (stage.name().replace(' ', "_"), value)
    });
    json!({
        "stages": stages.into_iter().collect::<serde_json::Map<_, _>>(),
        "pages": {
            "reserved": counters.pages.reserved_pages,
            "locked": counters.pages.locked,
            "taken": counters.pages.taken,
            "missed": counters.pages.missed,
            "given_up": counters.pages.given_up,
            "high_water": counters.pages.high_water_pages,
        },
        "metadata": {
            "hits": counters.decoded_metadata.hits,
            "misses": counters.decoded_metadata.misses,
            "waits": counters.decoded_metadata.waits,
            "wakes": counters.decoded_metadata.wakes,
            "releases": counters.decoded_metadata.releases,
        },
        "fetches": counters.fetches,
        "fetched_bytes": counters.fetched_bytes,
        "decodes": counters.decodes,
        "decoded_bytes": counters.decoded_bytes,
    })
}
