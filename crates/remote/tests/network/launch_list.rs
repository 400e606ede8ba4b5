//! Launch lists beside images on web servers: hints, and nothing else.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use floe_image::{ByteRange, ImageSource};
use floe_remote::{ImageOptions, LaunchList, Outage, RemoteImage, RemoteOptions};

use crate::support::{Answer, Server, object};

const LEN: usize = (8 << 20) + 77;

/// Opens an image with this list beside it, over a server that notes the ranges of the image that are requested.
fn opened(list: Option<String>, cache: &tempfile::TempDir) -> (RemoteImage, Server, Arc<AtomicBool>, Asked) {
    let (asked, is_down) = (Asked::default(), Arc::new(AtomicBool::new(false)));
    let (noted, down, image) = (Arc::clone(&asked), Arc::clone(&is_down), object(LEN, 13));
    let server = Server::start(move |asked| {
        let answer = match (&*asked.path, &list) {
            ("/image", _) => {
                noted.lock().expect("no panic").extend(asked.range());
                Answer::of_object(asked, &image, "\"image\"")
            }
            ("/image.launch", Some(list)) => Answer::of_object(asked, list.as_bytes(), "\"list\""),
            _ => Answer::new(404, &[], ""),
        };
        Answer { hangs_up: down.load(Relaxed), ..answer }
    });
    let options = ImageOptions {
        remote: RemoteOptions { outage: Outage::Wait(Duration::ZERO), ..RemoteOptions::default() },
        cache_directory: Some(cache.path().to_owned()),
        cache_bytes_max: Some(64 << 20),
        ..ImageOptions::default()
    };
    let image = RemoteImage::open(&server.url("/image"), &options, |_| ()).expect("opened");
    (image, server, is_down, asked)
}

type Asked = Arc<Mutex<Vec<(u64, u64)>>>;

#[test]
fn listed_ranges_come_without_being_read() {
    let (cache, bytes) = (tempfile::tempdir().expect("a directory"), object(LEN, 13));
    let ranges =
        [ByteRange::new(5 << 20, 100_000), ByteRange::new((2 << 20) + 5, 10), ByteRange::new(LEN as u64 - 1, 1)];
    let list = LaunchList::of(&ranges, LEN as u64).to_text();
    let (image, _server, is_down, _) = opened(Some(list), &cache);
    let read = |offset: u64, len: u64| {
        let mut output = vec![0; len as usize];
        let is_read = image.read_at(offset, &mut output).is_ok();
        assert!(!is_read || output == bytes[offset as usize..][..output.len()], "{offset}");
        is_read
    };
    let fetched = || image.counts().remote.causes.iter().map(|cause| cause.bytes).sum::<u64>();
    let started = Instant::now();
    while fetched() < (256 << 10) + (112 << 10) + (16 << 10) {
        assert!(started.elapsed() < Duration::from_secs(60), "{} bytes", fetched());
        thread::sleep(Duration::from_millis(2));
    }
    // The last answer may still be on its way to the cache.
    is_down.store(true, Relaxed);
    let started = Instant::now();
    while !ranges.iter().all(|range| read(range.offset(), range.len())) {
        assert!(started.elapsed() < Duration::from_secs(60));
    }
    assert!(!read(7 << 20, 10), "nothing else was fetched");
}

#[test]
fn wrong_lists_have_no_effect() {
    let of_another = LaunchList::of(&[ByteRange::new(5 << 20, 4096)], LEN as u64 + 1).to_text();
    let nonsense = "floe-launch 1".to_owned();
    for list in [None, Some(String::new()), Some(nonsense), Some(of_another), Some("7".repeat(2 << 20))] {
        let cache = tempfile::tempdir().expect("a directory");
        let (image, server, _, asked) = opened(list, &cache);
        while server.requests() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        let mut output = [0; 9];
        image.read_at(3 << 20, &mut output).expect("read");
        let asked = asked.lock().expect("no panic").clone();
        assert!(asked.iter().all(|(first, _)| *first == 0 || (3 << 20) - (64 << 10) <= *first && *first <= 3 << 20));
    }
}
