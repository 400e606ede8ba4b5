//! Extraction of what a filter chooses.

use std::sync::atomic::AtomicBool;

use floe::{Choice, ExtractOptions, Image, OpenOptions, Parts, WalkEntry, extract};
use floe_testkit::workspace_root;

#[test]
fn a_filter_is_asked_only_where_it_decides() {
    let demo = workspace_root().join("fixtures/demo.erofs");
    let image = Image::open(demo, &OpenOptions::default()).expect("an image");
    let folder = tempfile::tempdir().expect("a folder");
    let mut asked = Vec::new();
    let mut choose = |entry: &WalkEntry| {
        let path = String::from_utf8_lossy(&entry.path).into_owned();
        let choice = match path.as_str() {
            "/guide" => Choice::TakeAll,
            "/records" | "/maps/drift.txt" => Choice::LeaveOut,
            _ => Choice::Take,
        };
        asked.push(path);
        choice
    };
    let options = ExtractOptions::default();
    let parts = Parts::Where(&mut choose);
    let summary = extract(&image, parts, folder.path(), &options, &|_| (), &AtomicBool::new(false)).expect("extracted");
    assert_eq!(summary.failures, 0);
    assert_eq!(asked, ["/README.txt", "/guide", "/maps", "/maps/drift.txt", "/maps/open-water", "/records"]);
    for (name, is_there) in [
        ("README.txt", true),
        ("guide/reading.txt", true),
        ("maps/open-water", true),
        ("maps/drift.txt", false),
        ("records", false),
    ] {
        assert_eq!(folder.path().join(name).symlink_metadata().is_ok(), is_there, "{name}");
    }
}
