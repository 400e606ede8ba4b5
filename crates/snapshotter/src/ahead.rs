//! Layers that are mounted before containerd asks for them.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use floe_sync::{Condvar, Mutex};

/// The maximum number of layers that are mounted at a time.
const THREADS_MAX: usize = 8;

/// How long a layer that containerd does not ask for is kept. The pull was given up then.
const KEPT: Duration = Duration::from_secs(300);

/// Layers that are mounted before containerd asks for them: it asks for one after the other, and each waits for its registry.
#[derive(Clone, Default)]
pub(crate) struct Ahead(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// By their URLs.
    layers: Mutex<HashMap<String, Layer>>,
    changed: Condvar,
}

struct Layer {
    /// The number of its directory.
    id: u64,
    /// `None` while it is being mounted; an error is a message.
    mounted: Option<Result<(), String>>,
    since: Instant,
}

impl Ahead {
    /// Those of the URLs that are not being mounted.
    pub(crate) fn unknown(&self, urls: Vec<String>) -> Vec<String> {
        let layers = self.0.layers.lock();
        urls.into_iter().filter(|url| !layers.contains_key(url)).collect()
    }

    /// Begins to mount layers, given by their URLs and the numbers of their directories, in this order.
    pub(crate) fn begin(
        &self,
        layers: Vec<(String, u64)>,
        mount: impl Fn(&str, u64) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let mut queue = VecDeque::new();
        {
            let mut known = self.0.layers.lock();
            for (url, id) in layers.into_iter().filter(|(url, _)| !known.contains_key(url)).collect::<Vec<_>>() {
                known.insert(url.clone(), Layer { id, mounted: None, since: Instant::now() });
                queue.push_back((url, id));
            }
        }
        let threads = queue.len().min(THREADS_MAX);
        let (queue, mount) = (Arc::new(Mutex::new(queue)), Arc::new(mount));
        for number in 0..threads {
            let (shared, next, mount) = (Arc::clone(&self.0), Arc::clone(&queue), Arc::clone(&mount));
            let work = move || {
                loop {
                    let Some((url, id)) = next.lock().pop_front() else { return };
                    let mounted = mount(&url, id);
                    shared
                        .layers
                        .lock()
                        .get_mut(&url)
                        .into_iter()
                        .for_each(|layer| layer.mounted = Some(mounted.clone()));
                    shared.changed.notify_all();
                }
            };
            if thread::Builder::new().name(format!("floe-ahead/{number}")).spawn(work).is_err() && number == 0 {
                // They are mounted when containerd asks for them.
                let mut known = self.0.layers.lock();
                queue.lock().drain(..).for_each(|(url, _)| drop(known.remove(&url)));
                self.0.changed.notify_all();
                return;
            }
        }
    }

    /// Waits for a layer, and hands it over: the number of its directory, if it was mounted ahead.
    ///
    /// # Errors
    /// It could not be mounted, for this reason.
    pub(crate) fn take(&self, url: &str) -> Result<Option<u64>, String> {
        let is_under_way =
            |layers: &mut HashMap<String, Layer>| layers.get(url).is_some_and(|layer| layer.mounted.is_none());
        let mut layers = self.0.changed.wait_while(self.0.layers.lock(), is_under_way);
        let Some(Layer { id, mounted, .. }) = layers.remove(url) else { return Ok(None) };
        mounted.unwrap_or(Ok(())).map(|()| Some(id))
    }

    /// The numbers of the directories that are in use. Those of layers that containerd has not asked for in time no longer are.
    pub(crate) fn ids(&self) -> BTreeSet<u64> {
        let mut layers = self.0.layers.lock();
        layers.retain(|_, layer| layer.mounted.is_none() || layer.since.elapsed() < KEPT);
        layers.values().map(|layer| layer.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_mounted_once_and_handed_over() {
        let ahead = Ahead::default();
        let layers =
            |urls: &[&str]| urls.iter().zip(1_u64..).map(|(url, id)| ((*url).to_owned(), id)).collect::<Vec<_>>();
        let mounted = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&mounted);
        ahead.begin(layers(&["a", "b", "bad"]), move |url, id| {
            noted.lock().push((url.to_owned(), id));
            if url == "bad" { Err("refused".to_owned()) } else { Ok(()) }
        });
        ahead.begin(layers(&["b"]), |_, _| Err("twice".to_owned()));
        assert_eq!(ahead.unknown(vec!["a".to_owned(), "c".to_owned()]), ["c"]);
        assert_eq!(ahead.take("b"), Ok(Some(2)));
        assert_eq!(ahead.take("bad"), Err("refused".to_owned()));
        assert_eq!((ahead.take("bad"), ahead.take("c")), (Ok(None), Ok(None)));
        assert_eq!(ahead.ids(), BTreeSet::from([1]));
        assert_eq!(ahead.take("a"), Ok(Some(1)));
        assert!(ahead.ids().is_empty());
        let mut mounted = mounted.lock().clone();
        mounted.sort();
        assert_eq!(mounted, [("a".to_owned(), 1), ("b".to_owned(), 2), ("bad".to_owned(), 3)]);
    }
}
