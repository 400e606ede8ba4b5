//! Where a recorded launch finds what it reads: which files come first, and the list of it.

use floe_erofs::write::launch_list;
use floe_image::Nid;

use crate::{
    profile::Profile,
    tree::{NodeId, Tree, Visit},
};

/// What a launch reads, by the places of files in the order of the image.
pub(crate) struct Launch<'a> {
    profile: &'a Profile,
    /// For each range of the profile the file's place, if it is there.
    places: Vec<Option<usize>>,
}

impl<'a> Launch<'a> {
    /// Finds the files of a profile.
    pub(crate) fn new(profile: &'a Profile, tree: &Tree, visits: &[Visit]) -> Self {
        let mut places = vec![None; tree.len()];
        for (place, visit) in visits.iter().enumerate() {
            places[visit.node.index()] = Some(place);
        }
        let place = |path: &[u8]| find(tree, path).and_then(|node| places[node.index()]);
        Self { profile, places: profile.ranges().iter().map(|range| place(&range.path)).collect() }
    }

    /// For each place when it is read: less is sooner. A file that is stored with an earlier one is read with it.
    pub(crate) fn ranks(&self, same: &[Option<usize>]) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; same.len()];
        for (rank, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let stored = same[*place].unwrap_or(*place);
            ranks[stored] = ranks[stored].min(rank);
        }
        ranks
    }

    /// The list as it stands in the image, whose inodes are these.
    pub(crate) fn list(&self, nids: &[u64]) -> Vec<u8> {
        let ranges = self.profile.ranges().iter().zip(&self.places);
        let ranges: Vec<_> =
            ranges.filter_map(|(range, place)| place.map(|place| (Nid(nids[place]), range.range))).collect();
        launch_list(&ranges)
    }

    /// How many ranges are of files that are not in the image.
    pub(crate) fn missing(&self) -> u64 {
        self.places.iter().filter(|place| place.is_none()).count() as u64
    }
}

fn find(tree: &Tree, path: &[u8]) -> Option<NodeId> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Tree::ROOT, |directory, name| tree.lookup(directory, name))
}
