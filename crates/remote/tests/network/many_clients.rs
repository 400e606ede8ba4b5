//! Many clients of one registry that limits requests and wants tokens.

use std::{
    collections::HashMap,
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use floe_image::ImageSource;
use floe_remote::{ImageOptions, Outage, RemoteImage, RemoteOptions};

use crate::support::{Answer, Server, content::Content, object};

/// The number of clients, unless `FLOE_CLIENTS` sets it.
const CLIENTS: u64 = 40;

/// The registry answers this many requests in a second, and 429 to all others.
const REQUESTS_PER_S: u64 = 100;

/// The registry answers 429 to its first requests too, however slowly they come.
const REFUSED_FIRST: u64 = 30;

/// The requests that a client needs at least: one without a token, the token, index, manifest, table, and the bytes.
const REQUESTS_NEEDED: u64 = 6;

/// Decides which requests the registry accepts.
struct Gate {
    began: Instant,
    seen: AtomicU64,
    /// The number of requests in each second.
    counts: Mutex<HashMap<u64, u64>>,
}

impl Gate {
    fn passes(&self) -> bool {
        if self.seen.fetch_add(1, Relaxed) < REFUSED_FIRST {
            return false;
        }
        let mut counts = self.counts.lock().expect("no panic");
        let count = counts.entry(self.began.elapsed().as_secs()).or_default();
        *count += 1;
        *count <= REQUESTS_PER_S
    }
}

#[test]
fn many_clients() {
    let clients = env::var("FLOE_CLIENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(CLIENTS);
    let layer = Arc::new(object(200_000, 51));
    let mut content = Content::default();
    content.image_with_table("v1", &layer);
    let gate = Gate { began: Instant::now(), seen: AtomicU64::new(0), counts: Mutex::default() };
    let (tokens, throttled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (given, refused) = (Arc::clone(&tokens), Arc::clone(&throttled));
    let realm = Arc::new(Mutex::new(String::new()));
    let own = Arc::clone(&realm);
    let server = Server::start(move |asked| {
        if asked.path.starts_with("/token") {
            given.fetch_add(1, Relaxed);
            return Answer::new(200, &[], r#"{"token":"t","expires_in":3600}"#);
        }
        if !gate.passes() {
            refused.fetch_add(1, Relaxed);
            return Answer::new(429, &[("retry-after", "1")], "");
        }
        if asked.header("authorization") != Some("Bearer t") {
            let challenge = format!("Bearer realm=\"{}\"", own.lock().expect("no panic"));
            return Answer::new(401, &[("www-authenticate", &challenge)], "");
        }
        content.answer(asked)
    });
    *realm.lock().expect("no panic") = server.url("/token");
    let url = format!("oci://{}/team/image:v1", server.address);
    let client = || {
        let options = ImageOptions {
            remote: RemoteOptions { outage: Outage::Wait(Duration::from_secs(3600)), ..RemoteOptions::default() },
            require_verified: true,
            cache_bytes_max: Some(0),
            ..ImageOptions::default()
        };
        let started = Instant::now();
        // Each has threads, connections and tokens of its own, as a node has.
        let image = RemoteImage::open(&url, &options, |_| ()).expect("opened");
        let mut output = vec![0; layer.len()];
        image.read_at(0, &mut output).expect("read");
        assert!(output == **layer);
        started.elapsed()
    };
    let mut ready: Vec<Duration> = thread::scope(|scope| {
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        running.into_iter().map(|client| client.join().expect("none fails")).collect()
    });
    ready.sort_unstable();
    let (requests, throttled) = (server.requests(), throttled.load(Relaxed));
    println!(
        "{clients} clients: {:.1} requests each, of which {:.1} were refused; ready after {:?} (median), {:?} (p99)",
        requests as f64 / clients as f64,
        throttled as f64 / clients as f64,
        ready[ready.len() / 2],
        ready[ready.len() * 99 / 100],
    );
    assert_eq!(tokens.load(Relaxed), clients, "one token for each node");
    assert!(throttled >= REFUSED_FIRST, "{throttled} requests were refused");
    // Requests that are sent together are all refused before the client has its token.
    let accepted = requests - throttled;
    let expected = clients * REQUESTS_NEEDED..=clients * (REQUESTS_NEEDED + 2);
    assert!(expected.contains(&accepted), "{accepted} requests were accepted, not {expected:?}");
}
