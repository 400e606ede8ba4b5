//! What `unsquashfs` prints while it extracts, its exit codes and the trees, compared with the original: for root, in a user
//! namespace in which most owners do not exist, and for another user.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
};

use floe_testkit::{
    check_rows, copy_program,
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, makedev, mknodat, setxattr,
    utimensat,
};
use tempfile::TempDir;

use crate::support::unsquashfs::{is_ready, make_image};

/// The programs; Floe goes by the name that it is given.
const OURS: &str = "unsquashfs";
const THEIRS: &str = "unsquashfs-original";

/// The user and group that no file of the image has.
const NOBODY: u32 = 65_534;

/// Who extracts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum User {
    Root,
    /// Root of a user namespace that has no other user.
    Namespace,
    Other,
}

/// The words by which complaints are told apart.
const WORDS: &[&str] = &[
    "FATAL ERROR: ",
    "create character device",
    "create block device",
    "change uid and gids on",
    "write xattr ",
    "create symlink",
    "create hardlink",
    "create fifo",
    "create socket",
];

/// What can be in the way of an entry, by its name in the target.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    None,
    EmptyDirectory(&'static str),
    Directory(&'static str),
    File(&'static str),
    Link(&'static str),
}

/// A folder with an image, and both programs in a folder that programs may run from.
struct Scene {
    folder: TempDir,
    programs: TempDir,
}

/// What a program did.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    code: Option<i32>,
    printed: String,
    /// The number of complaints with each of the [`WORDS`].
    complaints: Vec<(&'static str, usize)>,
}

impl Scene {
    /// Makes an image of what `fill` puts into a directory.
    fn new(fill: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir_in(crate::support::scratch(64 << 20)).expect("a scratch folder");
        let programs = tempfile::tempdir().expect("a folder that programs may run from");
        copy_program(env!("CARGO_BIN_EXE_floe"), programs.path().join(OURS));
        copy_program(peer("unsquashfs").expect("it was asked for"), programs.path().join(THEIRS));
        fs::create_dir(folder.path().join("tree")).expect("made");
        fill(&folder.path().join("tree"));
        make_image(folder.path());
        for (path, mode) in [(folder.path(), 0o777), (programs.path(), 0o755), (&folder.path().join("image"), 0o644)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
        }
        Self { folder, programs }
    }

    /// A folder for one extraction, below which `../image` is the image.
    fn place(&self) -> TempDir {
        let place = tempfile::tempdir_in(self.folder.path()).expect("a folder");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).expect("set");
        place
    }

    /// The call of a program by a user in `place`.
    fn command(&self, program: &str, user: User, place: &Path) -> Command {
        let path = self.programs.path().join(program);
        let mut command = Command::new(if user == User::Namespace { Path::new("unshare") } else { &path });
        match user {
            User::Root => &mut command,
            User::Namespace => command.arg("-Ur").arg(&path),
            User::Other => command.uid(NOBODY).gid(NOBODY),
        };
        command.current_dir(place).env("TZ", "UTC").stdin(Stdio::null());
        command
    }
}

impl Obstacle {
    /// Puts it into `target`, with a fixed time. A link leads to `outside`.
    fn make(self, target: &Path, outside: &Path) {
        let (Self::EmptyDirectory(name) | Self::Directory(name) | Self::File(name) | Self::Link(name)) = self else {
            return;
        };
        let place = target.join(name);
        fs::create_dir(target).expect("made");
        match self {
            Self::File(_) => fs::write(&place, "old").expect("written"),
            Self::Link(_) => {
                fs::create_dir(outside).expect("made");
                symlink("../outside", &place).expect("linked");
            }
            _ => fs::create_dir(&place).expect("made"),
        }
        if matches!(self, Self::Directory(_)) {
            fs::write(place.join("kept"), "old").expect("written");
            age(&place.join("kept"));
        }
        age(&place);
    }
}

/// Sets the times of a file to a fixed one.
fn age(path: &Path) {
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("set");
}

fn outcome_of(command: &mut Command) -> Outcome {
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints = WORDS.iter().map(|words| (*words, said.lines().filter(|line| line.contains(words)).count()));
    Outcome {
        code: output.status.code(),
        printed: settled(&String::from_utf8_lossy(&output.stdout)),
        complaints: complaints.filter(|(_, count)| *count > 0).collect(),
    }
}

/// A text without the states of a progress bar, or the percentages, before the last one.
fn settled(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').map(|line| line.rsplit('\r').next().unwrap_or(line)).collect();
    let is_percentage = |line: &str| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit());
    let kept = lines
        .iter()
        .enumerate()
        .filter(|(index, line)| !(is_percentage(line) && lines.get(index + 1).is_some_and(|next| is_percentage(next))));
    kept.map(|(_, line)| *line).collect::<Vec<_>>().join("\n")
}

/// Fills a directory with an entry of each type. Owners that `is_mixed` do not exist in a user namespace.
fn fill(tree: &Path, is_mixed: bool) {
    let at = |name: &str| tree.join(name);
    fs::create_dir(at("dir")).expect("made");
    fs::write(at("dir/inside"), "inside").expect("written");
    fs::write(at("file"), vec![b'x'; 300_000]).expect("written");
    fs::hard_link(at("file"), at("hard")).expect("linked");
    symlink("file", at("link")).expect("linked");
    for (name, file_type, device) in [
        ("fifo", FileType::Fifo, 0),
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("sda", FileType::BlockDevice, makedev(8, 0)),
        ("socket", FileType::Socket, 0),
    ] {
        mknodat(CWD, at(name), file_type, Mode::from_raw_mode(0o644), device).expect("made");
    }
    if is_mixed {
        for name in ["dir", "dir/inside", "fifo", "link", "null", "socket"] {
            let (uid, gid) = (Some(Uid::from_raw(1000)), Some(Gid::from_raw(1000)));
            chownat(CWD, at(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW).expect("set");
        }
    }
}

/// Compares what both programs do in each row.
fn check(scene: &Scene, rows: &[(User, &str, Obstacle)]) {
    check_rows(
        rows,
        |row| format!("{row:?}"),
        |(user, options, obstacle)| {
            let [(ours, our_tree), (theirs, tree)] = [OURS, THEIRS].map(|program| {
                let place = scene.place();
                let target = place.path().join("target");
                obstacle.make(&target, &place.path().join("outside"));
                let mut command = scene.command(program, *user, place.path());
                let outcome =
                    outcome_of(command.args(["-d", "target"]).args(options.split_whitespace()).arg("../image"));
                let tree = target.exists().then(|| walk::directory(&target, DirectoryWalk::default()));
                (outcome, tree.map(|tree| tree.expect("readable")).unwrap_or_default())
            });
            if ours.code == Some(1) && theirs.code == Some(1) {
                // The original ends at once, and Floe goes on.
                return (ours.printed != theirs.printed)
                    .then(|| format!("{ours:?} instead of {theirs:?}"))
                    .into_iter()
                    .collect();
            }
            let mut told = differences(&tree, &our_tree, &Comparison::default());
            if ours != theirs {
                told.push(format!("{ours:#?} instead of {theirs:#?}"));
            }
            told
        },
    );
}

#[test]
fn unsquashfs_prints_what_the_original_prints() {
    if !is_ready() {
        return;
    }
    let scene = Scene::new(|tree| fill(tree, true));
    let options = [
        "",
        "-p 1",
        "-q",
        "-n",
        "-q -n",
        "-percentage",
        "-n -percentage",
        "-percentage -n",
        "-q -percentage",
        "-info",
        "-li",
        "-info -percentage",
        "-info -q",
        "-max 0",
        "-max 1 -info",
        "-excludes -f",
        "-no-xattrs",
        "-ig",
        "-st",
        "-no-exit",
        "-st -ig",
        "-st -no-exit",
        "-pf pseudo",
        "-pf pseudo -q",
        "-pf pseudo -n",
        "-pf pseudo -percentage",
        "-pf pseudo -info",
    ];
    let rows = options.map(|options| format!("-p 2 {options}"));
    let rows: Vec<_> = rows.iter().map(|options| (User::Root, options.as_str(), Obstacle::None)).collect();
    check(&scene, &rows);
}

#[test]
fn a_terminal_shows_the_bar_of_the_original() {
    if !is_ready() || !skip::ready(&[Need::Peer("script")]) {
        return;
    }
    let scene = Scene::new(|tree| fill(tree, true));
    for (columns, options) in
        [(80, ""), (40, "-q"), (24, "-q"), (12, "-q"), (80, "-percentage"), (80, "-n"), (80, "-i")]
    {
        let [ours, theirs] = [OURS, THEIRS].map(|program| {
            let (place, program) = (scene.place(), scene.programs.path().join(program));
            let call = format!("stty cols {columns}; {} -p 2 {options} -d target ../image", program.display());
            let mut command = Command::new("script");
            command.args(["-qec", &call, "/dev/null"]).current_dir(place.path()).stdin(Stdio::null());
            let output = command.output().expect("script runs");
            (output.status.code(), settled(&String::from_utf8_lossy(&output.stdout).replace("\r\n", "\n")))
        });
        assert_eq!(ours, theirs, "{columns} {options}");
    }
}

#[test]
fn unsquashfs_reports_each_entry_that_lacks_something() {
    if !is_ready() {
        return;
    }
    use User::{Namespace, Other, Root};
    let none = Obstacle::None;
    let scene = Scene::new(|tree| fill(tree, true));
    let rows = [Namespace, Other].map(|user| {
        ["-n", "-q -n", "-n -ig", "-n -no-exit", "-n -st", "-n -info", "-n dir", "-n -max 0", "", "-percentage"]
            .map(|options| (user, options, none))
    });
    check(&scene, rows.as_flattened());
    let scene = Scene::new(|tree| {
        fill(tree, false);
        for (name, value) in [("user.one", "1"), ("trusted.two", "2"), ("trusted.three", "3")] {
            for file in ["file", "dir", "dir/inside"] {
                setxattr(tree.join(file), name, value.as_bytes(), XattrFlags::empty()).expect("set");
            }
        }
    });
    let options = [
        "-n",
        "-n -ig",
        "-n -user-xattrs",
        "-n -no-xattrs",
        "-n -st",
        "-n -xattrs-exclude trusted",
        "-n -st -u",
        "-n -xattrs-include two -ig",
    ];
    let rows = [Root, Namespace, Other].map(|user| options.map(|options| (user, options, none)));
    check(&scene, rows.as_flattened());
}

#[test]
fn unsquashfs_replaces_what_the_original_replaces() {
    if !is_ready() {
        return;
    }
    use Obstacle::{Directory, EmptyDirectory, File, Link};
    let scene = Scene::new(|tree| fill(tree, false));
    let mut rows = Vec::new();
    for name in ["file", "hard", "link", "null", "sda", "fifo", "socket"] {
        for obstacle in [EmptyDirectory(name), Directory(name), File(name), Link(name)] {
            rows.extend(
                ["-q -n", "-q -n -f", "-q -n -ig", "-q -n -f -ig", "-q -n -st"]
                    .map(|options| (User::Root, options, obstacle)),
            );
        }
    }
    // In the place of a directory, the original enters a link, and does not replace a file.
    rows.extend([File("dir"), Link("dir")].map(|obstacle| (User::Root, "-q -n", obstacle)));
    rows.extend([EmptyDirectory("dir"), Directory("dir")].map(|obstacle| (User::Root, "-q -n -f", obstacle)));
    check(&scene, &rows);
}

#[test]
fn existing_directories_of_a_user_are_filled() {
    if !is_ready() {
        return;
    }
    let scene = Scene::new(|tree| {
        fs::create_dir_all(tree.join("dir/deep")).expect("made");
        fs::write(tree.join("dir/deep/file"), "new").expect("written");
    });
    // The modes of the target and of a directory in it, whether they belong to root, and the exit code of Floe.
    for (modes, is_foreign, code) in [([0o700, 0o500], false, 0), ([0o500, 0o100], false, 0), ([0o777, 0o777], true, 2)]
    {
        let place = scene.place();
        let target = place.path().join("target");
        fs::create_dir_all(target.join("dir/deep")).expect("made");
        for (path, mode) in [("dir/deep", 0o777), ("dir", modes[1]), ("", modes[0])] {
            let path = target.join(path);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            if !is_foreign {
                std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("set");
            }
        }
        let mut command = scene.command(OURS, User::Other, place.path());
        let output = command.args(["-q", "-n", "-f", "-d", "target", "../image"]).output().expect("floe runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{modes:?}: {said}");
        assert_eq!(fs::read(target.join("dir/deep/file")).ok().as_deref(), Some(&b"new"[..]), "{modes:?}: {said}");
        let mut expected = String::new();
        for directory in if is_foreign { &["target/dir/deep", "target/dir", "target"][..] } else { &[] } {
            for what in ["change mode of", "set time on"] {
                expected += &format!("failed to {what} {directory}, because Operation not permitted\n");
            }
        }
        assert_eq!(said, expected, "{modes:?}");
    }
}

#[test]
fn attributes_that_the_target_cannot_hold_are_reported() {
    if !is_ready() || !skip::ready(&[Need::Peer("mke2fs")]) {
        return;
    }
    let scene = Scene::new(|tree| {
        for number in 10..25 {
            fs::write(tree.join(number.to_string()), "").expect("written");
            let flags = XattrFlags::empty();
            setxattr(tree.join(number.to_string()), "user.large", &[b'x'; 6000], flags).expect("set");
        }
    });
    let script = "mkdir target; if test $1 = ext4; then truncate -s 20M disk; mke2fs -q -F -t ext4 -b 1024 disk; \
                  mount -o loop disk target || exit 77; else mount -t ramfs none target || exit 77; fi; shift; exec \"$@\"";
    for file_system in ["ext4", "ramfs"] {
        for options in ["", "-ig", "-st", "-no-xattrs", "-no-exit"] {
            let outcomes = [OURS, THEIRS].map(|program| {
                let place = scene.place();
                let mut command = Command::new("unshare");
                command
                    .args(["--mount", "sh", "-c", script, "sh", file_system])
                    .arg(scene.programs.path().join(program));
                command.args(["-n", "-f", "-d", "target"]).args(options.split_whitespace()).arg("../image");
                outcome_of(command.current_dir(place.path()))
            });
            let [mut ours, mut theirs] = outcomes;
            if ours.code == Some(77) {
                return skip::skipped("no file system can be mounted here");
            }
            for outcome in [&mut ours, &mut theirs] {
                // Where the original ends, Floe goes on. After ten messages, Floe says no more.
                outcome.complaints.iter_mut().for_each(|(_, count)| *count = (*count).min(1));
                outcome.complaints.retain(|(_, count)| *count > 0);
            }
            assert_eq!(ours, theirs, "{file_system} {options}");
        }
    }
}
