//! Lists the files of a mounted tree, so that all contenders read the same ones.

use std::{
    fs,
    path::{Path, PathBuf},
};

use floe_testkit::Random;
use rustix::fs::Access;

use crate::task_error::{During, Outcome};

/// A regular file of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ListedFile {
    /// Its path relative to the root.
    pub(super) path: PathBuf,
    /// Its size in bytes.
    pub(super) size: u64,
}

/// The regular files below `root`, by path.
///
/// # Errors
/// A directory is not readable.
pub(super) fn list(root: &Path) -> Outcome<Vec<ListedFile>> {
    walk(root, |_| true)
}

/// As [`list`], without files and directories that this user may not read.
///
/// # Errors
/// A directory cannot be read for another reason.
pub(super) fn list_readable(root: &Path) -> Outcome<Vec<ListedFile>> {
    let may = |path: &Path, access| rustix::fs::access(path, access).is_ok();
    walk(root, |path| may(path, Access::READ_OK) && (!path.is_dir() || may(path, Access::EXEC_OK)))
}

fn walk(root: &Path, is_taken: impl Fn(&Path) -> bool) -> Outcome<Vec<ListedFile>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).during(folder.display())? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let file_type = entry.file_type()?;
            if !(file_type.is_dir() || file_type.is_file()) || !is_taken(&root.join(&path)) {
                continue;
            }
            if file_type.is_dir() {
                folders.push(path);
            } else {
                files.push(ListedFile { size: entry.metadata()?.len(), path });
            }
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(files)
}

/// Selects at most `count` of the files of at least `size_min` bytes, with a probability proportional to their size.
pub(super) fn sample(files: &[ListedFile], count: usize, size_min: u64, random: &mut Random) -> Vec<ListedFile> {
    let mut candidates: Vec<&ListedFile> = files.iter().filter(|file| file.size >= size_min).collect();
    let mut chosen = Vec::new();
    let mut total: u64 = candidates.iter().map(|file| file.size).sum();
    while chosen.len() < count && !candidates.is_empty() {
        let mut place = random.below(total);
        let found = candidates.iter().position(|file| {
            let here = place < file.size;
            place = place.saturating_sub(file.size);
            here
        });
        let file = candidates.swap_remove(found.unwrap_or(0));
        total -= file.size;
        chosen.push(file.clone());
    }
    chosen
}

/// Puts the items into a random order.
pub(super) fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_distinct_and_large_enough() {
        let file = |number: u64| ListedFile { path: format!("{number:03}").into(), size: number * 100 };
        let files: Vec<ListedFile> = (0..100).map(file).collect();
        let mut chosen = sample(&files, 50, 4_096, &mut Random::new(3));
        assert_eq!(chosen.len(), 50);
        assert!(chosen.iter().all(|file| file.size >= 4_096));
        chosen.sort_by(|left, right| left.path.cmp(&right.path));
        chosen.dedup();
        assert_eq!(chosen.len(), 50);
        assert_eq!(sample(&files, 500, 4_096, &mut Random::new(3)).len(), 59);
    }
}
