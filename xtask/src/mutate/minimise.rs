//! Minimises mutations.

use std::{fs, path::Path};

use super::{recipe::Recipe, supervisor::WorkerProcess, verdict::Fault};
use crate::task_error::Outcome;

/// The maximum number of smaller images tried.
const TRIALS_MAX: usize = 80;

/// Removes the parts of a recipe that a fault does not need, within the trial limit. `arguments` are those of a worker.
///
/// # Errors
/// Workers cannot be started.
pub(super) fn minimise(recipe: &Recipe, fault: &Fault, arguments: &[String], folder: &Path) -> Outcome<Recipe> {
    let mut trials = Trials { signature: fault.signature(), arguments, folder, left: TRIALS_MAX };
    let mut best = recipe.clone();
    if !trials.shows(&best)? {
        return Ok(best);
    }
    trials.shrink(&mut best, |recipe| recipe.changes.len(), |recipe, index| drop(recipe.changes.remove(index)))?;
    for change in 0..best.changes.len() {
        let count = |recipe: &Recipe| recipe.changes[change].edits.len();
        trials.shrink(&mut best, count, |recipe, index| drop(recipe.changes[change].edits.remove(index)))?;
        for edit in 0..best.changes[change].edits.len() {
            trials.shorten(&mut best, change, edit)?;
        }
    }
    Ok(best)
}

/// Trials of smaller images, each in a process of its own.
struct Trials<'a> {
    signature: String,
    arguments: &'a [String],
    folder: &'a Path,
    left: usize,
}

impl Trials<'_> {
    /// Removes each of `count` parts that is not needed.
    fn shrink(
        &mut self,
        best: &mut Recipe,
        count: impl Fn(&Recipe) -> usize,
        remove: impl Fn(&mut Recipe, usize),
    ) -> Outcome {
        for index in (0..count(best)).rev() {
            if count(best) < 2 {
                break;
            }
            let mut smaller = best.clone();
            remove(&mut smaller, index);
            if self.shows(&smaller)? {
                *best = smaller;
            }
        }
        Ok(())
    }

    /// Shortens an edit by halves from both ends.
    fn shorten(&mut self, best: &mut Recipe, change: usize, edit: usize) -> Outcome {
        for from_front in [true, false] {
            let mut step = best.changes[change].edits[edit].bytes.len() / 2;
            while step > 0 {
                let mut smaller = best.clone();
                let place = &mut smaller.changes[change].edits[edit];
                if step < place.bytes.len() {
                    if from_front {
                        place.bytes.drain(..step);
                        place.offset += step;
                    } else {
                        place.bytes.truncate(place.bytes.len() - step);
                    }
                    if self.shows(&smaller)? {
                        *best = smaller;
                        continue;
                    }
                }
                step /= 2;
            }
        }
        Ok(())
    }

    /// Whether the image of a recipe still causes the fault.
    fn shows(&mut self, recipe: &Recipe) -> Outcome<bool> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(false) };
        self.left = left;
        let path = self.folder.join("recipe.json");
        fs::write(&path, serde_json::to_vec(recipe).map_err(std::io::Error::from)?)?;
        let mut arguments = self.arguments.to_vec();
        arguments.extend(["--recipe".to_owned(), path.display().to_string()]);
        let mut is_shown = false;
        WorkerProcess::start(&arguments)?.follow(&mut |case| {
            is_shown |= case.verdict.faults.iter().any(|fault| fault.signature() == self.signature);
        })?;
        Ok(is_shown)
    }
}
