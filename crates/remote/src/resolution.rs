//! What a URL led to the last time, for when its server cannot be reached.

use floe_remote_cache::{Cache, Digest, DigestTable, Location, ObjectKey, RangeFetcher, Trust, VerityRoot};
use serde::{Deserialize, Serialize};

use crate::RemoteObject;

/// What a URL led to the last time.
#[derive(Clone, Debug)]
pub(crate) struct Resolution {
    key: ObjectKey,
    name: String,
}

/// The form in which the cache keeps it.
#[derive(Serialize, Deserialize)]
struct Memory {
    name: String,
    len: u64,
    root: Root,
}

#[derive(Serialize, Deserialize)]
enum Root {
    Verity { root_hash: String, hash_offset: u64 },
    Table { digest: String },
    Location { url: String, etag: String },
}

impl Resolution {
    pub(crate) fn of(object: &RemoteObject) -> Self {
        Self { key: object.key().clone(), name: object.name() }
    }

    /// Has the cache keep it under the URL `location`. A failure costs only the memory.
    pub(crate) fn remember(&self, cache: &Cache, location: &str) {
        let root = match &self.key.trust {
            Trust::Verity(root) => {
                Root::Verity { root_hash: root.root_hash.to_string(), hash_offset: root.hash_offset }
            }
            Trust::Table(table) => Root::Table { digest: table.digest().to_string() },
            // An object that nothing tells from its successor is not taken for the same later.
            Trust::Location(Location { etag, .. }) if etag.is_empty() => return,
            Trust::Location(Location { url, etag }) => Root::Location { url: url.clone(), etag: etag.clone() },
        };
        let memory = Memory { name: self.name.clone(), len: self.key.len, root };
        if let Ok(text) = serde_json::to_string(&memory) {
            cache.remember(location, &text);
        }
    }

    /// What the cache remembers of `location`.
    pub(crate) fn recall(cache: &Cache, location: &str) -> Option<(ObjectKey, String)> {
        let Memory { name, len, root } = serde_json::from_str(&cache.recall(location)?).ok()?;
        let trust = match root {
            Root::Verity { root_hash, hash_offset } => {
                Trust::Verity(VerityRoot { root_hash: root_hash.parse().ok()?, hash_offset })
            }
            Root::Table { digest } => {
                let digest: Digest = digest.parse().ok()?;
                let table = cache.blob(&digest, DigestTable::bytes_for(len))?;
                Trust::Table(DigestTable::parse(&table, &digest).ok()?.into())
            }
            Root::Location { url, etag } => Trust::Location(Location { url, etag }),
        };
        Some((ObjectKey { trust, len }, name))
    }
}
