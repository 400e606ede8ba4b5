//! The names under which the cache remembers URLs: an outage or equal ETags never lead to another image.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_image::ImageSource;
use floe_remote::{ImageOptions, Outage, RemoteImage, RemoteOptions};
use floe_remote_cache::DigestTable;

use crate::support::{Answer, Server, object};

const LEN: usize = 300_000;

/// Opens the image with a cache in `directory`, and reads all of it. Returns also whether it was recalled.
fn read(url: &str, directory: &Path) -> io::Result<(Vec<u8>, bool)> {
    let remote = RemoteOptions { outage: Outage::Wait(Duration::ZERO), ..RemoteOptions::default() };
    let cache_directory = Some(directory.to_owned());
    let options = ImageOptions { remote, cache_directory, ..ImageOptions::default() };
    let image = RemoteImage::open(url, &options, |_| ())?;
    let mut bytes = vec![0; LEN];
    image.read_at(0, &mut bytes)?;
    Ok((bytes, image.about().is_recalled))
}

#[test]
fn a_query_selects_its_own_image() {
    let images = [object(LEN, 1), object(LEN, 2)];
    let is_down = Arc::new(AtomicBool::new(false));
    let (served, down) = (images.clone(), Arc::clone(&is_down));
    let server = Server::start(move |asked| match (down.load(Relaxed), asked.path.contains("file=b")) {
        (true, _) => Answer::new(503, &[], ""),
        (false, is_second) => Answer::of_object(asked, &served[usize::from(is_second)], "\"same\""),
    });
    let directory = tempfile::tempdir().expect("a directory");
    let (a, b) = (server.url("/get?file=a"), server.url("/get?file=b"));
    let signed = server.url("/get?X-Amz-Signature=new&file=a&X-Amz-Date=now");
    assert!(read(&a, directory.path()).expect("read") == (images[0].clone(), false));
    is_down.store(true, Relaxed);
    assert!(read(&b, directory.path()).is_err(), "the other image was never opened");
    assert!(read(&a, directory.path()).expect("recalled") == (images[0].clone(), true));
    assert!(read(&signed, directory.path()).expect("recalled") == (images[0].clone(), true));
    is_down.store(false, Relaxed);
    assert!(
        read(&b, directory.path()).expect("read") == (images[1].clone(), false),
        "the ETag and the length are equal"
    );
}

#[test]
fn a_digest_table_is_never_exchanged_for_another_root() {
    let image = object(LEN, 3);
    let table = DigestTable::of(&mut &*image).expect("read");
    let is_down = Arc::new(AtomicBool::new(false));
    let (served, bytes, down) = (image.clone(), table.to_bytes(), Arc::clone(&is_down));
    let server = Server::start(move |asked| match (down.load(Relaxed), asked.path.ends_with(".digests")) {
        (true, _) => Answer::new(503, &[], ""),
        (false, true) => Answer::of_object(asked, &bytes, "\"table\""),
        (false, false) => Answer::of_object(asked, &served, "\"image\""),
    });
    let directory = tempfile::tempdir().expect("a directory");
    let url = server.url("/image");
    let pinned = format!("{url}#table=sha256:{}", table.digest());
    for url in [&url, &pinned] {
        read(url, directory.path()).expect("read");
    }
    is_down.store(true, Relaxed);
    let other = format!("{url}#table=sha256:{}", "0".repeat(64));
    assert!(read(&other, directory.path()).is_err());
    assert!(read(&pinned, directory.path()).expect("recalled") == (image, true));
}
