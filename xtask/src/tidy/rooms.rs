//! The permitted imports between the modules of a crate, from `xtask/rooms.toml`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use floe_testkit::workspace_root;
use syn::{Item, UseTree, visit::Visit};

use super::{
    permissions::{FILE, Permissions, Table, faults_of},
    source_files::rust_files,
};
use crate::task_error::{During, Outcome, TaskError};

/// The imports that the tables do not allow, permissions that no import uses, and other faults of the tables.
pub(super) fn violations(permissions: &Permissions) -> Outcome<Vec<String>> {
    let root = workspace_root();
    let mut lines = Vec::new();
    for (name, table) in &permissions.rooms {
        lines.extend(faults_of(name, table));
        let source = root.join("crates").join(name).join("src");
        let entry = fs::read_to_string(source.join("lib.rs")).during(source.display())?;
        let exports = exports_of(&parse(&entry, "lib.rs")?);
        let mut used_by = Table::new();
        for path in rust_files(&source)? {
            let file = path.strip_prefix(&source).unwrap_or(&path);
            if file == Path::new("lib.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).during(path.display())?;
            let used = rooms_used(&parse(&text, &path.display().to_string())?, &exports);
            lines.extend(wrong_ways(name, file, &used, table));
            used_by.entry(room_of(file)).or_default().extend(used);
        }
        lines.extend(needless_permissions(name, &used_by, table));
    }
    Ok(lines)
}

fn parse(text: &str, name: &str) -> Outcome<syn::File> {
    syn::parse_file(text).map_err(|error| TaskError::new(format!("{name}: {error}")))
}

/// The rooms in which the names that `lib.rs` exports are defined.
fn exports_of(entry: &syn::File) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for item in &entry.items {
        if let Item::Use(item) = item
            && let UseTree::Path(path) = &item.tree
        {
            let room = path.ident.to_string();
            leaves(&path.tree, &mut |name| drop(exports.insert(name.to_owned(), room.clone())));
        }
    }
    exports
}

fn leaves(tree: &UseTree, note: &mut impl FnMut(&str)) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, note),
        UseTree::Name(name) => note(&name.ident.to_string()),
        UseTree::Rename(rename) => note(&rename.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, note)),
        UseTree::Glob(_) => {}
    }
}

/// The rooms that a file uses, apart from its tests.
fn rooms_used(file: &syn::File, exports: &BTreeMap<String, String>) -> BTreeSet<String> {
    struct Uses<'exports> {
        exports: &'exports BTreeMap<String, String>,
        rooms: BTreeSet<String>,
    }
    impl Uses<'_> {
        fn note(&mut self, name: &str) {
            self.rooms.insert(self.exports.get(name).map_or(name, String::as_str).to_owned());
        }
    }
    impl<'ast> Visit<'ast> for Uses<'_> {
        fn visit_item(&mut self, item: &'ast Item) {
            let attributes = match item {
                Item::Mod(item) => &item.attrs,
                Item::Impl(item) => &item.attrs,
                Item::Fn(item) => &item.attrs,
                Item::Use(item) => &item.attrs,
                _ => return syn::visit::visit_item(self, item),
            };
            let is_test = |attribute: &syn::Attribute| {
                attribute.path().is_ident("cfg")
                    && quoted(attribute).split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
            };
            if !attributes.iter().any(is_test) {
                syn::visit::visit_item(self, item);
            }
        }

        fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
            if let UseTree::Path(path) = &item.tree
                && path.ident == "crate"
            {
                match &*path.tree {
                    UseTree::Group(group) => {
                        group.items.iter().for_each(|tree| first_names(tree, &mut |name| self.note(name)))
                    }
                    tree => first_names(tree, &mut |name| self.note(name)),
                }
            }
        }

        fn visit_path(&mut self, path: &'ast syn::Path) {
            let mut segments = path.segments.iter();
            if segments.next().is_some_and(|segment| segment.ident == "crate")
                && let Some(segment) = segments.next()
            {
                self.note(&segment.ident.to_string());
            }
            syn::visit::visit_path(self, path);
        }
    }
    let mut uses = Uses { exports, rooms: BTreeSet::new() };
    uses.visit_file(file);
    uses.rooms
}

fn quoted(attribute: &syn::Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

fn first_names(tree: &UseTree, note: &mut impl FnMut(&str)) {
    match tree {
        UseTree::Path(path) => note(&path.ident.to_string()),
        tree => leaves(tree, note),
    }
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
    use super::*;

    fn table() -> Table {
        Table::from([
            ("cellar".to_owned(), BTreeSet::new()),
            ("hall".to_owned(), BTreeSet::from(["cellar".to_owned()])),
        ])
    }

    fn used(text: &str) -> Vec<String> {
        let entry = parse("pub use cellar::shelf::{Bottle, Glass as Cup};\npub use hall::Guest;", "lib.rs");
        let exports = exports_of(&entry.unwrap_or_else(|error| panic!("{error}")));
        let file = parse(text, "a file").unwrap_or_else(|error| panic!("{error}"));
        rooms_used(&file, &exports).into_iter().collect()
    }

    #[test]
    fn imports_are_found_anywhere_in_a_file() {
        for (text, expected) in [
            ("use crate::{Bottle, hall::Door};", &["cellar", "hall"][..]),
            ("use crate::Cup;", &["cellar"]),
            ("use super::shelf; use std::fmt;", &[]),
            ("fn call() { crate::hall::open() }", &["hall"]),
            ("#[cfg(test)] mod tests { use crate::hall::Door; }", &[]),
            ("#[cfg(all(test, not(miri)))] mod tests { use crate::hall::Door; }", &[]),
            ("#[cfg(miri)] mod other { use crate::hall::Door; }", &["hall"]),
        ] {
            assert_eq!(used(text), expected, "{text}");
        }
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
