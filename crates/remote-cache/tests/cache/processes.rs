//! Several processes with one cache, and killed processes. The children run this test program again.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    Cache, CachedSource, Cause, ObjectKey, RangeFetcher, SourceOptions, Trust, parse_sidecar, sidecar_path,
    sidecar_text,
};
use floe_testkit::Random;

use crate::scene::{
    Kind, Object, Scene, Server, bytes_of, cache_in, fetches_by_chunk, number_from, open, read_all, read_parts,
};

/// The number of concurrent readers.
const READERS: usize = 8;

/// How many processes are killed, unless `FLOE_KILLS` says so.
const KILLS: usize = 100;

/// The parameters of a child: the directory with `image`, its sidecar, the `log` of fetches and the `cache`; the order
/// of its reads; the duration of each fetch; and when it starts.
const CHILD: &str = "FLOE_REMOTE_CACHE_CHILD";

/// Serves an image from a file, and logs each fetch for other processes.
struct FileServer {
    image: File,
    len: u64,
    log: File,
    delay: Duration,
}

impl RangeFetcher for FileServer {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> String {
        "https://example.org/image".to_owned()
    }

    fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<Bytes> {
        let record = [range.offset().to_le_bytes(), range.end().to_le_bytes()].concat();
        (&self.log).write_all(&record)?;
        thread::sleep(self.delay);
        let mut bytes = vec![0; range.len() as usize];
        self.image.read_exact_at(&mut bytes, range.offset())?;
        Ok(bytes.into())
    }
}

/// Not a test: the code that the children run.
#[test]
fn child() {
    let Ok(told) = env::var(CHILD) else { return };
    let [folder, seed, delay_us, start] = *told.split('|').collect::<Vec<_>>() else { panic!("{told}") };
    let folder = Path::new(folder);
    let (image, key) = image_in(folder);
    let cache = cache_in(&folder.join("cache"), 1 << 30, "first boot", &Arc::default());
    let log = File::options().append(true).create(true).open(folder.join("log")).expect("the log");
    let delay = Duration::from_micros(delay_us.parse().expect("a number"));
    while !start.is_empty() && !Path::new(start).exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let source = source_of(&cache, &image, key, log, delay);
    source.will_need(0, source.len() / 2);
    let data = bytes_of(&image);
    let mut random = Random::new(seed.parse().expect("a number"));
    let (_, errors) = read_parts(&source, &data[..source.len() as usize], &mut random, 60);
    assert!(errors.is_empty(), "{errors:?}");
    assert!(read_all(&source).expect("all of it") == data[..source.len() as usize]);
}

fn image_in(folder: &Path) -> (PathBuf, ObjectKey) {
    let image = folder.join("image");
    let sidecar = fs::read_to_string(sidecar_path(&image)).expect("the sidecar");
    let root = parse_sidecar(&sidecar).expect("sound");
    let len = image.metadata().expect("the image").len();
    (image, ObjectKey { trust: Trust::Verity(root), len })
}

fn source_of(cache: &Arc<Cache>, image: &Path, key: ObjectKey, log: File, delay: Duration) -> CachedSource {
    let image = File::open(image).expect("the image");
    let server = FileServer { len: key.len, image, log, delay };
    CachedSource::open(Some(cache), key, Arc::new(server), SourceOptions::default()).expect("it opens")
}

fn spawn(folder: &Path, seed: usize, delay_us: u64, start: &Path) -> Child {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["--exact", "processes::child", "--test-threads=1"]);
    command.env(CHILD, format!("{}|{seed}|{delay_us}|{}", folder.display(), start.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts")
}

/// Writes the files that children need for an object.
fn publish(folder: &Path, object: &Object) {
    let Trust::Verity(root) = &object.key.trust else { panic!("it has no tree") };
    fs::write(folder.join("image"), &object.bytes).expect("written");
    fs::write(sidecar_path(&folder.join("image")), sidecar_text(root)).expect("written");
}

fn logged(folder: &Path) -> Vec<ByteRange> {
    let log = bytes_of(&folder.join("log"));
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    log.chunks_exact(16).map(|record| ByteRange::between(word(&record[..8]), word(&record[8..]))).collect()
}

#[test]
fn eight_processes_fetch_each_chunk_once() {
    let object = Object::new(Kind::Verity, (6 << 20) + 12_345, 11);
    let folder = tempfile::tempdir().expect("a folder");
    publish(folder.path(), &object);
    let start = folder.path().join("start");
    let children: Vec<Child> = (0..READERS).map(|seed| spawn(folder.path(), seed, 3000, &start)).collect();
    fs::write(&start, "").expect("written");
    for mut child in children {
        assert!(child.wait().expect("it ends").success());
    }
    let fetched = logged(folder.path());
    let counts = fetches_by_chunk(fetched.iter().copied(), &object.key);
    assert_eq!(counts.len() as u64, object.data_chunks());
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    let bytes: u64 = fetched.iter().map(|range| range.len()).sum();
    assert_eq!(bytes, object.key.len, "the hash tree, too");
}

#[test]
fn processes_killed_while_they_fill_leave_nothing_wrong() {
    let kills = number_from("FLOE_KILLS", KILLS);
    let object = Object::new(Kind::Verity, (3 << 20) + 777, 12);
    let scene = Scene::new();
    let folder = scene.directory.path();
    publish(folder, &object);
    let cache_directory = folder.join("cache");
    let server = Server::of(&object);
    let mut random = Random::new(5);
    // Children are killed within the time that a whole run takes.
    let started = Instant::now();
    assert!(spawn(folder, kills, 10_000, Path::new("")).wait().expect("a child").success());
    let mut whole_us = started.elapsed().as_micros() as u64;
    let cache = cache_in(&cache_directory, 1 << 30, "first boot", &scene.notices);
    assert_eq!(cache.drop_object(&object.key.id()).expect("it goes"), Some(true));
    let (mut healthy_ends, mut partly, mut offline_right) = (0, 0, 0);
    for kill in (0..kills).step_by(2) {
        // Two at a time, so that one often holds a lock that the other waits for.
        let mut children = [kill, kill + 1].map(|seed| spawn(folder, seed, 10_000, Path::new("")));
        thread::sleep(Duration::from_micros(random.below(whole_us)));
        let ends_before = healthy_ends;
        for child in &mut children {
            thread::sleep(Duration::from_micros(random.below(whole_us / 4)));
            healthy_ends += usize::from(child.try_wait().expect("a child").is_some_and(|status| status.success()));
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
        }
        if healthy_ends == ends_before + children.len() {
            // The children run faster than the first process, which shared a busy machine.
            whole_us = (whole_us * 3 / 4).max(1000);
        }
        let cache = cache_in(&cache_directory, 1 << 30, "first boot", &scene.notices);
        server.set_down(true);
        if let Ok(offline) = open(&cache, &object, &server) {
            partly += usize::from(!offline.is_whole());
            offline_right += read_parts(&offline, object.data(), &mut random, 40).0;
            drop(offline);
        }
        if kill % 8 == 0 {
            server.set_down(false);
            let online = open(&cache, &object, &server).expect("it opens");
            assert!(read_all(&online).expect("all of it") == object.data(), "after {kill} kills");
            drop(online);
            server.set_down(true);
            let offline = open(&cache, &object, &server).expect("it opens offline");
            assert!(read_all(&offline).expect("all of it") == object.data(), "offline, after {kill} kills");
            drop(offline);
            assert_eq!(cache.drop_object(&object.key.id()).expect("it goes"), Some(true));
        }
    }
    assert!(
        partly > kills / 60 && offline_right > 100,
        "{partly} caches were partly filled, {offline_right} reads, {healthy_ends}"
    );
}
