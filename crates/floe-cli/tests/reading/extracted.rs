//! Extraction of each reference image by the program.

use std::process::Command;

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    manifest::{Comparison, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

/// The space for extracting two huge images at a time.
const HUGE_BYTES: u64 = 10 << 30;

/// The space for extracting two other images.
const USUAL_BYTES: u64 = 256 << 20;

#[test]
fn extracted_trees_match_their_manifests() {
    let is_root = Need::Root.missing().is_none();
    if !is_root {
        skip::skipped("owners, devices and attributes of all kinds need root; only the rest is compared");
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &crate::support::images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let room_bytes = if image.huge { HUGE_BYTES } else { USUAL_BYTES };
            let folder = tempfile::tempdir_in(crate::support::scratch(room_bytes)).expect("a folder");
            let target = folder.path().join("tree");
            let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
            command.args(["extract", "--quiet"]).args(crate::support::image_arguments(&files)).arg(&files.path);
            if is_root {
                command.arg("--strict");
            }
            let output = command.arg("-C").arg(&target).output().expect("floe runs");
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            if !output.status.success() || is_root && !words.is_empty() {
                return vec![format!("{}: {words}", output.status)];
            }
            let extracted = walk::directory(&target, DirectoryWalk::default()).expect("walked");
            let comparison =
                Comparison { directory_shape_is_free: true, privileges_are_free: !is_root, ..Comparison::default() };
            differences(&corpus.manifest(image), &extracted, &comparison)
        },
    );
}
