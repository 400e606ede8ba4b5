//! Launch bundles: reads get the image's bytes, whatever becomes of the bundle.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use floe_image::ImageSource;
use floe_remote::{ImageOptions, RemoteImage, RemoteOptions};
use floe_remote_cache::{Digest, DigestTable, VerityOptions, append_verity};
use floe_testkit::check_rows;

use crate::support::{Answer, Server, content::Content, object};

const LEN: usize = (3 << 20) + 777;

/// The blocks in the bundle: the first of each run, and their number.
const RUNS: [(usize, usize); 4] = [(0, 2), (700, 69), (300, 100), (100, 7)];

/// The notices of the images that this test opens.
static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A registry with an image with a bundle. The first function gets the answers for the bundle; the others count.
struct Registry {
    server: Server,
    image_requests: Arc<AtomicU64>,
    is_down: Arc<AtomicBool>,
}

impl Registry {
    fn new(layer: &[u8], root: &str, change: impl Fn(Answer) -> Answer + Send + Sync + 'static) -> Self {
        let mut content = Content::default();
        let (bundle, annotations) = content.bundle(layer, &RUNS);
        if root.is_empty() {
            let table = content.blob(&DigestTable::of(&mut &*layer).expect("read").to_bytes());
            content.image("v1", layer, &format!(r#""dev.floe.digest-table":"{table}",{annotations}"#));
        } else {
            content.image("v1", layer, &format!("{root},{annotations}"));
        }
        let (image_requests, is_down) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, down) = (Arc::clone(&image_requests), Arc::clone(&is_down));
        let image = format!("sha256:{}", Digest::of(layer));
        let server = Server::start(move |asked| {
            let answer = content.answer(asked);
            count.fetch_add(u64::from(asked.path.ends_with(&image)), Relaxed);
            let answer = if asked.path.ends_with(&bundle) { change(answer) } else { answer };
            Answer { hangs_up: answer.hangs_up || down.load(Relaxed), ..answer }
        });
        Self { server, image_requests, is_down }
    }

    fn open(&self, cache: &tempfile::TempDir) -> RemoteImage {
        let options = ImageOptions {
            remote: RemoteOptions {
                outage: floe_remote::Outage::Wait(std::time::Duration::ZERO),
                ..Default::default()
            },
            require_verified: true,
            cache_directory: Some(cache.path().to_owned()),
            cache_bytes_max: Some(64 << 20),
        };
        let notice = |text: &str| NOTICES.lock().expect("no panic").push(text.to_owned());
        let url = format!("oci://{}/team/image:v1", self.server.address);
        RemoteImage::open(&url, &options, notice).expect("opened")
    }
}

/// Reads ranges at the edges of runs and all of the image; returns complaints.
fn read_all(image: &RemoteImage, expected: &[u8]) -> Vec<String> {
    let edges = RUNS.iter().flat_map(|(first, count)| [first * 4096, (first + count) * 4096]);
    let around = edges.map(|edge| (edge.saturating_sub(5000), 10_000)).filter(|(at, len)| at + len <= expected.len());
    let mut complaints = Vec::new();
    for (at, len) in around.chain([(0, expected.len()), (expected.len() - 1, 1)]) {
        let mut output = vec![0; len];
        match image.read_at(at as u64, &mut output) {
            Ok(()) if output == expected[at..at + len] => {}
            Ok(()) => complaints.push(format!("wrong bytes at {at}+{len}")),
            Err(error) => complaints.push(format!("{at}+{len}: {error}")),
        }
        output.fill(0);
        if image.try_read_at(at as u64, &mut output).expect("inside") && output != expected[at..at + len] {
            complaints.push(format!("wrong bytes in memory at {at}+{len}"));
        }
    }
    complaints
}

#[test]
fn launches_are_read_from_the_bundle_alone_and_offline_too() {
    let layer = object(LEN, 41);
    let (registry, cache) = (Registry::new(&layer, "", |answer| answer), tempfile::tempdir().expect("a directory"));
    let launch = |image: &RemoteImage| {
        for (first, count) in RUNS {
            let at = first * 4096;
            let mut output = vec![0; (count * 4096).min(LEN - at)];
            image.read_at(at as u64, &mut output).expect("read");
            assert!(output == layer[at..at + output.len()], "{first}+{count}");
        }
    };
    let image = registry.open(&cache);
    launch(&image);
    assert!(registry.image_requests.load(Relaxed) <= 1, "all of it comes from the bundle");
    // The first chunk is fetched with the digest table, which is needed offline.
    image.read_at(5 * 4096, &mut [0; 10]).expect("read");
    assert_eq!(registry.image_requests.load(Relaxed), 1);
    drop(image);
    registry.is_down.store(true, Relaxed);
    let offline = registry.open(&cache);
    assert!(offline.about().is_recalled);
    launch(&offline);
    registry.is_down.store(false, Relaxed);
    assert_eq!(read_all(&registry.open(&cache), &layer), Vec::<String>::new());
}

#[test]
fn images_with_trees_have_bundles_too() {
    let data = object(LEN, 43);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &data).expect("written");
    let root = append_verity(file.as_file(), &VerityOptions::default()).expect("a hash tree");
    let layer = std::fs::read(file.path()).expect("read");
    let root = format!(
        r#""org.erofs.dmverity.root_digest":"sha256:{}","org.erofs.dmverity.hash_offset":"{}""#,
        root.root_hash, root.hash_offset
    );
    let (registry, cache) = (Registry::new(&layer, &root, |answer| answer), tempfile::tempdir().expect("a directory"));
    let image = registry.open(&cache);
    assert_eq!(read_all(&image, &layer[..image.len() as usize]), Vec::<String>::new());
    let error = image.read_at(image.len() - 1, &mut [0; 2]).expect_err("past the data");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn bundles_that_cannot_be_used_are_left_out() {
    type Change = fn(Answer) -> Answer;
    let rows: &[(&str, Change)] = &[
        ("missing", |_| Answer::new(404, &[], "")),
        ("forbidden", |_| Answer::new(403, &[], "")),
        ("busy", |_| Answer::new(503, &[("retry-after", "0")], "")),
        ("wrong bytes", |mut answer| {
            answer.body.iter_mut().for_each(|byte| *byte ^= 1);
            answer
        }),
        ("one wrong byte", |mut answer| {
            if let Some(byte) = answer.body.last_mut() {
                *byte ^= 1;
            }
            answer
        }),
        ("of another length", |_| Answer::new(206, &[("content-range", "bytes 0-9/10")], vec![0; 10])),
        ("cut", |answer| Answer { cut: Some(answer.body.len() / 2), ..answer }),
        ("hung up", |answer| Answer { hangs_up: true, ..answer }),
        ("all of it, for each range", |answer| Answer { status: 200, ..answer }.without("content-range")),
    ];
    check_rows(
        rows,
        |row| row.0.to_owned(),
        |(name, change)| {
            let layer = object(LEN, 42 + name.len() as u64);
            let (registry, cache) = (Registry::new(&layer, "", *change), tempfile::tempdir().expect("a directory"));
            let mut complaints = read_all(&registry.open(&cache), &layer);
            // Another mount of what the cache has by now.
            complaints.extend(read_all(&registry.open(&cache), &layer));
            let place = registry.server.address.to_string();
            let notices = NOTICES.lock().expect("no panic");
            let told = notices.iter().filter(|notice| notice.contains(&place) && notice.contains("from the image"));
            if told.count() == 0 && *name != "cut" {
                complaints.push("no notice".to_owned());
            }
            complaints
        },
    );
}
