//! Decides what is stored of the files, in which order, and how, before anything is compressed.

pub(crate) mod changed;
mod duplicates;
pub(crate) mod file_split;
mod grains;
pub(crate) mod launch;
mod names;
mod repeats;
pub(crate) mod storage_method;

use duplicates::duplicates;
use file_split::FileSplits;
use launch::Launch;
use names::{coding_numbers, similarity_groups};
use repeats::find_repeats;
use storage_method::{StorageMethod, TailRule};

use crate::{
    error::Result,
    options::Options,
    progress::Progress,
    tree::{OrderedNode, Tree, content::Content},
};

/// What is known about the content of a tree. All lists are in tree order.
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
        let contents: Vec<Option<&Content>> = order.iter().map(|ordered| tree.content(ordered)).collect();
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
            if let Some(content) = tree.content(ordered).filter(|content| content.size() > 0) {
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
