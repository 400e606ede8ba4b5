//! What a mount has done, written down when it ends.

use std::path::Path;

use floe_engine::{Engine, Stage};
use serde_json::{Value, json};

use crate::fail::Fail;

/// Writes the counters of `engine`, and how long the stages of its reads took, to `path` as JSON.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(engine: &Engine, path: &Path) -> Result<(), Fail> {
    std::fs::write(path, account(engine).to_string())
        .map_err(|error| Fail::failed(format!("cannot write {}: {error}", path.display())))
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
