//! Cache directories whose content another user could exchange: the program says so, and uses nothing of them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
    process::Command,
};

use floe_remote_cache::DigestTable;
use floe_testkit::skip::{self, Need};
use tempfile::TempDir;

use crate::support::{
    plain_server::{Pages, PlainServer},
    program::{demo, floe, run, told},
};

/// An unprivileged user.
const NOBODY: u32 = 65534;

/// A file of the image, and its first word.
const FILE: &str = "/guide/reading.txt";

/// Directories with an empty cache directory of this user that another user can exchange, and what the message says.
fn scene() -> (TempDir, Vec<(&'static str, &'static str)>) {
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
    let (folder, places) = scene();
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
    assert!(own.join("v1").is_dir());
}

#[test]
fn floe_cache_refuses_and_its_user_may_use_it() {
    if !skip::ready(&[Need::Root, Need::Peer("setpriv")]) {
        return;
    }
    let (folder, places) = scene();
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
