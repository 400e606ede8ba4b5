//! The parents of directories.

use std::collections::HashMap;

use floe_sync::Mutex;

/// The directory that contains each directory. A directory always belongs to the first one whose rendered listing names
/// it; others show a placeholder in its place. So even a corrupt image shows no cycles.
///
/// It takes about 40 bytes per directory that was listed.
#[derive(Default)]
pub(crate) struct Parents {
    /// The number of the parent, by that of the directory.
    parents: Mutex<HashMap<u64, u64>>,
}

impl Parents {
    /// Makes `parent` the parent of directory `number`, unless it has one. Returns whether `parent` is its parent now.
    pub(crate) fn claim(&self, number: u64, parent: u64) -> bool {
        let mut parents = self.parents.lock();
        *parents.entry(number).or_insert(parent) == parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parent_stays() {
        let parents = Parents::default();
        let claims = [(5, 1), (5, 2), (5, 1), (1, 5), (2, 5), (1, 2)];
        assert_eq!(
            claims.map(|(number, parent)| parents.claim(number, parent)),
            [true, false, true, true, true, false]
        );
    }
}
