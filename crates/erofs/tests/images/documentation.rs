//! The sections of docs/format/erofs.md that the code cites exist.

use std::{collections::BTreeSet, fs, path::Path};

/// Collects all sections that files under `folder` cite.
fn citations(folder: &Path, cited: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("it is listed") {
        let path = entry.expect("it is listed").path();
        if path.is_dir() {
            citations(&path, cited);
            continue;
        }
        let text = fs::read_to_string(&path).expect("it is text").replace("\n//! ", " ").replace("\n/// ", " ");
        for part in text.split("docs/format/erofs.md, ").skip(1) {
            let end = part.find([')', '.']).expect("a citation ends");
            cited.insert(part[..end].to_owned());
        }
    }
}

#[test]
fn every_cited_section_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cited = BTreeSet::new();
    citations(&root.join("src"), &mut cited);
    assert!(cited.len() > 10, "{cited:?}");
    let text = fs::read_to_string(root.join("../../docs/format/erofs.md")).expect("it is there");
    let sections: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    let missing: Vec<&String> = cited.difference(&sections).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
