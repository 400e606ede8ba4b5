//! Images that refer to an earlier version on an extra device, in a registry that has that version.

use std::{
    fs,
    path::{Path, PathBuf},
};

use floe_testkit::{
    Random,
    manifest::{Comparison, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use tempfile::TempDir;

use crate::support::{
    program::{Place, floe, run, told, umount},
    servers::RealServer,
};

/// The files of a tree that are the same in both versions, and their size.
const FILES: u64 = 60;
const FILE_BYTES: usize = 60_000;

/// Two versions of a tree, in which a file of ten differs, and their images.
fn make_versions(folder: &Path) -> [PathBuf; 2] {
    for version in [1, 2] {
        let tree = folder.join(format!("tree{version}"));
        fs::create_dir(&tree).expect("made");
        for number in 0..FILES {
            let seed = if number % 10 == 0 { number + 1000 * version } else { number };
            fs::write(tree.join(number.to_string()), Random::new(seed).text(FILE_BYTES)).expect("there is room");
        }
    }
    let [one, two] = ["v1.erofs", "v2.erofs"].map(|name| folder.join(name));
    for (image, options) in [(&one, &["tree1"][..]), (&two, &["tree2", "--base", "v1.erofs"])] {
        let mut mkfs = floe();
        mkfs.args(["mkfs", "--quiet", "-z", "lz4"]).arg(image).args(options).current_dir(folder);
        assert_eq!(told(&run(&mut mkfs)), (Some(0), String::new()));
    }
    [one, two]
}

/// How much a directory holds, in bytes.
fn bytes_in(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let sizes = entries.map(|entry| match entry.metadata().expect("it is there") {
        status if status.is_dir() => bytes_in(&entry.path()),
        status => std::os::unix::fs::MetadataExt::blocks(&status) * 512,
    });
    sizes.sum()
}

#[test]
fn only_the_difference_is_uploaded_and_fetched() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("docker-registry")]) {
        return;
    }
    let (server, scene) = (RealServer::registry(), TempDir::new().expect("a folder"));
    let folder = scene.path();
    let [one, two] = make_versions(folder);
    let len = |path: &Path| fs::metadata(path).expect("it is there").len();
    assert!(len(&two) * 4 < len(&one), "{} of {}", len(&two), len(&one));
    let url = |version: &str| format!("oci://localhost:{}/app:{version}", server.port);
    let push = |image: &Path, version: &str| {
        let before = bytes_in(server.path());
        assert_eq!(told(&run(floe().args(["push", "--quiet"]).arg(image).arg(url(version)))), (Some(0), String::new()));
        bytes_in(server.path()) - before
    };
    let uploaded = push(&one, "v1");
    assert!(uploaded > len(&one), "{uploaded}");
    // Besides the image, the registry stores small documents, each in blocks of its file system.
    let uploaded = push(&two, "v2");
    assert!(uploaded < len(&two) + (256 << 10) && uploaded * 2 < len(&one), "{uploaded}");

    let expected = walk::directory(&folder.join("tree2"), DirectoryWalk::default()).expect("it can be read");
    // A machine that has the old image, from the registry, needs only the difference. One that has nothing fetches both.
    let pulled = folder.join("pulled");
    assert_eq!(told(&run(floe().args(["pull", "--quiet", &url("v1")]).arg(&pulled))), (Some(0), String::new()));
    for (device, cached_max) in [
        (pulled.as_os_str().to_owned(), len(&two) + (128 << 10)),
        (url("v1").into(), len(&two) + len(&one) + (256 << 10)),
    ] {
        let (cache, place) = (TempDir::new().expect("a folder"), Place::new());
        let mut mount = floe();
        mount.args(["mount", "--daemon", "--require-verified", "--cache-directory"]).arg(cache.path());
        mount.arg("--device").arg(&device).arg(url("v2")).arg(&place.path);
        assert_eq!(told(&run(&mut mount)), (Some(0), String::new()), "{device:?}");
        let found = walk::directory(&place.path, DirectoryWalk::default()).expect("it can be read");
        let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
        assert_eq!(differences(&expected, &found, &comparison), Vec::<String>::new(), "{device:?}");
        let status = run(floe().args(["status", "--json"]).arg(&place.path));
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(status.contains(device.to_str().expect("text")), "{status}");
        assert_eq!(umount(&place.path).0, Some(0));
        let cached = bytes_in(cache.path());
        assert!(cached < cached_max, "{device:?}: {cached} bytes are cached, {cached_max} at most");
    }
    // Other commands take both URLs, too, and mistakes are reported in a line.
    let mut cat = floe();
    cat.args(["cat", "--sandbox=require", "--device", &url("v1"), &url("v2"), "/59"]);
    assert!(run(&mut cat).stdout == fs::read(folder.join("tree2/59")).expect("it is there"));
    let (code, errors) = told(&run(floe().args(["cat", "--device", &url("v9"), &url("v2"), "/59"])));
    assert!(code != Some(0) && errors.contains("app:v9") && errors.lines().count() == 1, "{errors}");
    let (code, errors) = told(&run(floe().args(["cat", &url("v2"), "/59"])));
    assert!(code != Some(0) && errors.contains("device") && errors.lines().count() == 1, "{errors}");
}
