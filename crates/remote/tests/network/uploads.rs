//! Uploads to registries that interrupt them.

use std::{io::Write, sync::Mutex};

use floe_remote::{ImageToPush, Network, Outage, PushedFormat, RemoteOptions};
use floe_remote_cache::Digest;

use crate::support::{Answer, Server, object};

/// The size of an upload's pieces, and of an image whose upload has more pieces than it has attempts.
const PIECE: usize = 8 << 20;
const LEN: usize = 6 * PIECE + 5;

#[test]
fn an_upload_that_is_interrupted_after_each_piece_is_completed() {
    let image = object(LEN, 1);
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&image).expect("written");
    // The bytes of the upload in progress, and whether the next piece is accepted.
    let upload = Mutex::new((Vec::new(), true));
    let expected = Digest::of(&image);
    let server = Server::start(move |asked| {
        let (path, mut upload) = (asked.path.as_str(), upload.lock().expect("no panic"));
        let (bytes, accepts) = &mut *upload;
        let place = [("location", "/v2/team/image/blobs/uploads/1")];
        let range = format!("0-{}", bytes.len().saturating_sub(1));
        match asked.method.as_str() {
            "HEAD" => Answer::new(404, &[], ""),
            "POST" => {
                bytes.clear();
                Answer::new(202, &place, "")
            }
            "GET" if path.contains("/uploads/") => Answer::new(204, &[place[0], ("range", &range)], ""),
            "PATCH" if !std::mem::replace(accepts, true) => Answer::new(500, &[], ""),
            "PATCH" => {
                *accepts = false;
                bytes.extend_from_slice(&asked.body);
                Answer::new(202, &place, "")
            }
            "PUT" if path.contains("/uploads/") => {
                bytes.extend_from_slice(&asked.body);
                let is_whole = bytes.len() < LEN || Digest::of(bytes) == expected;
                Answer::new(if is_whole { 201 } else { 400 }, &[], "")
            }
            "PUT" => Answer::new(201, &[("oci-subject", "any")], ""),
            _ => Answer::new(404, &[], ""),
        }
    });
    let network = Network::new(RemoteOptions { outage: Outage::Eio, ..RemoteOptions::default() }).expect("a network");
    let to_push = ImageToPush { file: &file, format: PushedFormat::Erofs, verity: None, launch: Vec::new() };
    let location = format!("oci://{}/team/image:v1", server.address).parse().expect("a location");
    let pushed = network.push(&to_push, &location, &|_| ()).expect("pushed");
    assert_eq!(pushed.len, LEN as u64);
}
