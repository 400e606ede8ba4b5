//! An image with a launch profile, in a registry of its own.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
};

use floe::remote::{Companions, EROFS_LAYER};
use floe_image::ByteRange;
use floe_testkit::{Random, manifest::sha256_hex};
use serde_json::json;

use super::http::{Objects, Part};
use crate::task_error::Outcome;

/// The repository and the tag of the image.
pub(super) const REPOSITORY: &str = "team/image";
pub(super) const TAG: &str = "v1";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const BLOB: &str = "application/octet-stream";

/// The unit of the parts that a launch reads, in bytes, and the maximum number of units in a part.
const UNIT_BYTES: u64 = 16 << 10;
const UNITS_MAX: u64 = 16;
/// How many parts a launch reads at a time.
const GROUP: usize = 16;

/// The image. Its content is noise: how bytes come does not depend on their format.
pub(super) struct SimulatedImage {
    /// The parts that a launch reads, in their order.
    pub(super) launch: Vec<ByteRange>,
    /// The path of the layer in the registry.
    layer: String,
    /// The documents and blobs of the registry, by their paths.
    objects: HashMap<String, (&'static str, Vec<u8>)>,
}

impl SimulatedImage {
    /// Makes an image of which a launch reads about `launch_bytes`.
    pub(super) fn new(image_bytes: u64, launch_bytes: u64) -> Outcome<Self> {
        let mut random = Random::new(47);
        let bytes = random.noise(usize::try_from(image_bytes).unwrap_or(usize::MAX));
        let launch = launch(&mut random, image_bytes, launch_bytes.min(image_bytes / 2));
        let mut file = tempfile::tempfile()?;
        file.write_all(&bytes)?;
        let companions = Companions::new(&file, &launch.chunks(GROUP).map(<[_]>::to_vec).collect::<Vec<_>>())?;
        let mut objects = HashMap::new();
        let mut add = |kind: &str, name: String, media_type, bytes: Vec<u8>| {
            objects.insert(format!("/v2/{REPOSITORY}/{kind}/{name}"), (media_type, bytes));
        };
        for (companion, bytes) in companions.blobs() {
            add("blobs", format!("sha256:{}", companion.digest), BLOB, bytes);
        }
        let (layer, mut annotations) = (format!("sha256:{}", companions.layer_digest()), BTreeMap::new());
        companions.annotate(&mut annotations);
        add("blobs", layer.clone(), BLOB, bytes);
        let digest = |bytes: &[u8]| format!("sha256:{}", sha256_hex(bytes));
        let config = json!({ "mediaType": BLOB, "digest": digest(b"{}"), "size": 2 });
        let layers =
            json!([{ "mediaType": EROFS_LAYER, "digest": &layer, "size": image_bytes, "annotations": annotations }]);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        let manifest = manifest.to_string().into_bytes();
        let entry = json!({ "mediaType": MANIFEST, "digest": digest(&manifest), "size": manifest.len() });
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] }).to_string().into_bytes();
        add("manifests", digest(&manifest), MANIFEST, manifest);
        add("manifests", digest(&index), INDEX, index.clone());
        add("manifests", TAG.to_owned(), INDEX, index);
        Ok(Self { launch, layer: format!("/v2/{REPOSITORY}/blobs/{layer}"), objects })
    }

    /// The bytes of the image.
    pub(super) fn bytes(&self) -> &[u8] {
        self.objects.get(&self.layer).map_or(&[][..], |(_, bytes)| bytes)
    }
}

impl Objects for SimulatedImage {
    fn object(&self, path: &str, range: Option<(u64, u64)>) -> Option<Part> {
        let (media_type, bytes) = self.objects.get(path)?;
        let object_len = bytes.len() as u64;
        let (first, last) = range.unwrap_or((0, object_len.checked_sub(1)?));
        let (first, end) = (usize::try_from(first).ok()?, usize::try_from((last + 1).min(object_len)).ok()?);
        Some(Part { media_type, object_len, bytes: bytes.get(first..end)?.to_vec() })
    }
}

/// Parts of an image of `image_bytes` at random places, of about `launch_bytes` together, none of which overlap.
fn launch(random: &mut Random, image_bytes: u64, launch_bytes: u64) -> Vec<ByteRange> {
    let mut parts = BTreeMap::new();
    let mut len = 0;
    while len < launch_bytes {
        let part_bytes = UNIT_BYTES * (1 + random.below(UNITS_MAX));
        let offset = random.below((image_bytes / UNIT_BYTES).max(1)) * UNIT_BYTES;
        let end = (offset + part_bytes).min(image_bytes);
        let before = parts.range(..end).next_back().map_or(0, |(offset, len)| offset + len);
        if before <= offset {
            parts.insert(offset, end - offset);
            len += end - offset;
        }
    }
    // A launch does not read in the order of the image.
    let mut parts: Vec<(u64, ByteRange)> =
        parts.into_iter().map(|(offset, len)| (random.next(), ByteRange::new(offset, len))).collect();
    parts.sort_by_key(|(order, _)| *order);
    parts.into_iter().map(|(_, part)| part).collect()
}
