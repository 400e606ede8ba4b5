//! Servers that ask for pauses.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use floe_image::ByteRange;
use floe_remote::{Network, Outage, RemoteOptions};
use floe_remote_cache::{Cause, FetchError, FetchFault, RangeFetcher};
use floe_testkit::check_rows;

use crate::support::{Answer, Server, object};

const LEN: usize = 700_001;

#[test]
fn reads_do_not_wait_longer_than_configured() {
    let rows = [
        (Outage::Wait(Duration::ZERO), "1000"),
        (Outage::Wait(Duration::from_secs(20)), "18446744073709551615"),
        (Outage::Wait(Duration::from_secs(20)), "99999999999999999999999999"),
        (Outage::Wait(Duration::from_secs(20)), "Fri, 31 Dec 9999 23:59:59 GMT"),
        (Outage::Eio, "1000"),
    ];
    check_rows(
        &rows,
        |(outage, pause)| format!("{outage}, {pause}"),
        |(outage, pause)| {
            let (bytes, is_open) = (object(LEN, 7), AtomicBool::new(false));
            let pause = *pause;
            let server = Server::start(move |asked| match is_open.swap(true, Relaxed) {
                false => Answer::of_object(asked, &bytes, "\"one\""),
                true => Answer::new(503, &[("retry-after", pause)], ""),
            });
            let network = Network::new(RemoteOptions { outage: *outage, ..RemoteOptions::default() });
            let network = network.expect("a network");
            let object = network.open(&server.url("/image").parse().expect("a URL")).expect("opened");
            let failure = |cause| {
                let error = object.fetch(ByteRange::new(300_000, 10), cause).expect_err("refused");
                assert_eq!(FetchError::fault_of(&error), FetchFault::Outage);
                error.to_string()
            };
            let mut complaints = Vec::new();
            let first = failure(Cause::Demand);
            if !first.contains("503") {
                complaints.push(first);
            }
            thread::scope(|scope| {
                let causes = [Cause::Demand, Cause::Prefetch, Cause::Demand, Cause::Tree];
                let reading: Vec<_> = causes.map(|cause| scope.spawn(move || failure(cause))).into();
                let failures = reading.into_iter().map(|reading| reading.join().expect("no panic"));
                complaints.extend(failures.filter(|failure| !failure.contains("asked for a pause")));
            });
            if server.requests() != 2 {
                complaints.push(format!("{} requests, though the server asked for none", server.requests()));
            }
            complaints
        },
    );
}

#[test]
fn reads_that_may_wait_continue_after_the_pause() {
    let (bytes, count) = (object(LEN, 8), AtomicU64::new(0));
    let expected = bytes[300_000..300_010].to_vec();
    let server = Server::start(move |asked| match count.fetch_add(1, Relaxed) {
        1 => Answer::new(429, &[("retry-after", "1")], ""),
        _ => Answer::of_object(asked, &bytes, "\"one\""),
    });
    let outage = Outage::Wait(Duration::from_secs(600));
    let network = Network::new(RemoteOptions { outage, ..RemoteOptions::default() }).expect("a network");
    let object = network.open(&server.url("/image").parse().expect("a URL")).expect("opened");
    let fetched = object.fetch(ByteRange::new(300_000, 10), Cause::Demand).expect("healed");
    assert_eq!((&*fetched, server.requests()), (&*expected, 3));
}
