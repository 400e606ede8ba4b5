//! Images through mirrors that share what they have, as those of Spegel and Dragonfly do.

use std::{fs, path::Path};

use floe_testkit::skip::{self, Need};
use tempfile::TempDir;

use super::remote::Cache;
use crate::support::{
    meter::Meter,
    mirror::{Behaviour, Mirror},
    program::{floe, run, told},
    servers::RealServer,
};

/// The length of the file in the image, which is larger than a piece of a mirror.
const FILE_BYTES: usize = 9 << 20;

/// A registry with an image, and a meter before it.
struct Scene {
    _server: RealServer,
    meter: Meter,
    config: TempDir,
    content: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let (server, config) = (RealServer::registry(), TempDir::new().expect("a directory"));
        let content = floe_testkit::Random::new(5).noise(FILE_BYTES);
        let tree = config.path().join("tree");
        fs::create_dir(&tree).expect("made");
        fs::write(tree.join("file"), &content).expect("written");
        let image = config.path().join("image.erofs");
        assert_eq!(told(&run(floe().arg("mkfs").arg(&image).arg(&tree))).0, Some(0));
        let url = format!("oci://localhost:{}/team/data:v1", server.port);
        assert_eq!(told(&run(floe().arg("push").arg(&image).arg(url))).0, Some(0));
        let meter = Meter::before(server.port);
        Self { _server: server, meter, config, content }
    }

    /// A node without a cache reads all of the file, with these mirrors in its hosts.toml. Returns how much the registry sent to it.
    fn read(&self, hosts: &str, options: &[&str]) -> u64 {
        let directory = self.config.path().join("containerd/certs.d/registry.invalid");
        fs::create_dir_all(&directory).expect("made");
        fs::write(directory.join("hosts.toml"), format!("server = 'http://localhost:{}'\n{hosts}", self.meter.port))
            .expect("written");
        let (cache, before) = (Cache::new(), self.meter.sent());
        let mut cat = floe();
        cat.env("XDG_CONFIG_HOME", self.config.path()).arg("cat").args(cache.options()).args(options);
        let output =
            run(cat.args(["--require-verified", "oci://registry.invalid/team/data:v1"]).arg(Path::new("/file")));
        assert_eq!(told(&output).0, Some(0), "{hosts}: {}", told(&output).1);
        assert!(output.stdout == self.content, "{hosts}: {} bytes", output.stdout.len());
        self.meter.sent() - before
    }
}

fn host(mirror: &Mirror) -> String {
    format!("[host.'http://127.0.0.1:{}']\ncapabilities = ['pull', 'resolve']\n", mirror.port)
}

#[test]
fn mirrors_of_peers_are_asked_before_the_registry() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let scene = Scene::new();
    let mirror = |behaviour| Mirror::of(scene.meter.port, behaviour);
    // Spegel, while no peer has the image: each request is answered by 404, and the registry is asked.
    let empty = mirror(Behaviour::Peers);
    let sent = scene.read(&host(&empty), &[]);
    assert!(sent >= FILE_BYTES as u64 && empty.counts().0 == 0 && empty.counts().1 > 1, "{sent} {:?}", empty.counts());
    // Dragonfly: the first node makes it fetch all pieces, further ones nothing.
    let pieces = mirror(Behaviour::Pieces);
    let sent = scene.read(&host(&pieces), &[]);
    assert!((FILE_BYTES as u64..FILE_BYTES as u64 * 5 / 4).contains(&sent), "{sent}");
    assert_eq!(scene.read(&host(&pieces), &[]), 0);
    // The same by an option, for one without a hosts.toml.
    assert_eq!(scene.read("", &[&format!("--mirror=http://127.0.0.1:{}", pieces.port)]), 0);
    // Spegel, when a peer has the image.
    let full = mirror(Behaviour::Peers);
    full.take_from(&pieces);
    assert_eq!((scene.read(&host(&full), &[]), full.counts().1), (0, 0));
    // One mirror behind the other.
    assert_eq!(scene.read(&format!("{}{}", host(&empty), host(&pieces)), &[]), 0);
}

#[test]
fn the_registry_replaces_mirrors_that_fail() {
    if !skip::ready(&[Need::Peer("docker-registry")]) {
        return;
    }
    let scene = Scene::new();
    for behaviour in [Behaviour::BreaksOff, Behaviour::Corrupts] {
        let mirror = Mirror::of(scene.meter.port, behaviour);
        scene.read(&host(&mirror), &[]);
        assert!(mirror.counts().0 > 1, "{behaviour:?} {:?}", mirror.counts());
    }
}
