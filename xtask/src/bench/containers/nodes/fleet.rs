//! The nodes: each opens the image and reads what a launch reads, with a disk cache and connections of its own.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use floe::remote::{ImageOptions, Outage, RemoteImage, RemoteOptions};
use floe_image::ImageSource;

use super::image::{REPOSITORY, SimulatedImage, TAG};
use crate::task_error::Outcome;

/// How long a node waits for servers that do not answer. All nodes share the CPUs of this machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// Nodes that start the same image.
pub(super) struct Fleet<'run> {
    pub(super) image: &'run SimulatedImage,
    /// The host and the port of the registry.
    pub(super) registry: String,
    /// The URLs of the mirrors of the zones; a node asks that of its zone.
    pub(super) mirrors: Vec<String>,
    pub(super) nodes: usize,
    /// The time over which the starts of the nodes are spread.
    pub(super) within: Duration,
    /// The directory with the caches of the nodes.
    pub(super) caches: &'run Path,
}

impl Fleet<'_> {
    /// Starts all nodes. Returns for each how long it took until all bytes of the launch were there, or why it failed.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(&self) -> Outcome<Vec<Result<Duration, String>>> {
        thread::scope(|scope| {
            let mut running = Vec::with_capacity(self.nodes);
            for number in 0..self.nodes {
                let work = move || {
                    thread::sleep(self.within.mul_f64(number as f64 / self.nodes as f64));
                    let began = Instant::now();
                    self.launch(number).map(|()| began.elapsed())
                };
                running.push(thread::Builder::new().spawn_scoped(scope, work)?);
            }
            let ended = running.into_iter().map(|node| node.join().unwrap_or_else(|_| Err("a panic".to_owned())));
            Ok(ended.collect())
        })
    }

    /// Lets one node open the image and read what a launch reads.
    fn launch(&self, number: usize) -> Result<(), String> {
        let cache = self.caches.join(number.to_string());
        fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
        let bytes = self.image.bytes();
        let mirrors = self.mirrors.get(number % self.mirrors.len().max(1)).cloned();
        let options = ImageOptions {
            remote: RemoteOptions {
                outage: Outage::Wait(PATIENCE),
                mirrors: mirrors.into_iter().collect(),
                ..RemoteOptions::default()
            },
            require_verified: true,
            cache_directory: Some(cache),
            cache_bytes_max: Some(2 * bytes.len() as u64),
        };
        let url = format!("oci://{}/{REPOSITORY}:{TAG}", self.registry);
        let failed = |error: std::io::Error| error.to_string();
        let image = RemoteImage::open(&url, &options, |_| ()).map_err(failed)?;
        let mut output = Vec::new();
        for part in &self.image.launch {
            let at = usize::try_from(part.offset()).unwrap_or(usize::MAX);
            output.resize(usize::try_from(part.len()).unwrap_or(0), 0);
            image.read_at(part.offset(), &mut output).map_err(failed)?;
            if bytes.get(at..at + output.len()) != Some(&output[..]) {
                return Err(format!("wrong bytes at {at}"));
            }
        }
        Ok(())
    }
}
