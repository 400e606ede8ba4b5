//! Remembers the resolution of a URL, for use while its server cannot be reached.

use std::sync::Arc;

use floe_remote_cache::{Cache, Digest, DigestTable, Location, ObjectKey, TreeRoot, Trust, VerityRoot};
use serde::{Deserialize, Serialize};

use crate::{
    RemoteLocation,
    launch_bundle::{BundleText, LaunchBundle},
};

/// The resolution of a URL: the object that it stands for at present.
#[derive(Clone, Debug)]
pub(crate) struct Resolution {
    pub(crate) key: ObjectKey,
    /// The URL without credentials; in registries with digests.
    pub(crate) name: String,
    /// The blob with the blocks that a launch reads, if there is one.
    pub(crate) bundle: Option<Arc<LaunchBundle>>,
}

/// The serialised form in the cache.
#[derive(Serialize, Deserialize)]
struct Memory {
    name: String,
    len: u64,
    root: Root,
    bundle: Option<BundleText>,
}

#[derive(Serialize, Deserialize)]
enum Root {
    Verity { root_hash: String, hash_offset: u64 },
    Tree { root_hash: String, data_len: u64 },
    Table { digest: String },
    Location { url: String, etag: String },
}

impl Resolution {
    /// Stores the resolution of `location` in the cache. A failure has no other effect.
    pub(crate) fn remember(&self, cache: &Cache, location: &RemoteLocation) {
        let Ok(remembered_as) = location.identity() else { return };
        let root = match &self.key.trust {
            Trust::Verity(root) => {
                Root::Verity { root_hash: root.root_hash.to_string(), hash_offset: root.hash_offset }
            }
            Trust::Tree(root) => Root::Tree { root_hash: root.root_hash.to_string(), data_len: root.data_len },
            Trust::Table(table) => Root::Table { digest: table.digest().to_string() },
            // An object that cannot be distinguished from its successor must not be used again.
            Trust::Location(Location { etag, .. }) if etag.is_empty() => return,
            Trust::Location(Location { url, etag }) => Root::Location { url: url.clone(), etag: etag.clone() },
        };
        let bundle = self.bundle.as_deref().map(LaunchBundle::text);
        let memory = Memory { name: self.name.clone(), len: self.key.len, root, bundle };
        if let Ok(text) = serde_json::to_string(&memory) {
            cache.remember(&remembered_as, &text);
        }
    }

    /// The remembered resolution of `location`.
    pub(crate) fn recall(cache: &Cache, location: &RemoteLocation) -> Option<Self> {
        let memory = cache.recall(&location.identity().ok()?)?;
        let Memory { name, len, root, bundle } = serde_json::from_str(&memory).ok()?;
        let trust = match root {
            Root::Verity { root_hash, hash_offset } => {
                Trust::Verity(VerityRoot { root_hash: root_hash.parse().ok()?, hash_offset })
            }
            Root::Tree { root_hash, data_len } => {
                Trust::Tree(TreeRoot { root_hash: root_hash.parse().ok()?, data_len })
            }
            Root::Table { digest } => {
                let digest: Digest = digest.parse().ok()?;
                let table = cache.blob(&digest, DigestTable::bytes_for(len))?;
                Trust::Table(DigestTable::parse_for(&table, &digest, len).ok()?.into())
            }
            Root::Location { url, etag } => Trust::Location(Location { url, etag }),
        };
        if let RemoteLocation::Web { table: Some(pinned), .. } | RemoteLocation::Object { table: Some(pinned), .. } =
            location
            && !matches!(&trust, Trust::Table(table) if table.digest() == pinned)
        {
            return None;
        }
        let key = ObjectKey { trust, len };
        let image_len = key.blob_len();
        let bundle = bundle.and_then(|text| LaunchBundle::parse(&text, image_len)).map(Arc::new);
        Some(Self { key, name, bundle })
    }
}
