//! `floe pull` that is interrupted, or gets more than it may write.

use std::{fs, io::Read, path::Path};

use floe_testkit::{
    manifest::sha256_hex,
    skip::{self, Need},
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{
    plain_server::{Pages, PlainServer},
    program::{Running, floe, run, told, until},
};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_signal_leaves_no_part_of_a_pull() {
    let server = PlainServer::of(Pages::from([("/image".to_owned(), ("application/octet-stream", vec![7; 1 << 20]))]));
    server.fall_silent_after(0);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        if !skip::ready(&[Need::Signal(signal)]) {
            continue;
        }
        let directory = TempDir::new().expect("a directory");
        let mut command = floe();
        command.args(["pull", "--outage", "wait:10m", &format!("http://127.0.0.1:{}/image", server.port)]);
        let before = server.unanswered();
        let pull = Running::start(command.arg(directory.path().join("image")));
        until("it waits for the server", || server.unanswered() > before);
        assert_eq!(names(directory.path()).len(), 1, "a part: {:?}", names(directory.path()));
        pull.signal(signal);
        assert_eq!(pull.end(), (Some(130), "floe: interrupted\n".to_owned()), "{signal:?}");
        assert_eq!(names(directory.path()), [""; 0], "{signal:?}");
    }
}

#[test]
fn a_layer_is_decompressed_up_to_a_limit() {
    const LEN: u64 = 64 << 20;
    let layer = zstd::encode_all(std::io::repeat(0).take(LEN), 1).expect("encoded");
    assert!(layer.len() < 1 << 20, "{} bytes", layer.len());
    let digest = format!("sha256:{}", sha256_hex(&layer));
    let (config, manifest_type) = ("{}", "application/vnd.oci.image.manifest.v1+json");
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": format!("sha256:{}", sha256_hex(config.as_bytes())),
            "size": config.len(),
        },
        "layers": [{
            "mediaType": "application/vnd.erofs.layer.v1+zstd",
            "digest": digest,
            "size": layer.len(),
        }],
    });
    let server = PlainServer::of(Pages::from([
        ("/v2/bomb/manifests/v1".to_owned(), (manifest_type, manifest.to_string().into_bytes())),
        (format!("/v2/bomb/blobs/{digest}"), ("application/octet-stream", layer)),
    ]));
    let (url, directory) = (format!("oci://127.0.0.1:{}/bomb:v1", server.port), TempDir::new().expect("a directory"));
    let output = directory.path().join("image");
    let pull = |limit: &str| told(&run(floe().args(["pull", "--quiet", "--size-max", limit, &url]).arg(&output)));
    for limit in ["0", "1M", "67108863"] {
        let (code, errors) = pull(limit);
        assert!(code == Some(1) && errors.lines().count() == 1, "{limit}: {code:?}, {errors}");
        assert!(errors.contains("the layer decompresses to more than") && errors.contains("--size-max"), "{errors}");
        assert_eq!(names(directory.path()), [""; 0], "{limit}");
    }
    assert_eq!(pull("64M"), (Some(0), String::new()));
    assert_eq!(fs::metadata(&output).expect("it is complete").len(), LEN);
}
