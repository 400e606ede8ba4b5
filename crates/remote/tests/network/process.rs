//! An image fetched by another process: in these tests, a thread at the other end of the sockets.

use std::{os::fd::OwnedFd, os::unix::net::UnixStream, sync::mpsc, thread, time::Duration};

use floe_image::ImageSource;
use floe_remote::{ImageOptions, Outage, RemoteOptions, RemoteProcess, serve};
use floe_remote_cache::{FetchError, FetchFault};

use crate::support::{Answer, Server, object};

fn options() -> ImageOptions {
    let remote = RemoteOptions { outage: Outage::Wait(Duration::ZERO), ..RemoteOptions::default() };
    ImageOptions { remote, cache_bytes_max: Some(0), ..ImageOptions::default() }
}

/// The image at a URL, served by a thread that ends with it.
fn open(url: &str) -> (std::io::Result<RemoteProcess>, thread::JoinHandle<std::io::Result<()>>) {
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let server = thread::spawn(move || serve(OwnedFd::from(theirs), |_| ()));
    (RemoteProcess::over(OwnedFd::from(ours), url, &options()), server)
}

#[test]
fn reads_and_errors_go_through() {
    let bytes = object((9 << 20) + 3, 1);
    let served = bytes.clone();
    let server = Server::start(move |asked| Answer::of_object(asked, &served, "\"one\""));
    let (image, thread) = open(&server.url("/image"));
    let image = image.expect("opened");
    assert_eq!((image.len(), image.about().verified_by.as_deref()), (bytes.len() as u64, None));
    let mut all = vec![0; bytes.len()];
    image.read_at(0, &mut all).expect("read");
    assert!(all == bytes, "a read of more than one message");
    thread::scope(|scope| {
        for worker in 0..40_usize {
            let (image, bytes) = (&image, &bytes);
            scope.spawn(move || {
                for index in 0..20 {
                    let offset = (worker * 131_071 + index * 7919) % (bytes.len() - 5000);
                    let mut piece = vec![0; 4096];
                    image.will_need(offset as u64, 4096);
                    image.read_at(offset as u64, &mut piece).expect("read");
                    assert!(piece == bytes[offset..offset + 4096]);
                    if image.try_read_at(offset as u64, &mut piece).expect("within") {
                        assert!(piece == bytes[offset..offset + 4096]);
                    }
                }
            });
        }
    });
    assert!(image.read_at(bytes.len() as u64, &mut [0]).is_err());
    let counts = image.counts().expect("counts");
    assert!(counts.remote.causes.iter().any(|cause| cause.bytes > 0));
    drop(image);
    thread.join().expect("no panic").expect("it ends with its user");
}

#[test]
fn failures_keep_their_kind() {
    let bytes = object(2 << 20, 2);
    let server = Server::start(move |asked| match asked.range() {
        Some((0, _)) => Answer::of_object(asked, &bytes, "\"one\""),
        _ => Answer::new(412, &[], ""),
    });
    let (image, _thread) = open(&server.url("/image"));
    let image = image.expect("opened");
    let error = image.read_at(1 << 20, &mut [0; 10]).expect_err("replaced");
    assert_eq!(FetchError::fault_of(&error), FetchFault::Gone);
    assert!(error.to_string().contains("/image, bytes "), "{error}");
    let (missing, _thread) = open("https://");
    assert_eq!(missing.err().expect("no URL").kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn the_end_of_the_other_process_is_an_error() {
    let bytes = object(2 << 20, 2);
    let server = Server::start(move |asked| Answer::of_object(asked, &bytes, "\"one\""));
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    // A process that opens the image and then ends.
    let dying = thread::spawn(move || {
        let theirs = OwnedFd::from(theirs);
        let copy = UnixStream::from(theirs.try_clone().expect("a copy"));
        let serving = thread::spawn(move || serve(theirs, |_| ()));
        (copy, serving)
    });
    let image = RemoteProcess::over(OwnedFd::from(ours), &server.url("/image"), &options()).expect("opened");
    let (copy, _serving) = dying.join().expect("no panic");
    copy.shutdown(std::net::Shutdown::Both).expect("shut down");
    let error = image.counts().expect_err("ended").to_string();
    assert!(error.contains("has ended"), "{error}");
}

#[test]
fn opening_ends_silently_with_the_other_process() {
    let (asked, was_asked) = mpsc::channel();
    let server = Server::start(move |_| {
        let _ = asked.send(());
        Answer { stall: Duration::from_secs(60), ..Answer::new(200, &[], "") }
    });
    let (ours, theirs) = UnixStream::pair().expect("sockets");
    let copy = ours.try_clone().expect("a copy");
    let serving = thread::spawn(move || serve(OwnedFd::from(theirs), |_| ()));
    let url = server.url("/image");
    let opening = thread::spawn(move || RemoteProcess::over(OwnedFd::from(ours), &url, &options()).err());
    was_asked.recv().expect("the image is being opened");
    copy.shutdown(std::net::Shutdown::Both).expect("shut down");
    serving.join().expect("no panic").expect("no complaint");
    assert!(opening.join().expect("no panic").is_some());
}
