//! The imports between the files of a crate.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Item, UseTree, visit::Visit};

use super::source_files::rust_files;
use crate::task_error::{During, Outcome};

/// How many imports of imports are followed to the definition of a name.
const STEPS_MAX: usize = 32;

/// The names of the modules from the root of the crate, or of modules and then items.
type Route = Vec<String>;

/// The modules of a crate that are files, apart from those of tests.
pub(super) struct Imports {
    modules: BTreeMap<Route, Module>,
}

/// One file.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// The items that the file defines.
    defined: BTreeSet<String>,
    /// The names that the file imports, and where from.
    imported: BTreeMap<String, Route>,
    /// The modules all names of which the file imports.
    globs: Vec<Route>,
    /// What the file mentions, in imports and elsewhere.
    mentioned: BTreeSet<Route>,
    /// The child modules that only tests have.
    for_tests: Vec<Route>,
}

impl Imports {
    /// Reads the files of a crate's folder `src`.
    pub(super) fn read(source: &Path) -> Outcome<Self> {
        let mut files = Vec::new();
        for path in rust_files(source)? {
            let text = fs::read_to_string(&path).during(path.display())?;
            files.push((path.strip_prefix(source).unwrap_or(&path).to_path_buf(), text));
        }
        Self::of(&files)
    }

    /// The imports between files with these names, relative to `src`, and texts.
    pub(super) fn of(files: &[(PathBuf, String)]) -> Outcome<Self> {
        let routes: BTreeSet<Route> = files.iter().map(|(file, _)| route_of(file)).collect();
        let mut modules = BTreeMap::new();
        for (file, text) in files {
            let syntax = syn::parse_file(text).during(file.display())?;
            let route = route_of(file);
            let module = Module { file: file.clone(), ..Module::default() };
            let mut reader = FileReader { routes: &routes, here: route.clone(), module };
            reader.visit_file(&syntax);
            modules.insert(route, reader.module);
        }
        let for_tests: Vec<Route> = modules.values().flat_map(|module| module.for_tests.clone()).collect();
        modules.retain(|route, _| !for_tests.iter().any(|tests| route.starts_with(tests)));
        Ok(Self { modules })
    }

    /// The files, and the other files in which the names are defined that each uses.
    pub(super) fn uses(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let uses = self.modules.iter().map(|(route, module)| {
            let used = module.mentioned.iter().map(|mentioned| self.place_of(mentioned));
            let others = used.filter(|other| *other != route.as_slice());
            (&*module.file, others.map(|other| &*self.modules[other].file).collect())
        });
        uses.collect()
    }

    /// The module that defines what `mentioned` leads to; for names of other crates, the one that imports them.
    fn place_of(&self, mentioned: &[String]) -> &[String] {
        let mut rest = mentioned.to_vec();
        let mut here: &[String] = &[];
        for _ in 0..STEPS_MAX {
            // The deepest module of the route, and the name in it.
            let depth = (0..=rest.len()).rev().find(|depth| self.modules.contains_key(&rest[..*depth])).unwrap_or(0);
            let Some((route, module)) = self.modules.get_key_value(&rest[..depth]) else { break };
            here = route;
            let Some(name) = rest.get(depth) else { break };
            let next = match module.imported.get(name) {
                Some(next) => next.clone(),
                None if module.defined.contains(name) => break,
                None => {
                    let has = |route: &&Route| {
                        let other = self.modules.get(*route);
                        other.is_some_and(|other| other.defined.contains(name) || other.imported.contains_key(name))
                    };
                    let Some(glob) = module.globs.iter().find(has) else { break };
                    [glob.as_slice(), std::slice::from_ref(name)].concat()
                }
            };
            let next = [&next, &rest[depth + 1..]].concat();
            if next == rest {
                break;
            }
            rest = next;
        }
        here
    }
}

/// The module of a file: `hall/door.rs` is `hall::door`, `hall/mod.rs` is `hall`, `lib.rs` is the root.
fn route_of(file: &Path) -> Route {
    let without = file.with_extension("");
    let mut route: Route = without.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    let is_root = route.len() == 1 && ["lib", "main"].contains(&&*route[0]);
    if is_root || route.last().is_some_and(|last| last == "mod") {
        route.pop();
    }
    route
}

/// Notes the imports of one file.
struct FileReader<'routes> {
    routes: &'routes BTreeSet<Route>,
    /// The module in which the visited item is.
    here: Route,
    module: Module,
}

impl FileReader<'_> {
    /// The place in this crate to which the parts of a path lead; `None` in other crates.
    fn absolute(&self, parts: &[String]) -> Option<Route> {
        let mut route = self.here.clone();
        let mut rest = parts;
        let mut is_ours = false;
        while let Some((first, others)) = rest.split_first() {
            match &**first {
                "crate" => route.clear(),
                "self" => {}
                "super" => drop(route.pop()),
                _ => break,
            }
            is_ours = true;
            rest = others;
        }
        if !is_ours {
            let child = [route.as_slice(), rest.get(..1)?].concat();
            is_ours = self.routes.contains(&child);
        }
        is_ours.then(|| [route.as_slice(), rest].concat())
    }

    fn note_use(&mut self, tree: &UseTree, parts: &mut Vec<String>) {
        let (name, imported) = match tree {
            UseTree::Path(path) => {
                parts.push(path.ident.to_string());
                self.note_use(&path.tree, parts);
                parts.pop();
                return;
            }
            UseTree::Group(group) => return group.items.iter().for_each(|tree| self.note_use(tree, parts)),
            UseTree::Glob(_) => {
                if let Some(route) = self.absolute(parts) {
                    self.module.globs.push(route.clone());
                    self.module.mentioned.insert(route);
                }
                return;
            }
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.rename, &rename.ident),
        };
        let mut full = parts.clone();
        if imported != "self" {
            full.push(imported.to_string());
        }
        if let Some(route) = self.absolute(&full) {
            let name = if name == "self" { parts.last().cloned().unwrap_or_default() } else { name.to_string() };
            self.module.imported.insert(name, route.clone());
            self.module.mentioned.insert(route);
        }
    }
}

impl<'ast> Visit<'ast> for FileReader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Mod(item) => (&item.attrs, None),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Union(item) => (&item.attrs, Some(&item.ident)),
            Item::Use(item) => (&item.attrs, None),
            _ => return syn::visit::visit_item(self, item),
        };
        let is_for_tests = attributes.iter().any(is_test);
        if let Item::Mod(item) = item {
            self.here.push(item.ident.to_string());
            match &item.content {
                _ if is_for_tests => self.module.for_tests.push(self.here.clone()),
                Some((_, items)) => items.iter().for_each(|item| self.visit_item(item)),
                None => {}
            }
            self.here.pop();
        } else if !is_for_tests {
            self.module.defined.extend(name.map(ToString::to_string));
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.note_use(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if ["crate", "self", "super"].contains(&&*parts[0]) && parts.len() > 1 {
            self.module.mentioned.extend(self.absolute(&parts));
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let text = call.tokens.to_string().replace(" :: ", "::");
        for word in text.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c)) {
            let parts: Vec<String> = word.split("::").map(str::to_owned).collect();
            if ["crate", "super"].contains(&&*parts[0]) && parts.len() > 1 {
                self.module.mentioned.extend(self.absolute(&parts));
            }
        }
        syn::visit::visit_macro(self, call);
    }
}

/// Whether an attribute leaves an item to tests: `#[cfg(test)]`, `#[cfg(all(test, not(miri)))]`.
fn is_test(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let condition = list.tokens.to_string();
    attribute.path().is_ident("cfg") && condition.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_followed_to_the_files_that_define_them() {
        for (text, expected) in [
            ("use crate::{Bottle, hall::Door};", &["cellar/shelf.rs", "hall.rs"][..]),
            ("use crate::Cup;", &["cellar/shelf.rs"]),
            ("use crate::cellar::Glass;", &["cellar/shelf.rs"]),
            ("use crate::cellar::Barrel;", &["cellar/barrel.rs"]),
            ("use super::cellar::{self, shelf}; fn f() { shelf::open() }", &["cellar.rs", "cellar/shelf.rs"]),
            ("use super::cellar::*;", &["cellar.rs"]),
            ("use std::{fmt, crate_like::hall};", &[]),
            ("fn call() { crate::hall::open() }", &["hall.rs"]),
            ("fn call() { let a = vec![crate::hall::open()]; }", &["hall.rs"]),
            ("fn call() { use crate::hall::Door; }", &["hall.rs"]),
            ("mod inner { use super::super::hall::Door; }", &["hall.rs"]),
            ("use self::step::Step; mod step;", &["attic/step.rs"]),
            ("use step::Step; mod step;", &["attic/step.rs"]),
            ("#[cfg(test)] mod tests { use crate::hall::Door; }", &[]),
            ("#[cfg(all(test, not(miri)))] mod tests { use crate::hall::Door; }", &[]),
            ("#[cfg(miri)] mod other { use crate::hall::Door; }", &["hall.rs"]),
            ("#[cfg(test)] mod tests;", &[]),
        ] {
            let files = [
                ("lib.rs", "pub use cellar::shelf::{Bottle, Glass as Cup}; pub use hall::Guest;"),
                ("cellar.rs", "pub use shelf::Glass; pub use barrel::*; mod shelf; mod barrel;"),
                ("cellar/shelf.rs", "pub struct Bottle; pub struct Glass; pub fn open() {}"),
                ("cellar/barrel.rs", "pub struct Barrel;"),
                ("hall.rs", "pub struct Door; pub struct Guest; pub fn open() {}"),
                ("attic.rs", text),
                ("attic/step.rs", "pub struct Step;"),
                ("attic/tests.rs", "use crate::hall::Door;"),
            ];
            let imports = Imports::of(&files.map(|(name, text)| (name.into(), text.to_owned())));
            let imports = imports.unwrap_or_else(|error| panic!("{error}"));
            let uses = imports.uses();
            let expected: BTreeSet<&Path> = expected.iter().map(Path::new).collect();
            assert_eq!(uses[Path::new("attic.rs")], expected, "{text}");
            assert_eq!(uses.contains_key(Path::new("attic/tests.rs")), !text.contains("mod tests"), "{text}");
        }
    }
}
