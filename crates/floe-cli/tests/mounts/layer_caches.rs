//! `floe store --layer-cache`: a directory for containerd's `layer_content_caches`.

use std::{
    fs,
    os::unix::fs::{FileExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
};

use floe_testkit::{
    manifest::sha256_hex,
    skip::{self, Need},
};

use crate::support::{
    meter::Meter,
    program::{Place, floe, run, told, until},
    servers::RealServer,
};

/// The length of the layer's file, of which little is read.
const FILE_BYTES: usize = 24 << 20;

/// A store, which is ended when dropped.
struct Store(Child);

impl Store {
    fn start(place: &Place, folder: &Path, repository: &str) -> Self {
        let mut store = floe();
        store.arg("store").arg(&place.path).arg("--root").arg(folder.join("root")).arg("--cache-directory");
        store.arg(folder.join("cache")).args(["--outage", "wait:0s", "--layer-cache", repository]);
        let child = store.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        until("it is mounted", || place.is_mounted());
        Self(child)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn entries_of_a_layer_cache_are_read_out_of_a_registry() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, scene, place) = (RealServer::registry(), tempfile::tempdir().expect("a folder"), Place::new());
    let folder = scene.path();
    fs::create_dir(folder.join("tree")).expect("made");
    fs::write(folder.join("tree/file"), floe_testkit::Random::new(9).noise(FILE_BYTES)).expect("written");
    let layer = folder.join("layer.erofs");
    assert_eq!(told(&run(floe().arg("mkfs").arg(&layer).arg(folder.join("tree")))).0, Some(0));
    // The digest of the archive that the layer was made of, and that of another one.
    let [diff_id, other] = [b"archive", b"another"].map(|archive| sha256_hex(&archive[..]));
    let url = format!("oci://localhost:{}/cache:sha256-{diff_id}", server.port);
    assert_eq!(told(&run(floe().arg("push").arg(&layer).arg(url))).0, Some(0));
    let meter = Meter::before(server.port);
    let store = Store::start(&place, folder, &format!("oci://localhost:{}/cache", meter.port));
    let entry = |diff_id: &str| place.file(&format!("sha256/{}/{diff_id}.erofs", &diff_id[..2]));
    let bytes = fs::read(&layer).expect("read");
    // A hit is a symbolic link to the entry, and a stat of it is all that containerd does before it mounts.
    symlink(entry(&diff_id), folder.join("link")).expect("made");
    assert_eq!(fs::metadata(folder.join("link")).expect("a hit").len(), bytes.len() as u64);
    let file = fs::File::open(folder.join("link")).expect("opened");
    for offset in [1024, bytes.len() as u64 / 2, bytes.len() as u64 - 100] {
        let mut part = [0; 100];
        file.read_exact_at(&mut part, offset).expect("read");
        assert_eq!(part[..], bytes[offset as usize..][..100], "{offset}");
    }
    assert!(meter.sent() < FILE_BYTES as u64 / 2, "{} bytes", meter.sent());
    if skip::ready(&[Need::KernelErofs]) {
        let mounted = Place::new();
        let mut mount = Command::new("mount");
        let output = run(mount.args(["-t", "erofs", "-o", "ro,loop"]).arg(folder.join("link")).arg(&mounted.path));
        assert!(output.status.success(), "{output:?}");
        let expected = fs::read(folder.join("tree/file")).expect("read");
        assert!(fs::read(mounted.file("file")).expect("read") == expected);
        until("it is unmounted", || run(Command::new("umount").arg(&mounted.path)).status.success());
    }
    assert!(fs::read(entry(&diff_id)).expect("read") == bytes);
    drop(file);
    let digits = &diff_id[..2];
    for missing in [
        entry(&other),
        place.file(&format!("sha256/{}/{diff_id}.erofs", if digits == "00" { "01" } else { "00" })),
        place.file(&format!("sha256/{digits}/{diff_id}.erofs.dmverity")),
        place.file(&format!("sha256/{digits}/{}.erofs", diff_id.to_uppercase())),
        place.file("sha512"),
        place.file("sha256/../../x"),
    ] {
        let error = fs::metadata(&missing).expect_err("a miss");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", missing.display());
    }
    // containerd never writes there.
    assert!(
        fs::write(place.file(&format!("sha256/{digits}/new")), "").is_err()
            && fs::remove_file(entry(&diff_id)).is_err()
    );
    drop(store);
    // Without the registry, an entry is a miss, and so is one of a dead store.
    drop(server);
    let store = Store::start(&place, folder, &format!("oci://localhost:{}/cache", meter.port));
    assert!(fs::metadata(entry(&diff_id)).is_err());
    drop(store);
    assert!(!place.is_mounted());
}
