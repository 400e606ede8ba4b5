//! Decides what is stored of the files, in which order, and how, before anything is compressed.

pub(crate) mod changed;
mod duplicates;
pub(crate) mod file_split;
mod repeats;
pub(crate) mod storage_method;

use std::{cmp::Reverse, ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf};

use floe_image::{ByteRange, Nid};
use xxhash_rust::xxh64::xxh64;

use crate::{
    error::Result,
    options::{Coding, Options, coding::expression},
    profile::Profile,
    progress::Progress,
    tree::{Body, OrderedNode, Tree, content::Content},
};
use duplicates::duplicates;
use file_split::FileSplits;
use repeats::find_repeats;
use storage_method::{StorageMethod, TailRule};

/// How each file of a tree is to be stored. Each list has the files in the order of the tree.
pub(crate) struct ContentPlan<'a> {
    /// The index of an earlier file with the same content.
    pub(crate) duplicate_of: Vec<Option<usize>>,
    pub(crate) launch: Option<Launch<'a>>,
    /// The number of each file's coding.
    codings: Vec<Option<usize>>,
    /// The similarity group of each file.
    groups: Vec<u64>,
    /// The rank of each file, if files are not stored in tree order.
    ranks: Option<Vec<usize>>,
}

/// A file to be stored.
#[derive(Clone, Copy)]
pub(crate) struct FileToStore<'a> {
    /// Its index in tree order.
    pub(crate) place: usize,
    pub(crate) content: &'a Content,
    /// The number of its coding, if it is compressed.
    pub(crate) coding: Option<usize>,
    /// Its similarity group.
    pub(crate) group: u64,
    pub(crate) method: StorageMethod,
}

/// A file of a SquashFS image to be stored.
#[derive(Clone, Copy)]
pub(crate) struct BlockFile<'a> {
    /// Its index in tree order.
    pub(crate) place: usize,
    pub(crate) content: &'a Content,
    /// Its similarity group.
    pub(crate) group: u64,
}

/// Files in the order in which they are stored.
pub(crate) struct FilesToStore<'a> {
    pub(crate) files: Vec<FileToStore<'a>>,
    /// Where they are split, because data is repeated.
    pub(crate) splits: FileSplits,
}

impl<'a> ContentPlan<'a> {
    /// Compares the files of a tree, and finds out how each is compressed.
    pub(crate) fn new(
        tree: &Tree,
        order: &[OrderedNode],
        options: &'a Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let own = |ordered| tree.content(ordered).filter(|content| !content.is_referred());
        let contents: Vec<Option<&Content>> = order.iter().map(own).collect();
        let duplicate_of =
            if options.shares_files() { duplicates(&contents, options, progress)? } else { vec![None; contents.len()] };
        let launch = options.profile.as_ref().map(|profile| Launch::new(profile, tree, order));
        let ranks = launch.as_ref().map(|launch| launch.ranks(&duplicate_of));
        let mut groups = similarity_groups(tree, order);
        if let Some(ranks) = &ranks {
            // Files that a launch reads keep their order.
            let ranked = groups.iter_mut().zip(ranks).filter(|(_, rank)| **rank != usize::MAX);
            ranked.for_each(|(group, _)| *group = 0);
        }
        let codings = coding_numbers(tree, order, options)?;
        Ok(Self { duplicate_of, launch, codings, groups, ranks })
    }

    /// The files that have content of their own, for the tree of [`ContentPlan::new`].
    pub(crate) fn to_store<'t>(
        &self,
        tree: &'t Tree,
        order: &[OrderedNode],
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<FilesToStore<'t>> {
        let mut files = Vec::new();
        for (place, ordered) in order.iter().enumerate().filter(|(place, _)| self.duplicate_of[*place].is_none()) {
            if let Some(content) = tree.content(ordered).filter(|content| content.size() > 0 && !content.is_referred())
            {
                let (coding, group) = (self.codings[place], self.groups[place]);
                let method = StorageMethod::of(content, options, coding)?;
                files.push(FileToStore { place, content, coding, group, method });
            }
        }
        if let Some(ranks) = &self.ranks {
            files.sort_by_key(|file| ranks[file.place]);
        }
        FilesToStore::new(files, options, progress)
    }
}

impl ContentPlan<'_> {
    /// As [`ContentPlan::to_store`], for a SquashFS image.
    pub(crate) fn block_files<'t>(
        &self,
        tree: &'t Tree,
        order: &[OrderedNode],
        priorities: &[(PathBuf, i16)],
    ) -> Vec<BlockFile<'t>> {
        let own = order.iter().enumerate().filter(|(place, _)| self.duplicate_of[*place].is_none());
        let file =
            |(place, ordered)| Some(BlockFile { place, content: tree.content(ordered)?, group: self.groups[place] });
        let mut files: Vec<_> = own.filter_map(file).filter(|file| file.content.size() > 0).collect();
        match &self.ranks {
            Some(ranks) => files.sort_by_key(|file| ranks[file.place]),
            None => sort_by_priority(&mut files, tree, order, priorities),
        }
        files
    }
}

impl<'a> FilesToStore<'a> {
    fn new(files: Vec<FileToStore<'a>>, options: &Options, progress: &mut dyn Progress) -> Result<Self> {
        let splits = if options.dedupe { splits(&files, options, progress)? } else { FileSplits::default() };
        Ok(Self { files, splits })
    }

    /// The content of an inode that does not belong to the tree; its place is 0.
    pub(crate) fn special(
        content: &'a Content,
        coding: Option<usize>,
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let method = coding.map_or(StorageMethod::Flat, |_| StorageMethod::Compress(TailRule::Blocks));
        Self::new(vec![FileToStore { place: 0, content, coding, group: 0, method }], options, progress)
    }
}

/// Sorts files by their priorities, the highest first. A file has the priority of its path, or else of the directory above it.
fn sort_by_priority(files: &mut [BlockFile<'_>], tree: &Tree, order: &[OrderedNode], priorities: &[(PathBuf, i16)]) {
    if priorities.is_empty() {
        return;
    }
    let mut by_node = vec![None; tree.len()];
    for (path, priority) in priorities {
        if let Some(node) = tree.find(path.as_os_str().as_bytes()) {
            by_node[node.index()] = Some(*priority);
        }
    }
    // A directory precedes its entries.
    for ordered in order {
        by_node[ordered.node.index()] = by_node[ordered.node.index()].or(by_node[ordered.parent.index()]);
    }
    files.sort_by_key(|file| Reverse(by_node[order[file.place].node.index()].unwrap_or(0)));
    // The order is the user's, in fragments too.
    files.iter_mut().for_each(|file| file.group = 0);
}

/// Splits files at repeated data. Data can only refer to data with the same coding.
fn splits(files: &[FileToStore<'_>], options: &Options, progress: &mut dyn Progress) -> Result<FileSplits> {
    let mut splits = FileSplits::default();
    for (number, coding) in options.codings().into_iter().enumerate() {
        let of_coding =
            |file: &&FileToStore<'_>| file.coding == Some(number) && matches!(file.method, StorageMethod::Compress(_));
        let files: Vec<_> = files.iter().filter(of_coding).map(|file| (file.place, file.content)).collect();
        splits.join(find_repeats(&files, coding.pcluster_bytes, options, progress)?);
    }
    Ok(splits)
}

/// The files that a launch reads, indexed in tree order.
pub(crate) struct Launch<'a> {
    pub(crate) profile: &'a Profile,
    /// The file of each range in the profile, if it exists.
    places: Vec<Option<usize>>,
}

impl<'a> Launch<'a> {
    /// Finds the files of a profile.
    pub(crate) fn new(profile: &'a Profile, tree: &Tree, order: &[OrderedNode]) -> Self {
        let places = tree.places(order);
        let place = |path: &[u8]| tree.find(path).map(|node| places[node.index()]);
        Self { profile, places: profile.ranges().iter().map(|range| place(&range.path)).collect() }
    }

    /// The rank of each file; the launch reads files of lower ranks earlier. A file that shares the content of an
    /// earlier one has its rank.
    pub(crate) fn ranks(&self, duplicate_of: &[Option<usize>]) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; duplicate_of.len()];
        for (rank, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let stored = duplicate_of[*place].unwrap_or(*place);
            ranks[stored] = ranks[stored].min(rank);
        }
        ranks
    }

    /// The ranges of files in the image, for inodes with these nids.
    pub(crate) fn ranges(&self, nids: &[u64]) -> Vec<(Nid, ByteRange)> {
        let ranges = self.profile.ranges().iter().zip(&self.places);
        ranges.filter_map(|(range, place)| place.map(|place| (Nid(nids[place]), range.range))).collect()
    }

    /// The number of ranges that refer to files not in the image.
    pub(crate) fn missing(&self) -> u64 {
        self.places.iter().filter(|place| place.is_none()).count() as u64
    }
}

/// The similarity group of each node in tree order, by its first name; files of a group have the same number.
pub(crate) fn similarity_groups(tree: &Tree, order: &[OrderedNode]) -> Vec<u64> {
    let mut by_node = vec![None; tree.len()];
    for ordered in order.iter().filter(|ordered| matches!(tree.node(ordered.node).body, Body::Directory(_))) {
        for (name, node) in tree.entries(ordered.node) {
            by_node[node.index()].get_or_insert_with(|| xxh64(extension(name), 0));
        }
    }
    order.iter().map(|ordered| by_node[ordered.node.index()].unwrap_or(0)).collect()
}

/// The number of each file's coding in [`Options::codings`]; `None` if the file is not compressed. The first matching
/// hint applies. A file with several hard links is matched by its first path.
pub(crate) fn coding_numbers(tree: &Tree, order: &[OrderedNode], options: &Options) -> Result<Vec<Option<usize>>> {
    let usual = options.compression.map(|_| 0);
    if options.hints.is_empty() {
        return Ok(vec![usual; order.len()]);
    }
    let number = |coding: Coding| options.coding_number(coding);
    let hints = options.hints.iter().map(|hint| Ok((expression(&hint.expression)?, hint.coding.and_then(number))));
    let hints = hints.collect::<Result<Vec<_>>>()?;
    let mut paths = vec![None; tree.len()];
    paths[Tree::ROOT.index()] = Some(PathBuf::new());
    for ordered in order {
        if let Body::Directory(_) = tree.node(ordered.node).body {
            let directory = paths[ordered.node.index()].clone().unwrap_or_default();
            for (name, node) in tree.entries(ordered.node) {
                let path = || directory.join(OsStr::from_bytes(name));
                paths[node.index()].get_or_insert_with(path);
            }
        }
    }
    let matching = |ordered: &OrderedNode| {
        let path = paths[ordered.node.index()].as_ref()?.as_os_str().as_bytes();
        hints.iter().find(|(expression, _)| expression.is_match(path)).map(|(_, number)| *number)
    };
    Ok(order.iter().map(|ordered| matching(ordered).unwrap_or(usual)).collect())
}

/// The part of a name that determines the group: the extension without version numbers (`libc.so.6` is a `so`), or the
/// whole name if there is no extension.
fn extension(name: &[u8]) -> &[u8] {
    let mut rest = name;
    while let Some(dot) = rest.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0) {
        let extension = &rest[dot + 1..];
        if !extension.iter().all(u8::is_ascii_digit) {
            return extension;
        }
        rest = &rest[..dot];
    }
    if rest.len() < name.len() { &name[rest.len()..] } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_determine_the_similarity_group() {
        for (name, kind) in [
            ("libc.so.6", "so"),
            ("libstdc++.so.6.0.30", "so"),
            ("ls.1", ".1"),
            ("ls.1.gz", "gz"),
            ("README", "README"),
            (".profile", ".profile"),
            ("a.py", "py"),
            ("odd.", "."),
        ] {
            assert_eq!(extension(name.as_bytes()), kind.as_bytes(), "{name}");
        }
    }
}
