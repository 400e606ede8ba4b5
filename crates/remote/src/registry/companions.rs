//! The blobs that accompany a layer: its digest table, its hash tree and its launch bundle.

use std::{collections::BTreeMap, fs::File, io};

use floe_image::ByteRange;
use floe_remote_cache::{Digest, DigestTable, HashTree};

use crate::{
    file_digests::FileDigests,
    launch_bundle::{BUNDLE_MEDIA_TYPE, LaunchBundle},
    registry::{
        document::Descriptor,
        manifest::{Layer, TABLE_ANNOTATION, TREE_ANNOTATION, TREE_ROOT_ANNOTATION, annotate},
    },
};

/// What accompanies a layer in a registry.
pub struct Companions {
    digests: FileDigests,
    /// The launch bundle and its bytes.
    bundle: Option<(LaunchBundle, Vec<u8>)>,
}

/// A blob that accompanies a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Companion {
    pub(crate) media_type: &'static str,
    /// Its digest.
    pub digest: Digest,
    pub(crate) len: u64,
}

impl Companions {
    /// Computes the digests of the layer in `file`, and collects the parts of it that a launch reads. These are given in groups
    /// that are fetched one after the other. A layer of one chunk comes with one request, and gets no launch bundle.
    ///
    /// # Errors
    /// The file cannot be read, or is longer than 4 TiB.
    pub fn new(file: &File, launch: &[Vec<ByteRange>]) -> io::Result<Self> {
        let digests = FileDigests::of(file)?;
        let bundle = if digests.tree.is_some() { LaunchBundle::of(launch, file)? } else { None };
        Ok(Self { digests, bundle })
    }

    /// The digest of the layer.
    pub fn layer_digest(&self) -> &Digest {
        &self.digests.whole
    }

    /// The length of the layer in bytes.
    pub fn layer_len(&self) -> u64 {
        self.digests.table.object_len()
    }

    /// The root that readers verify the layer with.
    pub fn root(&self) -> Digest {
        self.digests.tree.as_ref().map_or(*self.digests.table.digest(), |tree| tree.root().root_hash)
    }

    /// The blobs, with their bytes.
    pub fn blobs(&self) -> Vec<(Companion, Vec<u8>)> {
        let FileDigests { table, tree, .. } = &self.digests;
        let blob = |media_type, bytes: Vec<u8>| {
            let companion = Companion { media_type, digest: Digest::of(&bytes), len: bytes.len() as u64 };
            (companion, bytes)
        };
        let tree = tree.as_ref().map(|tree| blob(HashTree::MEDIA_TYPE, tree.bytes().to_vec()));
        let bundle = self.bundle.as_ref().map(|(_, bytes)| blob(BUNDLE_MEDIA_TYPE, bytes.clone()));
        [Some(blob(DigestTable::MEDIA_TYPE, table.to_bytes())), tree, bundle].into_iter().flatten().collect()
    }

    /// Adds the annotations of the layer that describe the blobs.
    pub fn annotate(&self, annotations: &mut BTreeMap<String, String>) {
        let FileDigests { table, tree, .. } = &self.digests;
        annotations.insert(TABLE_ANNOTATION.to_owned(), format!("sha256:{}", table.digest()));
        if let Some(tree) = tree {
            let digests = [(TREE_ANNOTATION, Digest::of(tree.bytes())), (TREE_ROOT_ANNOTATION, tree.root().root_hash)];
            annotations.extend(digests.map(|(name, digest)| (name.to_owned(), format!("sha256:{digest}"))));
        }
        if let Some((bundle, _)) = &self.bundle {
            annotate(annotations, bundle);
        }
    }
}

impl Companion {
    /// The blobs that the annotations of a layer of `layer_len` bytes describe. Those of invalid annotations are omitted, as readers do
    /// without them.
    pub fn of_layer(annotations: &BTreeMap<String, String>, digest: &Digest, layer_len: u64) -> Vec<Self> {
        let mut descriptor = Descriptor::new("", digest, layer_len);
        descriptor.annotations.clone_from(annotations);
        let Ok(layer) = Layer::new(&descriptor, *digest) else { return Vec::new() };
        let of = |media_type, digest, len| Self { media_type, digest, len };
        let table = layer.table.map(|digest| of(DigestTable::MEDIA_TYPE, digest, DigestTable::bytes_for(layer_len)));
        let tree = layer.tree.map(|(root, digest)| of(HashTree::MEDIA_TYPE, digest, root.object_len() - layer_len));
        let bundle = layer.bundle.map(|bundle| of(BUNDLE_MEDIA_TYPE, bundle.digest(), bundle.len()));
        [table, tree, bundle].into_iter().flatten().collect()
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.media_type, &self.digest, self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn annotations_describe_all_blobs() {
        let launch = [vec![ByteRange::new(0, 5000), ByteRange::new(300_000, 1)], vec![ByteRange::new(90_000, 10)]];
        for (len, launch, count) in
            [(1_000_000, &launch[..], 3), (1_000_000, &[], 2), (5000, &launch, 1), (5000, &[], 1)]
        {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(&vec![7; len]).expect("written");
            let companions = Companions::new(&file, launch).expect("made");
            assert_eq!(companions.layer_len(), len as u64);
            let mut annotations = BTreeMap::new();
            companions.annotate(&mut annotations);
            let blobs: Vec<Companion> = companions.blobs().into_iter().map(|(companion, _)| companion).collect();
            assert_eq!(blobs.len(), count, "{len}");
            assert_eq!(Companion::of_layer(&annotations, companions.layer_digest(), len as u64), blobs);
        }
    }
}
