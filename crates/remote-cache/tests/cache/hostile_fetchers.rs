//! Servers that send wrong bytes.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use floe_image::ImageSource;
use floe_remote_cache::{FetchError, FetchFault};
use floe_testkit::Random;

use crate::scene::{Kind, Lie, Object, Scene, Server, number_from, open, read_all, read_parts};

/// The number of lying servers for each kind of verification, without `FLOE_HOSTILE_FETCHERS`.
const CASES: usize = 140;

/// A server that changes about one of `rate` answers.
fn liar(seed: u64, rate: u64) -> Lie {
    let random = Mutex::new(Random::new(seed));
    Arc::new(move |_, bytes| {
        let mut random = random.lock().expect("no panic");
        if random.below(rate) != 0 {
            return Ok(bytes);
        }
        let mut wrong = bytes.to_vec();
        let at = random.below(wrong.len() as u64) as usize;
        match random.below(8) {
            0 => wrong.truncate(at),
            1 => wrong.extend_from_within(..at + 1),
            2 => wrong.clear(),
            3 => wrong.fill(0),
            4 => wrong.rotate_left(at),
            5 => return Err(FetchError::new(FetchFault::Outage, "reset").into()),
            6 => return Err(FetchError::new(FetchFault::Gone, "gone").into()),
            _ => wrong[at] ^= 1 << random.below(8),
        }
        Ok(Bytes::from(wrong))
    })
}

#[test]
fn no_wrong_byte_gets_through() {
    let cases = number_from("FLOE_HOSTILE_FETCHERS", CASES);
    for kind in [Kind::Verity, Kind::SmallVerity, Kind::Tree, Kind::Table] {
        let object = Object::new(kind, 300_000, 3);
        let (mut read, mut failed, mut unopened) = (0, 0, 0);
        for seed in 0..cases as u64 {
            let scene = Scene::new();
            let cache = scene.cache();
            let server = Server::of(&object);
            server.set_lie(Some(liar(seed, 1 + seed % 4)));
            match open(&cache, &object, &server) {
                Err(_) => unopened += 1,
                Ok(source) => {
                    let (right, errors) = read_parts(&source, object.data(), &mut Random::new(seed), 6);
                    (read, failed) = (read + right, failed + errors.len());
                }
            }
            server.set_lie(None);
            let honest = open(&cache, &object, &server).expect("nothing wrong was kept");
            assert!(read_all(&honest).expect("all of it") == object.data(), "{kind:?}, case {seed}");
        }
        assert!(
            read > cases / 2 && failed > cases / 7,
            "{kind:?}: {read} reads, {failed} failed, {unopened} not opened"
        );
    }
}

#[test]
fn a_wrong_answer_is_asked_for_once_more_elsewhere() {
    for kind in [Kind::Verity, Kind::SmallVerity, Kind::Tree, Kind::Table] {
        let object = Object::new(kind, 600_000, 3);
        let server = Server::of(&object);
        let source = open(&Scene::new().cache(), &object, &server).expect("it opens");
        // The first mirror has one wrong byte in the second chunk; the other mirror is correct.
        let wrong_until_elsewhere = {
            let server = Arc::downgrade(&server);
            move |range: floe_image::ByteRange, bytes: Bytes| {
                let is_elsewhere =
                    server.upgrade().is_some_and(|server| !server.elsewhere.lock().expect("free").is_empty());
                if is_elsewhere || range.offset() > 300_000 || range.end() <= 300_000 {
                    return Ok(bytes);
                }
                let mut wrong = bytes.to_vec();
                wrong[300_000 - range.offset() as usize] ^= 1;
                Ok(wrong.into())
            }
        };
        server.set_lie(Some(Arc::new(wrong_until_elsewhere)));
        assert!(read_all(&source).expect("all of it") == object.data());
        let chunk_bytes = object.key.chunk_bytes();
        let chunk = floe_image::ByteRange::new(300_000 / chunk_bytes * chunk_bytes, chunk_bytes);
        assert_eq!(*server.elsewhere.lock().expect("no panic"), [chunk], "{kind:?}");
        assert_eq!(source.counts().verification_failures, 1);
    }
}

#[test]
fn an_error_names_the_url_the_place_and_the_rule() {
    for (kind, offset, rule) in [
        (Kind::Verity, 299_008, "a block does not have the hash in the dm-verity tree"),
        (Kind::SmallVerity, 299_520, "a block does not have the hash in the dm-verity tree"),
        (Kind::Tree, 294_912, "a piece of 16 KiB does not have the hash in the hash tree"),
        (Kind::Table, 262_144, "a piece of 256 KiB does not have the digest in the digest table"),
    ] {
        let object = Object::new(kind, 600_000, 3);
        let server = Server::of(&object);
        let source = open(&Scene::new().cache(), &object, &server).expect("it opens");
        let lie = |range: floe_image::ByteRange, bytes: Bytes| {
            let mut wrong = bytes.to_vec();
            if let Some(byte) = 300_000_u64.checked_sub(range.offset()).and_then(|at| wrong.get_mut(at as usize)) {
                *byte ^= 0x40;
            }
            Ok(wrong.into())
        };
        server.set_lie(Some(Arc::new(lie)));
        let error = source.read_at(299_000, &mut [0]).expect_err("the chunk is wrong");
        let expected = format!("https://example.org/image, byte {offset}: {rule} ({})", object.key);
        assert_eq!((error.to_string(), FetchError::fault_of(&error)), (expected, FetchFault::WrongBytes));
        assert_eq!(server.elsewhere.lock().expect("no panic").len(), 1, "one retry");
        source.read_at(0, &mut [0]).expect("the first chunk is right");
    }
}

#[test]
fn a_wrong_salt_is_noticed_and_fetched_anew() {
    let object = Object::new(Kind::Verity, 300_000, 3);
    let floe_remote_cache::Trust::Verity(root) = object.key.trust else { unreachable!("it has a tree") };
    // The salt begins at byte 88 of the superblock.
    let salt = root.hash_offset + 90;
    let lie = move |range: floe_image::ByteRange, bytes: Bytes| {
        let mut wrong = bytes.to_vec();
        if let Some(byte) = salt.checked_sub(range.offset()).and_then(|at| wrong.get_mut(at as usize)) {
            *byte ^= 1;
        }
        Ok(wrong.into())
    };
    let (scene, server) = (Scene::new(), Server::of(&object));
    server.set_lie(Some(Arc::new(lie)));
    let error = open(&scene.cache(), &object, &server).expect_err("no block fits");
    assert_eq!(FetchError::fault_of(&error), FetchFault::WrongBytes, "{error}");
    assert!(!server.elsewhere.lock().expect("no panic").is_empty(), "another mirror was tried");
    // The cache has the wrong superblock.
    server.set_lie(None);
    let source = open(&scene.cache(), &object, &server).expect("fetched anew");
    assert!(read_all(&source).expect("all of it") == object.data());
}

#[test]
fn a_wrong_superblock_cannot_show_hashes_as_data() {
    // The image is itself a hash block of another tree: with a superblock that matches, its hashes would verify as
    // data.
    let object = Object::new(Kind::Verity, 128 * 4096 * 2, 3);
    let floe_remote_cache::Trust::Verity(root) = object.key.trust else { unreachable!("it has a tree") };
    let at = root.hash_offset as usize;
    for (blocks, image) in [(2_u64, 2 * 4096), (1, 4096), (0, 0), (255, 255 * 4096)] {
        let mut bytes = object.bytes.to_vec();
        bytes[at + 72..at + 80].copy_from_slice(&blocks.to_le_bytes());
        // The two hash blocks of the leaves, which cover the data.
        let leaves = at + 2 * 4096;
        bytes.copy_within(leaves..leaves + 2 * 4096, 0);
        let lying = Object { bytes: bytes.into(), key: object.key.clone() };
        let error = open(&Scene::new().cache(), &lying, &Server::of(&lying)).expect_err("refused");
        assert_eq!(FetchError::fault_of(&error), FetchFault::WrongBytes, "{blocks} blocks, {image}: {error}");
    }
}
