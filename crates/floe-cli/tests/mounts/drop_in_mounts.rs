//! Mounts under the names of FUSE programs are as strict as those of the originals; other programs call them by these names.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{
    check_rows, copy_program,
    corpus::Corpus,
    peer,
    skip::{self, Need},
};

use crate::support::program::{Place, floe, run, told, umount, until};

const USER: u32 = 65_534;

/// Options whose effect on the mount table is compared.
const OPTIONS: &[&str] = &[
    "",
    "allow_other",
    "allow_root",
    "suid,dev",
    "nosuid,nodev,noexec",
    "noexec,suid",
    "default_permissions",
    "allow_other,default_permissions",
    "fsname=name",
    "subtype=kind",
    "subtype=kind,fsname=name",
    "ro",
];

/// Programs and an image, in a directory that a user can reach.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let scene = Self { folder };
        let corpus = Corpus::fixtures();
        copy_program(env!("CARGO_BIN_EXE_floe"), scene.path("floe"));
        for (name, file) in [("demo.erofs", "erofs"), ("sqfs-cbase-gzip", "squashfs")] {
            match name {
                "demo.erofs" => fs::copy(crate::support::program::demo(), scene.path(file)),
                name => fs::copy(corpus.materialise(&corpus.image(name)).path, scene.path(file)),
            }
            .expect("a copy");
            fs::set_permissions(scene.path(file), fs::Permissions::from_mode(0o644)).expect("ours");
        }
        let made = run(Command::new("mknod").args(["-m", "666"]).arg(scene.path("fuse")).args(["c", "10", "229"]));
        assert!(made.status.success(), "{made:?}");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.path(if name == "erofsfuse" { "erofs" } else { "squashfs" })
    }

    /// The line of the mount table after `program` has mounted under the name `name`, if it mounted. `ro` and `rw` are left
    /// out, because only Floe mounts read-only.
    fn shown(&self, program: &Path, name: &str, is_user: bool, options: &str) -> Option<Vec<String>> {
        let place = Place::new();
        chown(&place.path, is_user.then_some(USER), is_user.then_some(USER)).expect("ours");
        let user = if is_user { "setpriv --reuid 65534 --regid 65534 --clear-groups" } else { "" };
        let options = if options.is_empty() { String::new() } else { format!("-o {options}") };
        // The mount is made and removed in the namespace, in which all users may open the device.
        let names = tempfile::tempdir_in(self.folder.path()).expect("a folder");
        fs::set_permissions(names.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let link = names.path().join(name);
        symlink(program, &link).expect("a link");
        let script = format!(
            "mount --bind {device} /dev/fuse; \
             {user} {link} {options} {image} {place} >&2 && sleep 0.1 && grep ' {place} ' /proc/self/mountinfo; \
             umount -l {place}",
            device = self.path("fuse").display(),
            link = link.display(),
            image = self.image(name).display(),
            place = place.path.display(),
        );
        let output = run(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", &script]));
        let line = String::from_utf8(output.stdout).expect("text");
        let fields = line.trim().split(' ').skip(5).filter(|field| *field != "-");
        let words = fields.flat_map(|field| field.split(',')).filter(|word| !matches!(*word, "ro" | "rw"));
        let words: Vec<String> = words.map(str::to_owned).collect();
        (!words.is_empty()).then_some(words)
    }
}

fn ready() -> bool {
    let programs = ["setpriv", "unshare", "fusermount3"].map(Need::Peer);
    skip::ready(&[Need::Root, Need::Fuse]) && skip::ready(&programs)
}

#[test]
fn mounts_are_as_strict_as_those_of_the_originals() {
    let names = ["erofsfuse", "squashfuse_ll"];
    if !ready() || !skip::ready(&names.map(Need::Peer)) {
        return;
    }
    let scene = Scene::new();
    for name in names {
        copy_program(peer(name).expect("the test needs it"), scene.path(&format!("original-{name}")));
    }
    let rows: Vec<_> = names
        .iter()
        .flat_map(|name| {
            [true, false].into_iter().flat_map(move |is_user| OPTIONS.iter().map(move |o| (*name, is_user, *o)))
        })
        .collect();
    check_rows(
        &rows,
        |(name, is_user, options)| format!("{name} -o '{options}'{}", if *is_user { " as a user" } else { "" }),
        |(name, is_user, options)| {
            let expected = scene.shown(&scene.path(&format!("original-{name}")), name, *is_user, options);
            let found = scene.shown(&scene.path("floe"), name, *is_user, options);
            if found == expected { Vec::new() } else { vec![format!("{found:?} instead of {expected:?}")] }
        },
    );
}

#[test]
fn allow_root_is_not_allow_other() {
    if !ready() {
        return;
    }
    let (scene, place) = (Scene::new(), Place::new());
    let mount = |words: &[&str]| {
        let mut command = floe();
        command.arg0(words[0]).args(&words[1..]).arg(scene.image("erofsfuse")).arg(&place.path);
        let mounted = run(&mut command);
        assert!(mounted.status.success(), "{mounted:?}");
    };
    let as_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).args(words);
        command.current_dir("/");
        command
    };
    let file = place.file("README.txt");
    let (file, directory) = (file.to_str().expect("text"), place.path.to_str().expect("text"));
    for options in [
        &["erofsfuse", "-o", "allow_root"][..],
        &["erofsfuse", "-o", "allow_root,default_permissions"],
        &["floe", "mount", "--daemon", "-o", "front=fuse,allow_root"],
    ] {
        mount(options);
        // Data that root has read is in the kernel's caches.
        assert!(!fs::read(file).expect("root may read").is_empty(), "{options:?}");
        assert!(fs::read_dir(directory).expect("root may list").count() > 1);
        // A file that root has opened, up to its end. The attributes that root has read stay valid for a tick of the kernel.
        // Programs that ask for the attributes of the file, such as cat, are refused by libfuse too.
        let sum = |mut command: Command| {
            let input = fs::File::open(file).expect("root may open");
            thread::sleep(Duration::from_millis(50));
            command.stdin(input).output().expect("it runs")
        };
        let (of_user, of_root) = (sum(as_user(&["md5sum"])), sum(Command::new("md5sum")));
        assert_eq!(of_user.stdout, of_root.stdout, "{options:?}: {of_user:?}");
        for words in [&["cat", file][..], &["stat", file], &["ls", directory]] {
            assert!(!run(&mut as_user(words)).status.success(), "{options:?} {words:?}");
        }
        assert_eq!(umount(&place.path).0, Some(0));
        until("it is gone", || !place.is_mounted());
    }
    mount(&["erofsfuse", "-o", "allow_other"]);
    for words in [&["cat", file][..], &["stat", file], &["ls", directory]] {
        assert!(run(&mut as_user(words)).status.success(), "{words:?}");
    }
    assert_eq!(umount(&place.path).0, Some(0));
    until("it is gone", || !place.is_mounted());
}

/// Longer than any of the callers takes.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The program under the name of another one, and a list of its calls.
struct CalledScene {
    folder: tempfile::TempDir,
}

impl CalledScene {
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
    let scene = CalledScene::new("squashfuse_ll");
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
    let mut command = Command::new(peer("apptainer").expect("the test needs it"));
    let built = run(command.args(["--quiet", "build"]).arg(scene.path("image.sif")).arg(&tree));
    assert!(built.status.success(), "{built:?}");
    for image in ["image.sqfs", "image.sif"] {
        fs::write(scene.path("calls"), "").expect("ours");
        let script = format!(
            "mount --bind {} /dev/fuse && cd {home} && HOME={home} exec setpriv --reuid {USER} --regid {USER} \
             --clear-groups apptainer exec --userns --no-mount tmp {} sh -c 'stat -c \"%u %g %a\" /root && cat \
             /root/private'",
            scene.path("fuse").display(),
            scene.path(image).display(),
            home = scene.path("home").display(),
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let start = Instant::now();
        let output = run(command.env("PATH", scene.search_path(&["apptainer"])).current_dir("/"));
        let (code, errors) = told(&output);
        assert_eq!(
            (code, output.stdout),
            (Some(0), format!("{USER} {USER} 700\nof root\n").into()),
            "{image} {errors}"
        );
        let calls = scene.calls();
        assert!(calls.contains(&format!("uid={USER},gid={USER}")), "{image} {calls}");
        // In a SIF file, the file system follows a header and other parts.
        assert!(calls.contains("offset=") && calls.contains("offset=0") != (image == "image.sif"), "{image} {calls}");
        // It shows each line of the program that it does not know. It also looks for other programs.
        let shown = errors.lines().filter(|line| !line.contains(" not found, will not be able to "));
        assert_eq!(shown.collect::<Vec<&str>>(), Vec::<&str>::new(), "{image}");
        assert!(start.elapsed() < TIME_MAX, "{image} {:?}", start.elapsed());
    }
}

#[test]
fn rauc_extracts_a_bundle() {
    let programs = ["rauc", "openssl", "mksquashfs"].map(Need::Peer);
    if !skip::ready(&[Need::Root]) || !skip::ready(&programs) {
        return;
    }
    let scene = CalledScene::new("unsquashfs");
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
