//! The permitted uses between crates and between rooms, from `xtask/rooms.toml`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use floe_testkit::workspace_root;
use serde::Deserialize;

use super::imports::Imports;
use crate::task_error::{During, Outcome, TaskError};

/// The file with the tables, relative to the workspace.
pub(super) const FILE: &str = "xtask/rooms.toml";

/// Names of crates or rooms, and which others each may use.
pub(super) type Table = BTreeMap<String, BTreeSet<String>>;

/// The tables of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Permissions {
    /// The crates. Names are without `floe-`, except for `floe-cli`.
    pub(super) crates: Table,
    /// What the tests of a crate may use besides.
    pub(super) tests: Table,
    /// The rooms of crates.
    pub(super) rooms: BTreeMap<String, Table>,
}

impl Permissions {
    /// Reads the file of the workspace.
    pub(super) fn read() -> Outcome<Self> {
        Self::parse(&fs::read_to_string(workspace_root().join(FILE)).during(FILE)?)
    }

    /// The tables in `text`.
    pub(super) fn parse(text: &str) -> Outcome<Self> {
        toml::from_str(text).map_err(|error| TaskError::new(format!("{FILE}: {error}")))
    }
}

/// The faults of the rooms of crate `name`: uses of unknown rooms, and circles.
pub(super) fn faults_of(name: &str, table: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for (room, allowed) in table {
        let unknown = allowed.iter().filter(|other| !table.contains_key(*other));
        lines.extend(unknown.map(|other| format!("{FILE}: {name}: `{room}` may use `{other}`, which is not a room")));
    }
    // A room that uses no room of a circle, or that none of them uses, is in no circle.
    let mut circle: BTreeSet<&String> = table.keys().collect();
    loop {
        let count = circle.len();
        let remaining = circle.iter().filter(|room| {
            let is_used = circle.iter().any(|other| table[*other].contains(**room));
            is_used && table[**room].iter().any(|other| circle.contains(other))
        });
        circle = remaining.copied().collect();
        if circle.len() == count {
            break;
        }
    }
    if !circle.is_empty() {
        let rooms: Vec<&str> = circle.into_iter().map(String::as_str).collect();
        lines.push(format!("{FILE}: {name}: there is a circle among {}", rooms.join(", ")));
    }
    lines
}

/// The imports that the tables do not allow, permissions that no import uses, and other faults of the tables.
pub(super) fn room_violations(permissions: &Permissions) -> Outcome<Vec<String>> {
    let mut lines = Vec::new();
    for (name, table) in &permissions.rooms {
        lines.extend(faults_of(name, table));
        let imports = Imports::read(&workspace_root().join("crates").join(name).join("src"))?;
        let mut used_by = Table::new();
        for (file, used) in imports.uses() {
            if file == Path::new("lib.rs") {
                continue;
            }
            let used = used.into_iter().filter(|other| *other != Path::new("lib.rs")).map(room_of).collect();
            lines.extend(wrong_ways(name, file, &used, table));
            used_by.entry(room_of(file)).or_default().extend(used);
        }
        lines.extend(needless_permissions(name, &used_by, table));
    }
    Ok(lines)
}

/// The room of a file: its first directory, or its own name.
fn room_of(file: &Path) -> String {
    let first = file.components().next().map(|part| part.as_os_str().to_string_lossy().into_owned());
    let first = first.unwrap_or_default();
    first.strip_suffix(".rs").map_or(first.clone(), str::to_owned)
}

fn wrong_ways(name: &str, file: &Path, used: &BTreeSet<String>, table: &Table) -> Vec<String> {
    let room = room_of(file);
    let Some(allowed) = table.get(&room) else {
        return vec![format!("crates/{name}/src/{}: room `{room}` is missing in {FILE}", file.display())];
    };
    let wrong = used.iter().filter(|other| **other != room && !allowed.contains(*other));
    wrong.map(|other| format!("crates/{name}/src/{}: `{room}` may not use `{other}`", file.display())).collect()
}

/// The permissions that no file of a room uses.
fn needless_permissions(name: &str, used_by: &Table, table: &Table) -> Vec<String> {
    let mut lines = Vec::new();
    for (room, allowed) in table {
        let Some(used) = used_by.get(room) else {
            lines.push(format!("{FILE}: {name}: there is no room `{room}`"));
            continue;
        };
        let needless = allowed.difference(used);
        lines.extend(needless.map(|other| format!("{FILE}: {name}: `{room}` does not use `{other}`")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn faults_of_a_table_are_found() {
        for (rows, expected) in [
            ("cellar = []\nhall = ['cellar']\nattic = ['cellar', 'hall']", None),
            ("hall = ['cellar']", Some("house: `hall` may use `cellar`, which is not a room")),
            ("cellar = ['hall']\nhall = ['cellar']", Some("house: there is a circle among cellar, hall")),
            ("cellar = ['cellar']", Some("house: there is a circle among cellar")),
            (
                "attic = ['hall']\ncellar = ['stairs']\nhall = ['cellar']\nstairs = ['hall']\nyard = []",
                Some("house: there is a circle among cellar, hall, stairs"),
            ),
        ] {
            let text = format!("[crates]\n[tests]\n[rooms.house]\n{rows}");
            let permissions = Permissions::parse(&text).unwrap_or_else(|error| panic!("{error}"));
            let expected = expected.map(|expected| format!("{FILE}: {expected}"));
            assert_eq!(faults_of("house", &permissions.rooms["house"]), Vec::from_iter(expected), "{rows}");
        }
    }

    #[test]
    fn files_without_a_table_or_with_a_wrong_one_are_refused() {
        for (text, part) in [
            ("[crates]\n[tests]", "missing field `rooms`"),
            ("[crates]\n[tests]\n[rooms]\n[room.house]", "unknown field `room`"),
            ("[crates]\nimage = 'nothing'\n[tests]\n[rooms]", "expected a sequence"),
        ] {
            let error = Permissions::parse(text).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part) && error.contains(FILE), "{text}: {error}");
        }
    }

    fn table() -> Table {
        Table::from([
            ("cellar".to_owned(), BTreeSet::new()),
            ("hall".to_owned(), BTreeSet::from(["cellar".to_owned()])),
        ])
    }

    #[test]
    fn wrong_ways_are_found() {
        let table = table();
        for (file, other, expected) in [
            ("hall/door.rs", "cellar", 0),
            ("hall.rs", "hall", 0),
            ("cellar/shelf.rs", "hall", 1),
            ("attic.rs", "cellar", 1),
        ] {
            let used = BTreeSet::from([other.to_owned()]);
            assert_eq!(wrong_ways("house", Path::new(file), &used, &table).len(), expected, "{file} {other}");
        }
    }

    #[test]
    fn needless_permissions_are_found() {
        let table = table();
        let used_by = |uses: &[(&str, &[&str])]| {
            let rooms = uses.iter().map(|(room, used)| {
                ((*room).to_owned(), used.iter().map(|other| (*other).to_owned()).collect::<BTreeSet<_>>())
            });
            rooms.collect::<BTreeMap<_, _>>()
        };
        for (uses, expected) in [
            (&[("cellar", &[][..]), ("hall", &["cellar"])][..], None),
            (&[("cellar", &[]), ("hall", &[])], Some("`hall` does not use `cellar`")),
            (&[("hall", &["cellar"])], Some("there is no room `cellar`")),
        ] {
            let found = needless_permissions("house", &used_by(uses), &table);
            let expected = expected.map(|expected| format!("{FILE}: house: {expected}"));
            assert_eq!(found, Vec::from_iter(expected), "{uses:?}");
        }
    }
}
