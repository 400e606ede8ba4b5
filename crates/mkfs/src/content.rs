//! Decides what is stored of the files, in which order, and how, before anything is compressed.

pub(crate) mod changed;
pub(crate) mod duplicates;
pub(crate) mod file_split;
pub(crate) mod fingerprints;
mod repeats;
pub(crate) mod storage_method;

use std::{cmp::Reverse, ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf};

use floe_image::{ByteRange, Nid};
use xxhash_rust::xxh64::xxh64;

use crate::{
    error::{Error, Result},
    options::{Coding, Format, Fragments, Hint, Options, coding::expression},
    profile::Profile,
    progress::Progress,
    tree::{Body, OrderedNode, Tree, content::Content},
};
use duplicates::Duplicates;
use file_split::FileSplits;
use repeats::find_repeats;
use storage_method::{FileMethod, StorageMethod, TailRule, inline_len_max};

/// How each file of a tree is to be stored. Each list has the files in the order of the tree.
pub(crate) struct ContentPlan<'a> {
    pub(crate) duplicates: Duplicates,
    pub(crate) launch: Option<Launch<'a>>,
    /// The number of each file's coding.
    codings: Vec<Option<u16>>,
    /// The similarity group of each file; empty if that makes no difference.
    groups: Vec<u32>,
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
    pub(crate) group: u32,
    pub(crate) method: StorageMethod,
}

/// A file of a SquashFS image to be stored.
#[derive(Clone, Copy)]
pub(crate) struct BlockFile<'a> {
    /// Its index in tree order.
    pub(crate) place: usize,
    pub(crate) content: &'a Content,
    /// Its similarity group.
    pub(crate) group: u32,
}

/// Files in the order in which they are stored.
pub(crate) struct FilesToStore<'a> {
    files: Vec<PlannedFile>,
    origin: FileOrigin<'a>,
    /// Where they are split, because data is repeated.
    pub(crate) splits: FileSplits,
}

/// A file to be stored: its index in tree order, and how it is stored. There may be millions.
#[derive(Clone, Copy)]
struct PlannedFile {
    place: u32,
    method: FileMethod,
}

/// Where the files to be stored come from.
#[derive(Clone, Copy)]
enum FileOrigin<'a> {
    Tree {
        plan: &'a ContentPlan<'a>,
        tree: &'a Tree,
        order: &'a [OrderedNode],
    },
    /// An inode that does not belong to the tree, with its coding.
    Special(&'a Content, Option<usize>),
}

impl<'a> ContentPlan<'a> {
    /// Compares the files of a tree, and finds out how each is compressed.
    pub(crate) fn new(
        tree: &Tree,
        order: &[OrderedNode],
        options: &'a Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        // Shorter files are inline, or fragments, which are compared when they are packed.
        let is_packed = options.fragments != Fragments::None || options.inline_data && options.chunk_bytes.is_none();
        let compared_len_min = match options.format {
            Format::Erofs if is_packed => inline_len_max(options.block_len()) as u64 + 1,
            _ => 1,
        };
        let is_compared = |content: &&Content| !content.is_referred() && content.size() >= compared_len_min;
        let own = |place: usize| tree.content(&order[place]).filter(is_compared);
        let duplicates = if options.shares_files() {
            Duplicates::find(order.len(), own, options, progress)?
        } else {
            Duplicates::none(order.len())
        };
        let launch = options.profile.as_ref().map(|profile| Launch::new(profile, tree, order));
        let ranks = launch.as_ref().map(|launch| launch.ranks(&duplicates));
        let packs = options.fragments != Fragments::None || matches!(options.format, Format::Squashfs(_));
        let mut groups = if packs { similarity_groups(tree, order) } else { Vec::new() };
        if let Some(ranks) = &ranks {
            // Files that a launch reads keep their order.
            let ranked = groups.iter_mut().zip(ranks).filter(|(_, rank)| **rank != usize::MAX);
            ranked.for_each(|(group, _)| *group = 0);
        }
        let codings = coding_numbers(tree, order, options)?;
        Ok(Self { duplicates, launch, codings, groups, ranks })
    }

    /// The files that have content of their own, for the tree of [`ContentPlan::new`].
    pub(crate) fn to_store<'t>(
        &'t self,
        tree: &'t Tree,
        order: &'t [OrderedNode],
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<FilesToStore<'t>> {
        let mut files = Vec::new();
        for ((place, ordered), number) in order.iter().enumerate().zip(0..) {
            let content = tree.content(ordered).filter(|content| content.size() > 0 && !content.is_referred());
            if let Some(content) = content.filter(|_| self.duplicates.of(place).is_none()) {
                let method = FileMethod::of(content, options, self.coding(place))?;
                files.push(PlannedFile { place: number, method });
            }
        }
        if let Some(ranks) = &self.ranks {
            files.sort_by_key(|file| ranks[file.place as usize]);
        }
        FilesToStore::new(files, FileOrigin::Tree { plan: self, tree, order }, options, progress)
    }

    /// The number of a file's coding, if it is compressed.
    fn coding(&self, place: usize) -> Option<usize> {
        self.codings[place].map(usize::from)
    }

    /// The similarity group of a file.
    fn group(&self, place: usize) -> u32 {
        self.groups.get(place).copied().unwrap_or(0)
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
        let own = order.iter().enumerate().filter(|(place, _)| self.duplicates.of(*place).is_none());
        let file =
            |(place, ordered)| Some(BlockFile { place, content: tree.content(ordered)?, group: self.group(place) });
        let mut files: Vec<_> = own.filter_map(file).filter(|file| file.content.size() > 0).collect();
        match &self.ranks {
            Some(ranks) => files.sort_by_key(|file| ranks[file.place]),
            None => sort_by_priority(&mut files, tree, order, priorities),
        }
        files
    }
}

impl<'a> FilesToStore<'a> {
    fn new(
        files: Vec<PlannedFile>,
        origin: FileOrigin<'a>,
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let mut to_store = Self { files, origin, splits: FileSplits::default() };
        if options.dedupe {
            to_store.splits = splits(&to_store, options, progress)?;
        }
        Ok(to_store)
    }

    /// The content of an inode that does not belong to the tree; its place is 0.
    pub(crate) fn special(
        content: &'a Content,
        coding: Option<usize>,
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let method = coding.map_or(FileMethod::Flat, |_| FileMethod::Compress(TailRule::Blocks));
        Self::new(vec![PlannedFile { place: 0, method }], FileOrigin::Special(content, coding), options, progress)
    }

    /// The files.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FileToStore<'a>> + use<'_, 'a> {
        let origin = self.origin;
        self.files.iter().filter_map(move |planned| {
            let place = planned.place as usize;
            let method = planned.method.into();
            Some(match origin {
                FileOrigin::Tree { plan, tree, order } => {
                    let content = tree.content(&order[place])?;
                    FileToStore { place, content, coding: plan.coding(place), group: plan.group(place), method }
                }
                FileOrigin::Special(content, coding) => FileToStore { place, content, coding, group: 0, method },
            })
        })
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
fn splits(to_store: &FilesToStore<'_>, options: &Options, progress: &mut dyn Progress) -> Result<FileSplits> {
    let mut splits = FileSplits::default();
    for (number, coding) in options.codings().into_iter().enumerate() {
        let of_coding =
            |file: &FileToStore<'_>| file.coding == Some(number) && matches!(file.method, StorageMethod::Compress(_));
        let files: Vec<_> = to_store.iter().filter(of_coding).map(|file| (file.place, file.content)).collect();
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
        let place = |path: &[u8]| tree.find(path).map(|node| places.of(node));
        Self { profile, places: profile.ranges().iter().map(|range| place(&range.path)).collect() }
    }

    /// The rank of each file; the launch reads files of lower ranks earlier. A file that shares the content of an
    /// earlier one has its rank.
    pub(crate) fn ranks(&self, duplicates: &Duplicates) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; duplicates.len()];
        for (rank, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let stored = duplicates.of(*place).unwrap_or(*place);
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
fn similarity_groups(tree: &Tree, order: &[OrderedNode]) -> Vec<u32> {
    let mut by_node = vec![0; tree.len()];
    for ordered in order.iter().filter(|ordered| matches!(tree.node(ordered.node).body, Body::Directory(_))) {
        for (name, node) in tree.entries(ordered.node) {
            let group = &mut by_node[node.index()];
            if *group == 0 {
                *group = u32::try_from(xxh64(extension(name), 0) >> 32).unwrap_or(0);
            }
        }
    }
    order.iter().map(|ordered| by_node[ordered.node.index()]).collect()
}

/// The number of each file's coding in [`Options::codings`]; `None` if the file is not compressed. The first matching
/// hint applies. A file with several hard links is matched by its first path.
fn coding_numbers(tree: &Tree, order: &[OrderedNode], options: &Options) -> Result<Vec<Option<u16>>> {
    let usual = options.compression.map(|_| 0);
    if options.hints.is_empty() {
        return Ok(vec![usual; order.len()]);
    }
    let too_many = |_| Error::Option("there are too many different compression hints".into());
    let number = |coding: Coding| options.coding_number(coding).map(u16::try_from).transpose().map_err(too_many);
    let hint = |hint: &Hint| Ok((expression(&hint.expression)?, hint.coding.map_or(Ok(None), number)?));
    let hints = options.hints.iter().map(hint).collect::<Result<Vec<_>>>()?;
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
pub(crate) fn extension(name: &[u8]) -> &[u8] {
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
