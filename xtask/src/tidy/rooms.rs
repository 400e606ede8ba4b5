//! The permitted imports between the modules of a crate, from `xtask/rooms.toml`.

use std::{collections::BTreeSet, path::Path};

use floe_testkit::workspace_root;

use super::{
    imports::Imports,
    permissions::{FILE, Permissions, Table, faults_of},
};
use crate::task_error::Outcome;

/// The imports that the tables do not allow, permissions that no import uses, and other faults of the tables.
pub(super) fn violations(permissions: &Permissions) -> Outcome<Vec<String>> {
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
