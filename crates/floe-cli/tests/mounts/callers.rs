//! Programs that call others by the names of Floe's drop-in programs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use floe_testkit::{
    copy_program, peer,
    skip::{self, Need},
};

use crate::support::program::{run, told};

const USER: u32 = 65_534;

/// Longer than any of the callers takes.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The program under the name of another one, and a list of its calls.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("floe-callers-").tempdir().expect("a directory");
        let scene = Self { folder };
        fs::set_permissions(scene.folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        for directory in ["program", "bin", "home"] {
            fs::create_dir(scene.path(directory)).expect("ours");
        }
        copy_program(env!("CARGO_BIN_EXE_floe"), scene.path("program").join(name));
        fs::write(scene.path("calls"), "").expect("ours");
        fs::set_permissions(scene.path("calls"), fs::Permissions::from_mode(0o666)).expect("ours");
        let folder = scene.folder.path().display();
        let script = format!("#!/bin/sh\necho \"$*\" >>{folder}/calls\nexec {folder}/program/{name} \"$@\"\n");
        fs::write(scene.path("bin").join(name), script).expect("ours");
        fs::set_permissions(scene.path("bin").join(name), fs::Permissions::from_mode(0o755)).expect("ours");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `PATH` with the program in front.
    fn search_path(&self, peers: &[&str]) -> String {
        let peers = peers.iter().filter_map(|name| Some(peer(name)?.parent()?.display().to_string()));
        let places = [self.path("bin").display().to_string()].into_iter().chain(peers);
        places.chain([std::env::var("PATH").unwrap_or_default()]).collect::<Vec<_>>().join(":")
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).expect("the program was called")
    }
}

#[test]
fn apptainer_runs_a_container() {
    let programs = ["apptainer", "busybox", "mksquashfs", "setpriv", "unshare"].map(Need::Peer);
    if !skip::ready(&[Need::Root, Need::Fuse]) || !skip::ready(&programs) {
        return;
    }
    let scene = Scene::new("squashfuse_ll");
    let tree = scene.path("tree");
    for directory in ["bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "var/tmp"] {
        fs::create_dir_all(tree.join(directory)).expect("ours");
    }
    copy_program(peer("busybox").expect("the test needs it"), tree.join("bin/busybox"));
    for name in ["sh", "stat", "cat"] {
        symlink("busybox", tree.join("bin").join(name)).expect("ours");
    }
    for name in ["passwd", "group", "hosts", "resolv.conf", "localtime"] {
        fs::write(tree.join("etc").join(name), "").expect("ours");
    }
    fs::write(tree.join("root/private"), "of root\n").expect("ours");
    fs::set_permissions(tree.join("root"), fs::Permissions::from_mode(0o700)).expect("ours");
    let mut command = Command::new(peer("mksquashfs").expect("the test needs it"));
    let built = run(command.arg(&tree).arg(scene.path("image.sqfs")).args(["-quiet", "-no-progress"]));
    assert!(built.status.success(), "{built:?}");
    chown(scene.path("home"), Some(USER), Some(USER)).expect("ours");
    let made = run(Command::new("mknod").args(["-m", "666"]).arg(scene.path("fuse")).args(["c", "10", "229"]));
    assert!(made.status.success(), "{made:?}");
    let script = format!(
        "mount --bind {} /dev/fuse && cd {home} && HOME={home} exec setpriv --reuid {USER} --regid {USER} \
         --clear-groups apptainer exec --userns --no-mount tmp {} sh -c 'stat -c \"%u %g %a\" /root && cat /root/private'",
        scene.path("fuse").display(),
        scene.path("image.sqfs").display(),
        home = scene.path("home").display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let start = Instant::now();
    let output = run(command.env("PATH", scene.search_path(&["apptainer"])).current_dir("/"));
    let (code, errors) = told(&output);
    assert_eq!((code, output.stdout), (Some(0), format!("{USER} {USER} 700\nof root\n").into()), "{errors}");
    assert!(scene.calls().contains(&format!("uid={USER},gid={USER}")), "{}", scene.calls());
    // It shows each line of the program that it does not know. It also looks for other programs.
    let shown: Vec<&str> = errors.lines().filter(|line| !line.contains(" not found, will not be able to ")).collect();
    assert_eq!(shown, Vec::<&str>::new());
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
}

#[test]
fn rauc_extracts_a_bundle() {
    let programs = ["rauc", "openssl", "mksquashfs"].map(Need::Peer);
    if !skip::ready(&[Need::Root]) || !skip::ready(&programs) {
        return;
    }
    let scene = Scene::new("unsquashfs");
    let called = |name: &str, words: &str| {
        let mut command = Command::new(peer(name).expect("the test needs it"));
        command.args(words.split(' ')).current_dir(scene.folder.path());
        let output = run(command.env("PATH", scene.search_path(&["mksquashfs"])));
        assert!(output.status.success(), "{name} {words}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    called("openssl", "req -x509 -newkey rsa:2048 -nodes -keyout key -out certificate -subj /CN=floe.test");
    fs::create_dir(scene.path("content")).expect("ours");
    let content: Vec<u8> = (0..100_000_u32).flat_map(|number| (number % 251).to_le_bytes()).collect();
    fs::write(scene.path("content/rootfs.img"), &content).expect("ours");
    for format in ["plain", "verity"] {
        let manifest = format!(
            "[update]\ncompatible=floe\nversion=1\n[bundle]\nformat={format}\n[image.rootfs]\nfilename=rootfs.img\n"
        );
        fs::write(scene.path("content/manifest.raucm"), manifest).expect("ours");
        let bundle = format!("bundle-{format}");
        called("rauc", &format!("bundle --cert=certificate --key=key content {bundle}"));
        let info = called("rauc", &format!("info --keyring=certificate {bundle}"));
        assert!(info.contains("'floe'"), "{info}");
        called("rauc", &format!("extract --keyring=certificate {bundle} out-{format}"));
        let extracted = fs::read(scene.path(&format!("out-{format}")).join("rootfs.img")).expect("extracted");
        assert!(extracted == content, "{format}");
    }
    assert!(scene.calls().contains("/fd/"), "it names the bundle by a descriptor: {}", scene.calls());
}
