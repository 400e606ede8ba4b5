//! Finds layers in registries, and remembers for a moment what was found.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use floe_remote::{Network, RemoteOptions, RootedLayer};
use floe_remote_cache::Digest;
use floe_sync::Mutex;

use crate::name::Reference;

/// How long the result of a search is used. Podman asks for one layer of an image after the other.
const KEPT: Duration = Duration::from_secs(10);

/// The searches of the last moments.
#[derive(Debug, Default)]
pub(crate) struct Searches(Mutex<HashMap<Reference, Search>>);

#[derive(Clone, Debug)]
struct Search {
    at: Instant,
    layers: Vec<RootedLayer>,
    /// Whether all manifests of the image were searched.
    is_complete: bool,
}

impl Searches {
    /// The layer of an image with this root; `None` if the image has none.
    ///
    /// # Errors
    /// The registry does not answer.
    pub(crate) fn find(
        &self,
        image: &Reference,
        root: &Digest,
        options: RemoteOptions,
    ) -> io::Result<Option<RootedLayer>> {
        let with_root = |layers: &[RootedLayer]| layers.iter().find(|layer| layer.root == *root).cloned();
        let kept = {
            let mut searches = self.0.lock();
            searches.retain(|_, search| search.at.elapsed() < KEPT);
            searches.get(image).cloned()
        };
        if let Some(search) = kept {
            let found = with_root(&search.layers);
            if found.is_some() || search.is_complete {
                return Ok(found);
            }
        }
        let network = Network::new(options)?;
        let layers = match network.images(&image.image()).and_then(|images| images.rooted_layers(root)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            layers => layers?,
        };
        let found = with_root(&layers);
        let search = Search { at: Instant::now(), layers, is_complete: found.is_none() };
        self.0.lock().insert(image.clone(), search);
        Ok(found)
    }
}
