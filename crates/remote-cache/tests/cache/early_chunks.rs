//! Chunks that are read before the rest of their request has arrived.

use std::{
    io,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use bytes::Bytes;
use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{CachedSource, Cause, FetchError, FetchFault, RangeFetcher, SECTION_BYTES, SourceOptions};

use crate::scene::{Kind, Object, Scene};

/// What arrives as part of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The next chunk, as it is.
    Right,
    /// The next chunk with a wrong byte.
    Wrong,
    /// The next chunk without its last byte.
    Short,
    /// Nothing until the reader has its chunk.
    Pause,
    /// The connection breaks.
    End(FetchFault),
}

/// A server whose answers arrive in parts.
struct Slow {
    bytes: Bytes,
    parts: Vec<Part>,
    resumed: Mutex<mpsc::Receiver<()>>,
    /// The ranges that were requested as a whole.
    whole: Mutex<Vec<ByteRange>>,
}

impl RangeFetcher for Slow {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn name(&self) -> String {
        "https://example.org/image".to_owned()
    }

    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        if cause != Cause::Tree {
            self.whole.lock().expect("no panic").push(range);
        }
        Ok(self.bytes.slice(range.offset() as usize..range.end() as usize))
    }

    fn fetch_in_parts(
        &self,
        range: ByteRange,
        part_bytes: u64,
        _cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        let mut rest = self.bytes.slice(range.offset() as usize..range.end() as usize);
        let mut next = || rest.split_to((part_bytes as usize).min(rest.len()));
        for part in &self.parts {
            match part {
                Part::Right => arrived(next()),
                Part::Wrong => {
                    let mut bytes = next().to_vec();
                    bytes[77] ^= 1;
                    arrived(bytes.into());
                }
                Part::Short => arrived(next().slice(1..)),
                Part::Pause => self.resumed.lock().expect("no panic").recv().expect("the reader has its chunk"),
                Part::End(fault) => return Err(FetchError::new(*fault, "the connection broke").into()),
            }
        }
        Ok(())
    }

    fn request_bytes(&self, _cause: Cause) -> u64 {
        8 << 20
    }
}

fn opened(object: &Object, parts: &[Part], scene: &Scene) -> (CachedSource, Arc<Slow>, mpsc::Sender<()>) {
    let (resume, resumed) = mpsc::channel();
    let (parts, resumed) = (parts.to_vec(), Mutex::new(resumed));
    let server = Arc::new(Slow { bytes: object.bytes.clone(), parts, resumed, whole: Mutex::default() });
    let fetcher = Arc::clone(&server) as Arc<dyn RangeFetcher>;
    let options = SourceOptions { reads_ahead: false, ..SourceOptions::default() };
    let source = CachedSource::open(Some(&scene.cache()), object.key.clone(), fetcher, options).expect("it opens");
    (source, server, resume)
}

#[test]
fn verified_chunks_are_read_before_the_rest_has_arrived() {
    for kind in [Kind::Table, Kind::Verity, Kind::Tree] {
        let (object, scene) = (Object::new(kind, 5 * SECTION_BYTES as usize, 3), Scene::new());
        let parts = [Part::Right, Part::Right, Part::Pause, Part::Right, Part::Right, Part::Right];
        let (source, server, resume) = opened(&object, &parts, &scene);
        source.will_need(0, object.key.data_len());
        let mut second = vec![0; 100];
        // A read that waits could request the chunk before the background thread does.
        while !source.try_read_at(SECTION_BYTES + 5, &mut second).expect("inside") {
            thread::yield_now();
        }
        assert_eq!(second, object.data()[SECTION_BYTES as usize + 5..][..100], "{kind:?}");
        // The third chunk is in flight: its reader waits for the same request.
        let waiting = thread::spawn({
            let source = source.clone();
            move || source.read_at(2 * SECTION_BYTES, &mut [0; 10])
        });
        resume.send(()).expect("the request waits");
        waiting.join().expect("no panic").expect("it arrives");
        let mut all = vec![0; object.key.data_len() as usize];
        source.read_at(0, &mut all).expect("all is here");
        assert!(all == object.data(), "{kind:?}");
        assert!(server.whole.lock().expect("no panic").is_empty(), "{kind:?}: one request brings all");
    }
}

#[test]
fn chunks_without_a_root_wait_for_the_whole_answer() {
    let (object, scene) = (Object::new(Kind::Location, 3 * SECTION_BYTES as usize, 3), Scene::new());
    let (source, server, _resume) = opened(&object, &[Part::Pause], &scene);
    let mut all = vec![0; object.key.data_len() as usize];
    source.read_at(0, &mut all).expect("read");
    assert!(all == object.data());
    assert_eq!(*server.whole.lock().expect("no panic"), [ByteRange::new(0, object.key.data_len())]);
}

#[test]
fn what_is_wrong_or_missing_is_fetched_elsewhere_and_an_outage_fails_the_rest() {
    use Part::{End, Right, Short, Wrong};
    let chunk = |first: u64, count: u64| ByteRange::new(first * SECTION_BYTES, count * SECTION_BYTES);
    for (parts, fetched, readable) in [
        (vec![Right, Wrong, Right, Right], vec![chunk(1, 1)], 4),
        (vec![Right, Short, Right, Right], vec![chunk(1, 1)], 4),
        (vec![Right, Right], vec![chunk(2, 2)], 4),
        (vec![Right, End(FetchFault::WrongBytes)], vec![chunk(1, 3)], 4),
        (vec![Right, Right, End(FetchFault::Outage)], vec![], 2),
    ] {
        let (object, scene) = (Object::new(Kind::Table, 4 * SECTION_BYTES as usize, 5), Scene::new());
        let (source, server, _resume) = opened(&object, &parts, &scene);
        let mut all = vec![0; object.key.data_len() as usize];
        let result = source.read_at(0, &mut all);
        assert_eq!(result.is_ok(), readable == 4, "{parts:?}");
        let filled = readable * SECTION_BYTES as usize;
        assert!(all[..filled] == object.data()[..filled], "{parts:?}");
        assert!(all[filled..].iter().all(|byte| *byte == 0), "{parts:?}: nothing unverified");
        assert_eq!(*server.whole.lock().expect("no panic"), fetched, "{parts:?}");
    }
}
