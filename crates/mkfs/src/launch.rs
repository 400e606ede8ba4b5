//! Applies a launch profile: the order of files and the launch list.

use floe_erofs::write::{launch_list, launch_profile};
use floe_image::Nid;

use crate::{
    profile::Profile,
    tree::{NodeId, Tree, Visit},
};

/// The files that a launch reads, indexed in image order.
pub(crate) struct Launch<'a> {
    profile: &'a Profile,
    /// The file of each range in the profile, if it exists.
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

    /// The rank of each file; the launch reads files of lower ranks earlier. A file that shares the content of an
    /// earlier one has its rank.
    pub(crate) fn ranks(&self, same: &[Option<usize>]) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; same.len()];
        for (rank, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let stored = same[*place].unwrap_or(*place);
            ranks[stored] = ranks[stored].min(rank);
        }
        ranks
    }

    /// The launch list and the profile in their on-disk form, for inodes with these nids.
    pub(crate) fn list(&self, nids: &[u64]) -> Vec<u8> {
        let ranges = self.profile.ranges().iter().zip(&self.places);
        let ranges: Vec<_> =
            ranges.filter_map(|(range, place)| place.map(|place| (Nid(nids[place]), range.range))).collect();
        [launch_list(&ranges), launch_profile(self.profile.to_text().as_bytes())].concat()
    }

    /// The number of ranges that refer to files not in the image.
    pub(crate) fn missing(&self) -> u64 {
        self.places.iter().filter(|place| place.is_none()).count() as u64
    }
}

fn find(tree: &Tree, path: &[u8]) -> Option<NodeId> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.into_iter().try_fold(Tree::ROOT, |directory, name| tree.lookup(directory, name))
}
