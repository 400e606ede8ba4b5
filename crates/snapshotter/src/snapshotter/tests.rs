//! Operations that the containerd at hand does not ask for.

use std::{
    os::unix::fs::{MetadataExt, chown},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::skip::{self, Need};

use super::*;

const IMAGE: &str = "containerd.io/snapshot/cri.image-ref";
const MANIFEST: &str = "containerd.io/snapshot/cri.manifest-digest";
const LAYER: &str = "containerd.io/snapshot/cri.layer-digest";
const FORMAT: &str = "containerd.io/snapshot/dev.floe.format";
const BELOW: &str = "containerd.io/snapshot/parent-chain-id";

/// A snapshotter whose layers are file systems in memory, with a file that has the URL.
fn snapshotter(root: &Path) -> Snapshotter {
    converting(root, None, Arc::new(|message| panic!("{message}")))
}

/// The same, with a program that makes the image of a directory out of its names, if all images together take at most this.
fn converting(root: &Path, bytes_max: Option<u64>, say: Arc<dyn Fn(&str) + Send + Sync>) -> Snapshotter {
    let script = "case $1 in /*) [ -s \"$1\" ];; esac && mount -t tmpfs tmpfs \"$2\" && echo \"$1\" > \"$2/url\"";
    let conversion = bytes_max.map(|bytes_max| ConversionOptions {
        program: "/bin/sh".into(),
        arguments: ["-c", "[ ! -e \"$2/bad\" ] && ls \"$2\" > \"$1\"", "build"].map(Into::into).into(),
        bytes_max,
    });
    let arguments = ["-c", script, "mount"].map(Into::into).into();
    let mount = MountCommand { program: "/bin/sh".into(), arguments };
    let options = SnapshotterOptions {
        root: root.to_owned(),
        mount,
        auth_file: None,
        unreachable: Unreachable::Fail,
        twins: None,
        converts: false,
        conversion,
    };
    Snapshotter::open(options, say).expect("opened")
}

fn labels(values: &[(&str, &str)]) -> Labels {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn shown(mounts: &[Mount]) -> String {
    mounts.iter().map(|mount| format!("{} {} {}", mount.kind, mount.source, mount.options.join(" "))).collect()
}

#[test]
fn layers_are_unpacked_in_parallel() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join("snapshots").join(name).to_string_lossy().into_owned();
    let snapshotter = snapshotter(folder.path());
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let (manifest, layer) = (digest("a"), digest("b"));
    let remote = |name: &str, below: &[(&str, &str)]| {
        let own =
            [(SNAPSHOT_REF, name), (IMAGE, "host/app:v1"), (MANIFEST, &*manifest), (LAYER, &*layer), (FORMAT, "erofs")];
        labels(&[&own, below].concat())
    };
    // The lowest layer has no parent, so it is complete at once.
    let lowest = snapshotter.prepare("extract-1", "", remote("one", &[]));
    assert!(matches!(lowest, Err(SnapshotError::AlreadyExists(name)) if name == "one"));
    // The mounts of another one in a registry say that nothing need be fetched.
    let staged = snapshotter.prepare("extract-2", "", remote("two", &[(BELOW, "one")])).expect("staged");
    assert_eq!(shown(&staged), format!("bind {} ro rbind", at("2/fs")));
    assert_eq!(snapshotter.mounts("extract-2").map(|mounts| shown(&mounts)).expect("mounted"), shown(&staged));
    assert!(fs::read_to_string(at("2/fs/url")).expect("mounted").ends_with(&format!("#{layer}\n")));
    assert_eq!(snapshotter.usage("extract-2").expect("known"), Usage::default());
    // An archive is unpacked into an overlay, for the sake of its whiteouts.
    let archive = labels(&[(SNAPSHOT_REF, "three"), (BELOW, "two")]);
    let unpacked = shown(&snapshotter.prepare("extract-3", "", archive).expect("created"));
    assert!(unpacked.starts_with("overlay overlay "), "{unpacked}");
    assert!(unpacked.ends_with(&format!("upperdir={} lowerdir={}", at("3/fs"), at("3/empty"))), "{unpacked}");
    fs::write(at("3/fs/file"), "text").expect("written");
    snapshotter.commit("two", "extract-2", "one", labels(&[(SNAPSHOT_REF, "two")])).expect("committed");
    snapshotter.commit("three", "extract-3", "two", labels(&[(SNAPSHOT_REF, "three")])).expect("committed");
    assert!(snapshotter.stat("two").expect("there").labels.contains_key("containerd.io/snapshot/remote"));
    let view = shown(&snapshotter.view("view", "three", Labels::new()).expect("created"));
    assert!(view.ends_with(&format!("lowerdir={}:{}:{}", at("3/fs"), at("2/fs"), at("1/fs"))), "{view}");
    // A pull that is given up removes what it has staged.
    snapshotter.prepare("extract-4", "", remote("four", &[(BELOW, "three")])).expect("staged");
    for name in ["extract-4", "view", "three", "two", "one"] {
        snapshotter.remove(name).expect("removed");
    }
    assert_eq!(fs::read_dir(folder.path().join("snapshots")).expect("there").count(), 0);
}

#[test]
fn a_user_namespace_sees_its_own_owners() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let snapshotter = snapshotter(folder.path());
    for (name, parent) in [("one", ""), ("two", "one")] {
        snapshotter.prepare("unpack", parent, Labels::new()).expect("created");
        let id = snapshotter.stat("unpack").expect("there").id;
        let file = snapshotter.directories.path(id).join(FILES).join(name);
        fs::write(&file, name).expect("written");
        chown(&file, Some(5), Some(6)).expect("set");
        snapshotter.commit(name, "unpack", parent, Labels::new()).expect("committed");
    }
    let users = "containerd.io/snapshot/uidmapping";
    let mapping = [(users, "0:100000:65536"), ("containerd.io/snapshot/gidmapping", "0:200000:65536")];
    // Without one of the labels, and with one that the kernel refuses, nothing is left behind.
    for wrong in [&mapping[..1], &[(users, "0:1:5"), (mapping[1].0, "0:0:1,0:5:1")]] {
        assert!(snapshotter.prepare("container", "two", labels(wrong)).is_err());
        assert!(snapshotter.stat("container").is_err());
    }
    let mounts = shown(&snapshotter.prepare("container", "two", labels(&mapping)).expect("created"));
    let id = snapshotter.stat("container").expect("there").id;
    let own = snapshotter.directories.path(id);
    let owner = |path: &Path| fs::symlink_metadata(path).map(|found| (found.uid(), found.gid())).expect("there");
    // A second time, as after a restart of the machine.
    for mounts in [mounts, shown(&snapshotter.mounts("container").expect("mounted"))] {
        let lower = format!("lowerdir={}:{}", own.join("mapped/0").display(), own.join("mapped/1").display());
        assert!(mounts.ends_with(&lower), "{mounts}");
        assert_eq!(owner(&own.join("mapped/0/two")), (100_005, 200_006));
        assert_eq!(owner(&own.join("mapped/1/one")), (100_005, 200_006));
        assert_eq!(owner(&own.join(FILES)), (100_000, 200_000));
    }
    for name in ["container", "two", "one"] {
        snapshotter.remove(name).expect("removed");
    }
    assert_eq!(fs::read_dir(folder.path().join("snapshots")).expect("there").count(), 0);
}

/// Unpacks a layer with these files.
fn unpack(snapshotter: &Snapshotter, name: &str, parent: &str, files: &[&str]) -> u64 {
    let layer = labels(&[(SNAPSHOT_REF, name)]);
    snapshotter.prepare("unpack", parent, layer.clone()).expect("created");
    let id = snapshotter.stat("unpack").expect("there").id;
    for file in files {
        fs::write(snapshotter.directories.path(id).join(FILES).join(file), file).expect("written");
    }
    snapshotter.commit(name, "unpack", parent, layer).expect("committed");
    id
}

/// Waits until this is so.
fn wait_until(is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "not within a minute");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn layers_are_converted_after_they_were_unpacked() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join("snapshots").join(name).to_string_lossy().into_owned();
    let say: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(|message| panic!("{message}"));
    let open = || Arc::new(converting(folder.path(), Some(1 << 20), Arc::clone(&say)));
    let snapshotter = open();
    unpack(&snapshotter, "one", "", &["first"]);
    unpack(&snapshotter, "two", "one", &["second"]);
    let before = shown(&snapshotter.prepare("before", "two", Labels::new()).expect("created"));
    assert!(before.ends_with(&format!("lowerdir={}:{}", at("2/fs"), at("1/fs"))), "{before}");
    let conversions = Conversions::start(&snapshotter).expect("started").expect("it converts");
    wait_until(|| {
        ["one", "two"].iter().all(|name| snapshotter.stat(name).is_ok_and(|layer| layer.converted.is_some()))
    });
    // Later layers are converted, too.
    let three = unpack(&snapshotter, "three", "two", &["third"]);
    wait_until(|| snapshotter.stat("three").is_ok_and(|layer| layer.converted.is_some()));
    drop(conversions);
    assert_eq!(fs::read_to_string(at("2/converted.erofs")).expect("built"), "second\n");
    let after = shown(&snapshotter.prepare("after", "two", Labels::new()).expect("created"));
    assert!(after.ends_with(&format!("lowerdir={}:{}", at("2/converted"), at("1/converted"))), "{after}");
    let is_same = |snapshotter: &Snapshotter| {
        let found = ["before", "after"].map(|name| shown(&snapshotter.mounts(name).expect("mounted")));
        assert_eq!(found, [before.clone(), after.clone()]);
    };
    is_same(&snapshotter);
    // Directories stay as long as a snapshot uses them, also after a restart.
    let exists = |name: &str| Path::new(&at(name)).exists();
    snapshotter.cleanup().expect("cleaned up");
    assert_eq!(["1/fs", "2/fs", &format!("{three}/fs")].map(exists), [true, true, false]);
    let snapshotter = open();
    is_same(&snapshotter);
    snapshotter.remove("before").expect("removed");
    snapshotter.cleanup().expect("cleaned up");
    assert_eq!(["1/fs", "2/fs"].map(exists), [false, false]);
    let usage = snapshotter.usage("two").expect("known");
    assert_eq!(usage.inodes, 1);
    assert_eq!(shown(&snapshotter.mounts("after").expect("mounted")), after);
    let view = shown(&snapshotter.view("view", "three", Labels::new()).expect("created"));
    let lower = [&*format!("{three}/converted"), "2/converted", "1/converted"].map(at).join(":");
    assert!(view.ends_with(&format!("lowerdir={lower}")), "{view}");
    for name in ["view", "after", "three", "two", "one"] {
        snapshotter.remove(name).expect("removed");
    }
    assert_eq!(fs::read_dir(folder.path().join("snapshots")).expect("there").count(), 0);
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read");
    assert!(!mounts.contains(&at("")), "{mounts}");
}

#[test]
fn layers_that_cannot_be_converted_stay_as_they_are() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&said);
    let say = Arc::new(move |message: &str| noted.lock().push(message.to_owned()));
    let snapshotter = Arc::new(converting(folder.path(), Some(60_000), say));
    let large = unpack(&snapshotter, "large", "", &["file"]);
    fs::write(snapshotter.directories.path(large).join(FILES).join("file"), vec![1; 100_000]).expect("written");
    let mut record = snapshotter.stat("large").expect("there");
    record.usage.bytes = 100_000;
    snapshotter.records.lock().store("large", record).expect("stored");
    let bad = unpack(&snapshotter, "bad", "large", &["bad"]);
    let good = unpack(&snapshotter, "good", "bad", &["good"]);
    let conversions = Conversions::start(&snapshotter).expect("started");
    wait_until(|| snapshotter.stat("good").is_ok_and(|layer| layer.converted.is_some()));
    drop(conversions);
    assert!(["large", "bad"].iter().all(|name| snapshotter.stat(name).is_ok_and(|layer| layer.converted.is_none())));
    assert!(
        matches!(&said.lock()[..], [one] if one.contains("the layer is not converted: exit status: 1")),
        "{said:?}"
    );
    // An image that cannot be mounted is given up while there is a directory.
    let path = |id: u64, name: &str| snapshotter.directories.path(id).join(name).to_string_lossy().into_owned();
    fs::write(path(good, "converted.erofs"), "").expect("written");
    let mounts = shown(&snapshotter.prepare("container", "good", Labels::new()).expect("created"));
    let lower = [good, bad, large].map(|id| path(id, FILES)).join(":");
    assert!(mounts.ends_with(&format!("lowerdir={lower}")), "{mounts}");
    assert!(snapshotter.stat("good").is_ok_and(|layer| layer.converted.is_none()));
    assert!(said.lock().last().is_some_and(|last| last.ends_with("the directory of the layer is used instead")));
    for name in ["container", "good", "bad", "large"] {
        snapshotter.remove(name).expect("removed");
    }
}
