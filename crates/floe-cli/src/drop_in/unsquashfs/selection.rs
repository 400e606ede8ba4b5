//! The entries that the command line selects.

use floe::{Choice, FileType, Image, Walk, WalkEntry};

use super::{
    arguments::Arguments,
    path_patterns::{PathPatterns, Places, Step},
};

/// Decides which entries of a walk the command line selects. Keeps the places that the patterns have reached in each
/// directory on the way to the current entry, so that each name is matched once.
pub(super) struct Selector<'a> {
    arguments: &'a Arguments,
    /// The directories from the root on.
    levels: Vec<Level>,
}

/// The state of the walk in a directory: how far its path has matched the patterns.
struct Level {
    /// The places in the patterns that select; `None` if everything here is selected.
    selected: Option<Places>,
    /// The places in the patterns that exclude.
    excluded: Places,
    /// The places in the patterns that exclude at any depth.
    sticky: Places,
}

impl<'a> Selector<'a> {
    pub(super) fn new(arguments: &'a Arguments) -> Self {
        let selected = &arguments.selected;
        let selected = (!selected.is_empty() && !selected.match_root()).then(PathPatterns::start);
        let root = Level { selected, excluded: PathPatterns::start(), sticky: Vec::new() };
        Self { arguments, levels: vec![root] }
    }

    /// Decides about an entry. The entries come in the order of a walk, which does not enter directories that are left out.
    pub(super) fn choose(&mut self, entry: &WalkEntry) -> Choice {
        let Arguments { selected, excluded, sticky, depth_max, .. } = self.arguments;
        if entry.depth == 0 {
            return Choice::Take;
        }
        self.levels.truncate(entry.depth);
        let Some(level) = self.levels.last() else { return Choice::LeaveOut };
        let is_directory = entry.attr.file_type == FileType::Directory;
        if depth_max.is_some_and(|max| entry.depth > max) {
            return Choice::LeaveOut;
        }
        let inside = match level.selected.as_ref().map(|places| selected.step(places, entry.name())) {
            None | Some(Step::End) => None,
            Some(Step::Places(places)) if is_directory && !places.is_empty() => Some(places),
            Some(Step::Places(_)) => return Choice::LeaveOut,
        };
        let Step::Places(excluded_inside) = excluded.step(&level.excluded, entry.name()) else {
            return Choice::LeaveOut;
        };
        let sticky_here = [&level.sticky[..], &PathPatterns::start()].concat();
        let Step::Places(sticky_inside) = sticky.step(&sticky_here, entry.name()) else { return Choice::LeaveOut };
        let is_free = inside.is_none() && excluded_inside.is_empty() && sticky.is_empty() && depth_max.is_none();
        if is_directory {
            self.levels.push(Level { selected: inside, excluded: excluded_inside, sticky: sticky_inside });
        }
        if is_free { Choice::TakeAll } else { Choice::Take }
    }
}

/// Walks through what the command line selects of an image.
pub(super) struct Selection<'a> {
    walk: Walk,
    selector: Selector<'a>,
}

impl<'a> Selection<'a> {
    pub(super) fn new(image: &Image, arguments: &'a Arguments) -> Self {
        Self { walk: image.walk(), selector: Selector::new(arguments) }
    }
}

impl Iterator for Selection<'_> {
    type Item = Result<WalkEntry, String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.walk.next()? {
                Ok(entry) => entry,
                Err(failed) => return Some(Err(failed.to_string())),
            };
            if self.selector.choose(&entry) != Choice::LeaveOut {
                let attr = self.selector.arguments.with_time(entry.attr);
                return Some(Ok(WalkEntry { attr, ..entry }));
            }
            if entry.attr.file_type == FileType::Directory {
                self.walk.skip_directory();
            }
        }
    }
}
