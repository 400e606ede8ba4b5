//! `floe cache` and `floe mkfs --verity`, as the built program; cache directories that another user could exchange.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, PermissionsExt, chown, symlink},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use floe_image::{ByteRange, ImageSource};
use floe_remote_cache::{
    Cache, CacheOptions, CachedSource, Cause, DigestTable, ObjectKey, RangeFetcher, SourceOptions, Trust,
    parse_sidecar, sidecar_path,
};
use floe_testkit::skip::{self, Need, ready};
use tempfile::TempDir;

use crate::support::{
    plain_server::{Pages, PlainServer},
    program::{demo, floe, run, told},
};

/// Serves a file.
struct Server(File);

impl RangeFetcher for Server {
    fn len(&self) -> u64 {
        self.0.metadata().expect("a length").len()
    }

    fn name(&self) -> String {
        "https://example.org/layer.erofs".to_owned()
    }

    fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<floe_image::Bytes> {
        let mut bytes = vec![0; usize::try_from(range.len()).expect("a small range")];
        self.0.read_exact_at(&mut bytes, range.offset())?;
        Ok(bytes.into())
    }
}

fn run_floe(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("floe runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a command that must succeed.
fn said(folder: &Path, arguments: &[&str]) -> String {
    let output = run_floe(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// A folder with an image of a small tree and its hash tree.
fn scene(block_size: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("tree")).expect("made");
    for file in 0..40_u64 {
        let content = floe_testkit::Random::new(file).noise(30_000);
        fs::write(folder.path().join(format!("tree/{file}")), content).expect("written");
    }
    said(folder.path(), &["mkfs", "layer.erofs", "tree", "--verity", "--quiet", "--block-size", block_size]);
    folder
}

fn source(folder: &Path, cache: &Arc<Cache>) -> CachedSource {
    let image = folder.join("layer.erofs");
    let sidecar = fs::read_to_string(sidecar_path(&image)).expect("the sidecar");
    let server = Server(File::open(image).expect("the image"));
    let key = ObjectKey { trust: Trust::Verity(parse_sidecar(&sidecar).expect("sound")), len: server.len() };
    CachedSource::open(Some(cache), key, Arc::new(server), SourceOptions::default()).expect("it opens")
}

#[test]
fn mkfs_appends_a_tree_that_verifies() {
    for block_size in ["4096", "512", "16384"] {
        let folder = scene(block_size);
        said(folder.path(), &["check", "layer.erofs"]);
        said(folder.path(), &["mkfs", "plain.erofs", "tree", "--quiet", "--block-size", block_size]);
        let (image, plain) = (folder.path().join("layer.erofs"), folder.path().join("plain.erofs"));
        let cache = Cache::open(CacheOptions::new(folder.path().join("cache"), Arc::new(|_| {}))).expect("a cache");
        let source = source(folder.path(), &cache);
        let mut bytes = vec![0; usize::try_from(source.len()).expect("small")];
        source.read_at(0, &mut bytes).expect("all of it verifies");
        let plain = fs::read(plain).expect("the image");
        assert!(bytes[..plain.len()] == plain, "the tree does not change the image itself");
        assert!(bytes[plain.len()..].iter().all(|byte| *byte == 0) && bytes.len() < plain.len() + 4096);
        if ready(&[Need::Peer("veritysetup")]) {
            let root = parse_sidecar(&fs::read_to_string(sidecar_path(&image)).expect("it")).expect("sound");
            let path = image.to_str().expect("text");
            let (hash, offset) = (root.root_hash.to_string(), format!("--hash-offset={}", root.hash_offset));
            let output = Command::new("veritysetup").args(["verify", path, path, &hash, &offset]).output();
            let output = output.expect("veritysetup runs");
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }
}

#[test]
fn verity_needs_a_file_and_replaces_the_root_of_an_earlier_image() {
    let folder = scene("4096");
    let sidecar = folder.path().join("layer.erofs.dmverity");
    let before = fs::read_to_string(&sidecar).expect("the sidecar");
    fs::write(folder.path().join("tree/new"), "new").expect("written");
    said(folder.path(), &["mkfs", "layer.erofs", "tree", "--verity", "--quiet"]);
    assert_ne!(fs::read_to_string(&sidecar).expect("the sidecar"), before);
    let output = run_floe(folder.path(), &["mkfs", "/dev/null", "tree", "--verity"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "floe: /dev/null is not a regular file: --verity appends to the image\n");
}

#[test]
fn the_cache_is_listed_verified_pruned_and_dropped() {
    let folder = scene("4096");
    let cache = ["--cache-directory", "cache"];
    let run = |arguments: &[&str]| run_floe(folder.path(), &[&["cache"], arguments, &cache].concat());
    let output = run(&["ls"]);
    assert_eq!(
        (output.status.code(), &*text(&output.stderr)),
        (Some(1), "floe: cache: there is no cache in this directory\n")
    );

    let opened = Cache::open(CacheOptions::new(folder.path().join("cache"), Arc::new(|_| {}))).expect("a cache");
    let source = source(folder.path(), &opened);
    source.read_at(0, &mut vec![0; usize::try_from(source.len()).expect("small")]).expect("it is read");
    let listed = text(&run(&["ls"]).stdout);
    let former_name = run_floe(folder.path(), &["cache", "ls", "--cache-dir", "cache"]);
    assert_eq!(text(&former_name.stdout), listed);
    assert!(listed.contains("  100 %  ") && listed.contains("https://example.org/layer.erofs  in use\n"), "{listed}");
    let record: serde_json::Value = serde_json::from_slice(&run(&["ls", "--json"]).stdout).expect("JSON");
    let id = record["id"].as_str().expect("an id").to_owned();
    assert!(listed.starts_with(&id[..12]));
    let fields = ["verified", "open"].map(|field| record[field].as_bool());
    assert_eq!((fields, record["present_chunks"].as_u64()), ([Some(true); 2], record["chunks"].as_u64()));

    let chunks = record["chunks"].as_u64().expect("a number");
    let verified = run(&["verify"]);
    assert_eq!(verified.status.code(), Some(0));
    assert!(text(&verified.stdout).contains(&format!(": {chunks} chunks are correct\n")), "{}", text(&verified.stdout));
    let data = folder.path().join("cache/v2/objects").join(&id[..2]).join(&id).join("data");
    File::options().write(true).open(data).expect("the data").write_all_at(b"rotten", 5000).expect("written");
    let verified = run(&["verify", &id[..6]]);
    assert_eq!(verified.status.code(), Some(4));
    assert!(text(&verified.stdout).contains(", 1 were corrupt and were removed\n"), "{}", text(&verified.stdout));

    assert!(text(&run(&["prune", "--to", "300k"]).stdout).ends_with(" now\n"));
    let record: serde_json::Value = serde_json::from_slice(&run(&["ls", "--json"]).stdout).expect("JSON");
    assert!(record["allocated_bytes"].as_u64().is_some_and(|bytes| bytes <= 300 << 10), "{record}");
    let dropped = text(&run(&["drop", &id]).stdout);
    assert!(dropped.ends_with(" (in use: only its data is removed)\n"), "{dropped}");
    drop(source);
    run(&["drop", "--all"]);
    assert_eq!(text(&run(&["ls"]).stdout), "");

    let output = run(&["drop", "77"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "floe: 77: no such object; see floe cache ls\n");
}

/// An unprivileged user.
const NOBODY: u32 = 65534;

/// A file of the image, and its first word.
const FILE: &str = "/guide/reading.txt";

/// Directories with an empty cache directory of this user that another user can exchange, and what the message says.
fn exchangeable_caches() -> (TempDir, Vec<(&'static str, &'static str)>) {
    let folder = TempDir::new().expect("a directory");
    let at = |name: &str| folder.path().join(name);
    for (name, mode) in [("another", 0o755), ("group", 0o775), ("own", 0o755)] {
        fs::create_dir(at(name)).expect("made");
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("set");
        fs::create_dir(at(name).join("cache")).expect("made");
    }
    fs::create_dir(at("another/home")).expect("made");
    symlink(at("another"), at("own/link")).expect("linked");
    chown(at("another"), Some(NOBODY), None).expect("given away");
    let another = "belongs to another user (user ID 65534)";
    let places =
        vec![("another/cache", another), ("own/link/cache", another), ("group/cache", "others may write to it")];
    (folder, places)
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("a directory").next().is_none()
}

#[test]
fn images_are_read_without_the_cache() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let bytes = fs::read(demo()).expect("the image");
    let table = DigestTable::of(&mut &*bytes).expect("a table").to_bytes();
    let digest = floe_remote_cache::Digest::of(&table);
    let server = PlainServer::of(Pages::from([
        ("/image".to_owned(), ("application/octet-stream", bytes)),
        ("/image.digests".to_owned(), ("application/octet-stream", table.to_vec())),
    ]));
    let plain = format!("http://127.0.0.1:{}/image", server.port);
    let verified = format!("{plain}#table=sha256:{digest}");
    let expected = run(floe().args(["cat"]).arg(demo()).arg(FILE)).stdout;
    let (folder, places) = exchangeable_caches();
    for (url, verify) in [(&plain, None), (&verified, Some("--require-verified"))] {
        for (place, problem) in &places {
            let cache = folder.path().join(place);
            let mut cat = floe();
            cat.arg("cat").args(verify).arg("--cache-directory").arg(&cache).args([url.as_str(), FILE]);
            let output = run(&mut cat);
            let (code, errors) = told(&output);
            assert_eq!((code, &output.stdout), (Some(0), &expected), "{place}: {errors}");
            assert!(errors.contains(problem) && errors.lines().count() == 1, "{place}: {errors}");
            assert!(is_empty(&cache), "{place}");
        }
    }
    // The same directories serve their owner, and everybody has a directory in /tmp.
    let own = folder.path().join("own/cache");
    let output = run(floe().args(["cat", "--cache-directory"]).arg(&own).args([&verified, FILE]));
    assert_eq!((told(&output), &output.stdout), ((Some(0), String::new()), &expected));
    assert!(own.join("v2").is_dir());
}

#[test]
fn floe_cache_refuses_and_its_user_may_use_it() {
    if !skip::ready(&[Need::Root, Need::Peer("setpriv")]) {
        return;
    }
    let (folder, places) = exchangeable_caches();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    let commands = [&["ls"][..], &["prune"], &["prune", "--to", "0"], &["verify"], &["drop", "--all"]];
    for (place, problem) in &places {
        for command in commands {
            let cache = folder.path().join(place);
            let (code, errors) = told(&run(floe().arg("cache").args(command).arg("--cache-directory").arg(&cache)));
            assert!(code == Some(1) && errors.contains(problem), "{place} {command:?}: {code:?} {errors}");
            assert!(errors.lines().count() == 1 && is_empty(&cache), "{place} {command:?}: {errors}");
        }
    }
    // A copy, because a user may be unable to reach the program where it was built.
    let program = folder.path().join("floe");
    fs::copy(env!("CARGO_BIN_EXE_floe"), &program).expect("copied");
    let home = folder.path().join("another/home");
    chown(&home, Some(NOBODY), Some(NOBODY)).expect("given away");
    let as_user = |cache: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program);
        command.args(["cache", "prune", "--cache-directory"]).arg(folder.path().join(cache));
        told(&run(&mut command))
    };
    let (code, errors) = as_user("another/home");
    assert_eq!(code, Some(0), "{errors}");
    let (code, errors) = as_user("group/cache");
    assert!(code == Some(1) && errors.contains("others may write"), "{errors}");
    // Root does not use what it may read of a user.
    let (code, errors) = told(&run(floe().args(["cache", "ls", "--cache-directory"]).arg(&home)));
    assert!(code == Some(1) && errors.contains("another user"), "{errors}");
}
