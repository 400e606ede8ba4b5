//! Trees under fakeroot and pseudo, which fake owners, modes, device files and attributes by a preloaded library.
//!
//! Each session is one of an ordinary user, in a folder of its own.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use floe::{ByteRange, Image, Nid, OpenOptions};
use floe_testkit::{
    check_rows, copy_program,
    corpus::Corpus,
    manifest::{Comparison, Entry, Manifest, differences},
    peer,
    skip::{self, Need},
    walk,
};

use crate::support::program::{Place, demo, floe, run, told, umount, until};

/// A program that fakes, and how it is run.
struct Session {
    program: &'static str,
    variables: &'static [(&'static str, &'static str)],
}

/// fakeroot-tcp is not among them: it forgets some of the files that a program creates quickly, whichever program that is.
const SESSIONS: [Session; 3] = [
    Session { program: "fakeroot-sysv", variables: &[] },
    Session { program: "pseudo", variables: &[] },
    // As BitBake runs it.
    Session { program: "pseudo", variables: &[("PSEUDO_NOSYMLINKEXP", "1")] },
];

/// The names under which a folder has the program.
const NAMES: [&str; 4] = ["floe", "mkfs.erofs", "fsck.erofs", "unsquashfs"];

/// A path of the tree, its owner, its mode and its type as `stat` prints them, and its device number.
const ENTRIES: [(&str, &str, &str, &str, &str); 12] = [
    ("", "0:0", "755", "directory", "0:0"),
    ("/dev", "0:0", "755", "directory", "0:0"),
    ("/dev/console", "0:5", "620", "character special file", "5:1"),
    ("/dev/disk", "0:6", "660", "block special file", "8:0"),
    ("/dev/large", "0:0", "600", "character special file", "12c:11170"),
    ("/dev/pipe", "3:4", "644", "fifo", "0:0"),
    ("/etc", "1000:100", "1777", "directory", "0:0"),
    ("/etc/shadow", "0:42", "640", "regular file", "0:0"),
    ("/etc/locked", "0:42", "0", "regular file", "0:0"),
    ("/su", "0:0", "4755", "regular file", "0:0"),
    ("/link", "12:13", "777", "symbolic link", "0:0"),
    ("/far", "4000000:70000", "644", "regular file", "0:0"),
];

const MAKE_TREE: &str = "
    mkdir tree tree/dev tree/etc
    mknod tree/dev/console c 5 1; mknod tree/dev/disk b 8 0; mknod tree/dev/large c 300 70000; mkfifo tree/dev/pipe
    echo secret >tree/etc/shadow; echo secret >tree/etc/locked; echo program >tree/su; echo far >tree/far
    ln -s su tree/link; ln tree/su tree/su-again
    chown 0:0 tree tree/dev tree/dev/large tree/su; chown 0:5 tree/dev/console; chown 0:6 tree/dev/disk
    chown 3:4 tree/dev/pipe; chown 1000:100 tree/etc; chown 0:42 tree/etc/shadow tree/etc/locked
    chown -h 12:13 tree/link; chown 4000000:70000 tree/far
    chmod 755 tree tree/dev; chmod 620 tree/dev/console; chmod 660 tree/dev/disk; chmod 600 tree/dev/large
    chmod 644 tree/dev/pipe tree/far; chmod 1777 tree/etc; chmod 640 tree/etc/shadow; chmod 4755 tree/su; chmod 0 tree/etc/locked
    find tree -depth -exec touch -h -d @1700000000 {} +
";

/// Attributes that only root may set, on all types of files.
const SET_ATTRIBUTES: &str = "
    for path in tree/su tree/link tree/dev/console tree/etc; do setfattr -h -n security.floe -v \"$path\" $path; done
    setfattr -n trusted.floe -v secret tree/far
    find tree -depth -exec touch -h -d @1700000000 {} +
";

impl Session {
    /// Whether this machine can run it.
    fn is_ready(&self) -> bool {
        skip::ready(&[Need::Peer(self.program)]) && (!is_root() || skip::ready(&[Need::Peer("setpriv")]))
    }

    fn name(&self) -> String {
        format!("{} {:?}", self.program, self.variables)
    }

    /// A shell command in a folder. Each command is a session of its own.
    fn command(&self, folder: &Path, script: &str) -> Command {
        let program = peer(self.program).expect("it was asked for");
        let mut command = as_user(&program);
        for variable in ["FAKEROOTKEY", "LD_PRELOAD"] {
            command.env_remove(variable);
        }
        command.env("HOME", folder).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PSEUDO_PREFIX", program.ancestors().nth(2).unwrap_or(Path::new("/usr")));
        command.env("PSEUDO_LOCALSTATEDIR", folder.join("pseudo")).envs(self.variables.iter().copied());
        command.args(["sh", "-c", &format!("set -e; umask 022; {script}")]).current_dir(folder);
        command
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A command that an ordinary user runs.
fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
    command
}

/// A folder that a user may write to, with the program under its names.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
    for name in &NAMES[1..] {
        symlink("floe", folder.path().join(name)).expect("a link");
    }
    fs::copy(demo(), folder.path().join("demo.erofs")).expect("a copy");
    folder
}

fn contents(image: &Path) -> Manifest {
    let image = Image::open(image, &OpenOptions::default()).expect("an image");
    let read = |nid: Nid, range: ByteRange| {
        let mut bytes = vec![0; usize::try_from(range.len()).expect("it is small")];
        let len = image.read_at(nid, range.offset(), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    walk::image(image.file_system().as_ref(), &read).expect("it is walked")
}

/// The entries that differ from [`ENTRIES`].
fn wrong_entries(image: &Path) -> Vec<String> {
    let manifest = contents(image);
    let mut wrong = Vec::new();
    for (path, owner, mode, kind, device) in ENTRIES {
        let inside = if path.is_empty() { "/" } else { path };
        let Some(entry) = manifest.entry(inside.as_bytes()) else {
            wrong.push(format!("{path} is missing"));
            continue;
        };
        let kind_found = match entry.file_type {
            'd' => "directory",
            'c' => "character special file",
            'b' => "block special file",
            'p' => "fifo",
            'l' => "symbolic link",
            _ => "regular file",
        };
        let (major, minor) = entry.device.unwrap_or_default();
        let found = format!("{}:{} {:o} {kind_found} {major:x}:{minor:x}", entry.uid, entry.gid, entry.mode);
        let expected = format!("{owner} {mode} {kind} {device}");
        if found != expected {
            wrong.push(format!("{} of {}: {found}, not {expected}", inside, image.display()));
        }
    }
    wrong
}

/// The lines of `stat` about a tree in [`ENTRIES`].
fn stat_lines(tree: &str) -> String {
    ENTRIES
        .iter()
        .map(|(path, owner, mode, kind, device)| format!("{tree}{path} {owner} {mode} {kind} {device}\n"))
        .collect()
}

/// The command that prints [`stat_lines`].
fn stat(tree: &str) -> String {
    let paths: Vec<String> = ENTRIES.iter().map(|(path, ..)| format!("{tree}{path}")).collect();
    format!("stat -c '%n %u:%g %a %F %t:%T' {};", paths.join(" "))
}

fn complaints(output: &Output, errors: &[&str]) -> Vec<String> {
    let (code, told) = told(output);
    let unexpected: Vec<&str> =
        told.lines().filter(|line| !errors.iter().any(|expected| line.contains(expected))).collect();
    if code == Some(0) && unexpected.is_empty() { Vec::new() } else { vec![format!("{code:?}: {told}")] }
}

const UNCONFINED: &str = "continuing without one";

#[test]
fn trees_are_stored_and_extracted_as_they_are_faked() {
    let has_attributes = skip::ready(&[Need::Peer("setfattr")]);
    check_rows(&SESSIONS, Session::name, |session| {
        if !session.is_ready() {
            return Vec::new();
        }
        let folder = folder();
        let set_attributes = if has_attributes { SET_ATTRIBUTES } else { "" };
        let script = format!(
            "{MAKE_TREE} {set_attributes} {}
            ./floe mkfs --quiet one.erofs tree; ./mkfs.erofs --quiet two.erofs tree
            ./floe extract --quiet --strict one.erofs -C by-floe; {}
            ./fsck.erofs --xattrs --extract=by-fsck two.erofs; {}
            ./floe extract --quiet --jobs 1 one.erofs /dev/console /etc -C parts; stat -c '%F %u' parts/dev/console
            ./floe mkfs --quiet three.erofs by-floe; ./mkfs.erofs --quiet four.erofs by-fsck
            rm three.erofs; tar --numeric-owner -cf - -C tree . | ./floe mkfs --quiet three.erofs -",
            stat("tree"),
            stat("by-floe"),
            stat("by-fsck"),
        );
        let output = run(&mut session.command(folder.path(), &script));
        let mut told = complaints(&output, &[UNCONFINED]);
        let expected = ["tree", "by-floe", "by-fsck"].map(stat_lines).concat() + "character special file 0\n";
        let found = String::from_utf8_lossy(&output.stdout);
        if found != expected {
            told.push(format!("{found} instead of {expected}"));
        }
        let images = ["one", "two", "three", "four"].map(|name| folder.path().join(format!("{name}.erofs")));
        if images.iter().any(|image| !image.exists()) {
            return told;
        }
        told.extend(images.iter().flat_map(|image| wrong_entries(image)));
        let first = contents(&images[0]);
        let attributes: usize = first.entries().map(|(_, entry)| entry.xattrs.len()).sum();
        if has_attributes && attributes != 6 {
            told.push(format!("{attributes} attributes"));
        }
        for image in [&images[1], &images[3]] {
            told.extend(differences(&first, &contents(image), &Comparison::default()));
        }
        told
    });
}

#[test]
fn an_image_of_a_faked_tree_equals_that_of_a_real_one() {
    if !skip::ready(&[Need::Root, Need::Peer("setfattr")]) {
        return;
    }
    check_rows(&SESSIONS, Session::name, |session| {
        if !session.is_ready() {
            return Vec::new();
        }
        let folder = folder();
        let script = format!("{MAKE_TREE} {SET_ATTRIBUTES} ./mkfs.erofs --quiet -U clear faked.erofs tree; rm -r tree");
        let mut told = complaints(&run(&mut session.command(folder.path(), &script)), &[]);
        let script = format!("set -e; {MAKE_TREE} {SET_ATTRIBUTES} ./mkfs.erofs --quiet -U clear real.erofs tree");
        let real = run(Command::new("sh").args(["-c", &script]).current_dir(folder.path()));
        told.extend(complaints(&real, &[]));
        let [faked, real] = ["faked.erofs", "real.erofs"].map(|name| fs::read(folder.path().join(name)).ok());
        if faked.is_none() || faked != real {
            told.push("the images differ".to_owned());
        }
        told
    });
}

#[test]
fn squashfs_images_are_extracted_as_faked_trees() {
    let corpus = Corpus::fixtures();
    let image = corpus.image("sqfs-meta");
    let files = corpus.materialise(&image);
    // pseudo keeps device numbers as signed numbers of 32 bits, and fakeroot no attribute of more than a kilobyte.
    let is_too_large = |path: &[u8]| path == b"/spec/blk2" || path == b"/spec/chr2";
    let mut expected = Manifest::default();
    for (path, entry) in corpus.manifest(&image).entries().filter(|(path, _)| !is_too_large(path)) {
        expected.insert(path.to_vec(), Entry { xattrs: BTreeMap::new(), ..entry.clone() });
    }
    check_rows(&SESSIONS, Session::name, |session| {
        if !session.is_ready() {
            return Vec::new();
        }
        let folder = folder();
        fs::copy(&files.path, folder.path().join("image")).expect("a copy");
        let script = "./unsquashfs -n -q -no-xattrs -d out -excludes image spec/blk2 spec/chr2
            ./floe mkfs --quiet --no-xattrs again out";
        let mut told = complaints(&run(&mut session.command(folder.path(), script)), &[UNCONFINED]);
        let again = folder.path().join("again");
        if again.exists() {
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            told.extend(differences(&expected, &contents(&again), &comparison));
        }
        told
    });
}

#[test]
fn other_commands_leave_the_fake() {
    check_rows(&SESSIONS, Session::name, |session| {
        if !session.is_ready() {
            return Vec::new();
        }
        let folder = folder();
        fs::copy(Corpus::fixtures().root().join("images/sqfs-meta.sqfs"), folder.path().join("image")).expect("a copy");
        // Confined, and without a word.
        let script =
            "for command in ls check stat dump; do ./floe $command --sandbox=require demo.erofs >/dev/null; done
            ./floe cat demo.erofs /README.txt | grep -q .; ./fsck.erofs demo.erofs; ./fsck.erofs --extract demo.erofs
            ./unsquashfs -s image >/dev/null; ./unsquashfs -l image >/dev/null; ./unsquashfs -pf pseudo-file image
            ! ./floe extract --sandbox=require demo.erofs -C out 2>refusal; test ! -e out; grep -q 'is loaded' refusal
            ./floe doctor >doctor || true; ! grep semop doctor";
        complaints(&run(&mut session.command(folder.path(), script)), &[])
    });
}

#[test]
fn a_mount_outlives_the_session() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("fakeroot-sysv")]) {
        return;
    }
    let place = Place::new();
    let mut session = Command::new("fakeroot-sysv");
    session.env_remove("FAKEROOTKEY").env_remove("LD_PRELOAD").arg(env!("CARGO_BIN_EXE_floe"));
    let mounted = run(session.args(["mount", "--daemon"]).arg(demo()).arg(&place.path));
    assert_eq!(told(&mounted), (Some(0), String::new()));
    // The daemon of the session ends with it.
    let file = place.file("README.txt");
    assert!(fs::metadata(&file).is_ok_and(|status| status.size() > 0));
    assert!(!fs::read(&file).expect("it is served").is_empty());
    let status = run(floe().arg("status").arg(&place.path));
    assert_eq!(told(&status), (Some(0), String::new()));
    assert_eq!(umount(&place.path), (Some(0), String::new()));
    until("it is unmounted", || !place.is_mounted());
}

/// The program under a name, in a folder in which it is asked to fake but has not loaded a library, as a static program.
struct Asked<'a> {
    folder: &'a Path,
    variables: &'static [(&'static str, &'static str)],
}

impl Asked<'_> {
    fn run(&self, line: &str) -> (Option<i32>, String) {
        let mut command = Command::new("sh");
        for variable in ["FAKEROOTKEY", "LD_PRELOAD", "FAKECHROOT_BASE"] {
            command.env_remove(variable);
        }
        // Not exported to the shell, for which the libraries are missing too.
        let variables: String = self.variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let line = format!("PATH=$PWD:$PATH; exec 2>errors; {variables}{line} 2>errors");
        let output = run(command.args(["-c", &line]).current_dir(self.folder));
        let errors = fs::read_to_string(self.folder.join("errors")).expect("ours");
        // The loader says that it finds no such library.
        let lines = errors.lines().filter(|line| !line.starts_with("ERROR: ld.so"));
        (output.status.code(), lines.collect::<Vec<_>>().join("\n"))
    }
}

#[test]
fn a_tree_without_the_requested_fake_is_refused() {
    let folder = folder();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    fs::create_dir(at("tree")).expect("ours");
    fs::write(at("tree/file"), "text").expect("ours");
    let corpus = Corpus::fixtures();
    fs::copy(&corpus.materialise(&corpus.image("sqfs-tiny")).path, at("image.sqfs")).expect("a copy");
    assert!(run(Command::new("tar").args(["-cf", "tree.tar", "tree"]).current_dir(folder.path())).status.success());
    const REFUSED: [(&str, i32, &str); 7] = [
        ("floe mkfs made tree", 1, "floe: "),
        ("floe mkfs --all-root made tree.tar tree", 1, "floe: "),
        ("mkfs.erofs made tree", 1, "<E> erofs: "),
        ("floe extract demo.erofs -C made", 1, "floe: "),
        ("floe extract --no-owner --sandbox=off demo.erofs -C made", 1, "floe: "),
        ("fsck.erofs --extract=made demo.erofs", 1, "<E> erofs: "),
        ("unsquashfs -d made image.sqfs", 1, "FATAL ERROR: "),
    ];
    // What depends on no owner of a tree.
    const DONE: [&str; 9] = [
        "floe mkfs --quiet made tree.tar",
        "mkfs.erofs --quiet --tar=f made tree.tar",
        "floe ls demo.erofs",
        "floe check --sandbox=require demo.erofs",
        "fsck.erofs demo.erofs",
        "fsck.erofs --extract demo.erofs",
        "unsquashfs -l image.sqfs",
        "unsquashfs -s image.sqfs",
        "floe --version",
    ];
    for (variables, name) in [
        (&[("FAKEROOTKEY", "17")][..], Some("fakeroot")),
        (&[("FAKEROOTKEY", "17"), ("LD_PRELOAD", "libfakeroot-missing.so")], Some("fakeroot")),
        (&[("LD_PRELOAD", "libpseudo-missing.so"), ("PSEUDO_PREFIX", "/usr")], Some("pseudo")),
        (&[("FAKECHROOT_BASE", "/root")], Some("fakechroot")),
        (&[("PSEUDO_PREFIX", "/usr"), ("PSEUDO_LOCALSTATEDIR", "/state"), ("PSEUDO_DISABLED", "1")], None),
        (&[("LD_PRELOAD", "libpseudo-missing.so"), ("PSEUDO_UNLOAD", "1")], None),
        (&[("LD_PRELOAD", "libsomething-missing.so")], None),
        (&[("FAKEROOTKEY", "")], None),
    ] {
        let asked = Asked { folder: folder.path(), variables };
        let remove = || drop((fs::remove_dir_all(at("made")), fs::remove_file(at("made"))));
        for (line, exit, prefix) in REFUSED {
            remove();
            let (code, errors) = asked.run(line);
            match name {
                Some(name) => {
                    assert_eq!(code, Some(exit), "{variables:?} {line}: {errors}");
                    assert!(errors.starts_with(&format!("{prefix}{name} ")), "{variables:?} {line}: {errors}");
                    assert!(errors.lines().count() == 1 && errors.contains(", or "), "{variables:?} {line}: {errors}");
                    assert!(!at("made").exists(), "{variables:?} {line}");
                }
                None => assert!(code == Some(0), "{variables:?} {line}: {errors}"),
            }
        }
        for line in DONE {
            remove();
            let (code, errors) = asked.run(line);
            assert_eq!((code, errors.as_str()), (Some(0), ""), "{variables:?} {line}");
        }
    }
}
