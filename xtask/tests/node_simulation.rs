//! The simulation of nodes that start the same image, with few nodes: all start, and caches save what they are for.

use std::{process::Command, time::Duration};

use floe_testkit::run_bounded;
use serde_json::Value;

/// A generous time limit for a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

const NODES: u64 = 16;
const ZONES: u64 = 2;
const LAUNCH_MIB: u64 = 2;
const IMAGE_MIB: u64 = 8;

#[test]
fn nodes_start_and_caches_save_requests_to_the_registry() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["bench", "containers", "nodes", "--json", "--slower", "1", "--registry-round-trip", "2"]);
    for (option, value) in
        [("--nodes", NODES), ("--zones", ZONES), ("--launch", LAUNCH_MIB), ("--image", IMAGE_MIB), ("--within", 50)]
    {
        command.arg(option).arg(value.to_string());
    }
    let run = run_bounded(command.arg("--directory").arg(folder.path()), PATIENCE).expect("it runs");
    assert!(run.status.success(), "{}: {}", run.status, run.stderr);
    let rows: Vec<Value> = serde_json::from_slice(&run.stdout).expect("rows");
    let number = |scene: &str, is_warm: bool, field: &str| {
        let row = rows.iter().find(|row| row["scene"] == scene && row["is_warm"] == is_warm);
        let value = row.and_then(|row| row.pointer(field)?.as_f64());
        value.unwrap_or_else(|| panic!("no {field} of {scene} in {rows:#?}"))
    };
    let mib = |count: u64| (count << 20) as f64;
    let launches = mib(NODES * LAUNCH_MIB);
    for scene in ["registry", "pieces", "whole"] {
        for is_warm in [false, true] {
            assert_eq!(number(scene, is_warm, "/failed"), 0.0, "{rows:#?}");
            let [half, most, last] = [0, 1, 2].map(|place| number(scene, is_warm, &format!("/ready_s/{place}")));
            assert!(0.0 < half && half <= most && most <= last, "{rows:#?}");
        }
        // Nodes with caches ask for documents alone.
        let all = |is_warm| number(scene, is_warm, "/registry/bytes") + number(scene, is_warm, "/zones/bytes");
        assert!(all(false) > launches && all(true) < all(false) / 8.0, "{rows:#?}");
    }
    // Without mirrors, and with mirrors that have nothing, each node fetches its launch from the registry.
    for scene in ["registry", "whole"] {
        let bytes = number(scene, false, "/registry/bytes");
        assert!(launches < bytes && bytes < 2.0 * launches, "{rows:#?}");
    }
    assert!(number("whole", false, "/zones/requests") > 0.0, "{rows:#?}");
    // A cache of a zone fetches each object once: the image at most, the bundle, the tree and the documents.
    let bytes = number("pieces", false, "/registry/bytes");
    assert!(bytes < mib(ZONES * (IMAGE_MIB + LAUNCH_MIB + 1)) && bytes < launches, "{rows:#?}");
    assert!(std::fs::read_dir(folder.path()).expect("there").next().is_none(), "files are left");
}
