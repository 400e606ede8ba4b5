//! Names with control sequences, in images and on the command line: no command sends them to the terminal.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::symlink,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_testkit::{
    peer,
    skip::{self, Need},
};

use crate::support::program::run;

/// Names that act on a terminal, or are no text.
const NAMES: [&[u8]; 8] = [
    b"colour\x1b[31m\x1b]0;title\x07",
    b"two\nlines",
    b"back\rwards",
    b"no text \xff\xfe",
    b"raw \x9b31m and \x90",
    b"right \xe2\x80\xae to left",
    b"C1 \xc2\x9b31m",
    b"bell\x07 and backspace\x08",
];

/// What reaches the terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Through {
    Pipe,
    Terminal,
}

/// The harmful parts of an output: bytes that are no text, control characters, and invisible changes of direction.
fn harmful(output: &[u8]) -> Vec<String> {
    let Ok(text) = std::str::from_utf8(output) else { return vec!["bytes that are no text".to_owned()] };
    // A terminal turns a line feed into these two. A progress bar is drawn over its line, and no name here has that beginning.
    let text = text.replace("\r\n", "\n").replace("\r[", "[");
    let is_harmful = |character: &char| {
        character.is_control() && !matches!(character, '\n' | '\t') || ('\u{202a}'..='\u{202e}').contains(character)
    };
    text.chars().filter(is_harmful).map(|character| character.escape_unicode().to_string()).collect()
}

struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    /// A tree with a directory, a file and a link of each name, and images of it, one with a hostile name.
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().expect("a directory") };
        let tree = scene.path("tree");
        fs::create_dir(&tree).expect("made");
        for name in NAMES {
            let directory = tree.join(OsStr::from_bytes(name));
            fs::create_dir(&directory).expect("made");
            fs::write(directory.join(OsStr::from_bytes(name)), "text").expect("written");
            symlink(OsStr::from_bytes(name), directory.join("link")).expect("linked");
        }
        for program in ["unsquashfs", "dump.erofs", "fsck.erofs", "mkfs.erofs", "erofsfuse"] {
            symlink(env!("CARGO_BIN_EXE_floe"), scene.path(program)).expect("linked");
        }
        symlink(env!("CARGO_BIN_EXE_floe"), scene.path("floe")).expect("linked");
        assert!(
            scene.command(&["floe", "mkfs", "--quiet", "image.erofs", "tree"]).status().expect("it runs").success()
        );
        fs::copy(scene.path("image.erofs"), scene.path(scene.hostile_image())).expect("copied");
        fs::write(scene.path(OsStr::from_bytes(NAMES[3])), "no image").expect("written");
        scene
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    fn hostile_image(&self) -> &'static OsStr {
        OsStr::from_bytes(NAMES[0])
    }

    fn command<A: AsRef<OsStr>>(&self, words: &[A]) -> Command {
        let mut command = Command::new(self.path(words[0].as_ref()));
        command.arg0(words[0].as_ref()).args(&words[1..]).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command, and returns what it must not have written.
    fn harm(&self, words: &[OsString], through: Through) -> Vec<String> {
        if through == Through::Pipe {
            let output = run(&mut self.command(words));
            // The originals print names raw, for programs that read them.
            let is_original = words[0] != "floe";
            let out = if is_original { Vec::new() } else { harmful(&output.stdout) };
            return out.into_iter().chain(harmful(&output.stderr)).collect();
        }
        let quoted = |word: &OsString| {
            let mut quoted = OsString::from("'");
            quoted.push(word);
            quoted.push("'");
            quoted
        };
        let mut line = OsString::from("exec ./");
        line.push(&words[0]);
        for word in &words[1..] {
            line.push(" ");
            line.push(quoted(word));
        }
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c"]).arg(line).arg("/dev/null");
        script.current_dir(self.folder.path()).env("TERM", "dumb").env("SHELL", "/bin/sh").stdin(Stdio::null());
        harmful(&run(&mut script).stdout)
    }
}

fn words(line: &str, hostile: &[u8]) -> Vec<OsString> {
    let word = |word: &str| {
        let parts: Vec<&[u8]> = word.split('@').map(str::as_bytes).collect();
        OsString::from_vec(parts.join(hostile))
    };
    line.split(' ').map(word).collect()
}

/// Commands with a hostile name in the place of `@`.
const COMMANDS: [&str; 48] = [
    "floe ls image.erofs",
    "floe ls -l image.erofs",
    "floe ls -R image.erofs",
    "floe ls -lR image.erofs /@",
    "floe ls --json image.erofs",
    "floe ls image.erofs /@/none",
    "floe ls none@",
    "floe cat image.erofs /@",
    "floe cat image.erofs /none@",
    "floe stat image.erofs /@ /@/link /none@",
    "floe stat --json image.erofs /@/link",
    "floe dump image.erofs /@",
    "floe dump none@",
    "floe check image.erofs",
    "floe check none@",
    "floe check tree/@",
    "floe extract image.erofs -C out@",
    "floe extract image.erofs -C out@",
    "floe extract image.erofs -C tree/@/@",
    "floe extract image.erofs -C other /none@",
    "floe mkfs new.erofs none@",
    "floe mkfs none@/new.erofs tree",
    "floe mkfs tree/@ tree",
    "floe mkfs new.erofs tree --exclude none@",
    "floe mkfs new.erofs tree --profile none@",
    "floe mount none@ tree",
    "floe mount image.erofs none@",
    "floe mount image.erofs tree/@/@",
    "floe mount -o none@ image.erofs tree",
    "floe umount tree/@",
    "floe umount none@",
    "floe status tree/@",
    "floe tune tree/@ cache=1M",
    "floe upgrade tree/@",
    "floe record -o profile tree/@ -- true",
    "floe cache ls --cache-directory none@",
    "floe cache drop --cache-directory tree id@",
    "floe push none@ oci://localhost:1/a",
    "floe pull oci://localhost:1/a@ out",
    "floe --@",
    "floe none@",
    "dump.erofs --ls --path=/ image.erofs",
    "dump.erofs --path=/none@ image.erofs",
    "fsck.erofs --extract=tree/@/@ image.erofs",
    "fsck.erofs none@",
    "mkfs.erofs new.erofs none@",
    "erofsfuse none@ tree",
    "erofsfuse image.erofs none@",
];

#[test]
fn no_command_sends_control_sequences_of_names_to_the_terminal() {
    let scene = Scene::new();
    let mut through = vec![Through::Pipe];
    if skip::ready(&[Need::Peer("script")]) {
        through.push(Through::Terminal);
    }
    let mut complaints = Vec::new();
    for through in through {
        for line in COMMANDS {
            let names = match through {
                _ if !line.contains('@') => &NAMES[..1],
                Through::Pipe => &NAMES[..],
                Through::Terminal => &NAMES[3..5],
            };
            for name in names {
                let harm = scene.harm(&words(line, name), through);
                if !harm.is_empty() {
                    complaints.push(format!("{through:?}: {line} with {}: {harm:?}", name.escape_ascii()));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn unsquashfs_prints_names_raw_except_on_a_terminal() {
    if !skip::ready(&[Need::Peer("mksquashfs"), Need::Peer("script")]) {
        return;
    }
    let scene = Scene::new();
    let mut mksquashfs = Command::new(peer("mksquashfs").expect("it is there"));
    mksquashfs.args(["tree", "image.sqfs", "-quiet", "-no-progress"]).current_dir(scene.folder.path());
    assert!(run(&mut mksquashfs).status.success());
    let listed = run(&mut scene.command(&["unsquashfs", "-l", "image.sqfs"])).stdout;
    for name in NAMES {
        assert!(listed.windows(name.len()).any(|part| part == name), "{}", name.escape_ascii());
    }
    for line in [
        "unsquashfs -l image.sqfs",
        "unsquashfs -ll image.sqfs",
        "unsquashfs -lls image.sqfs",
        "unsquashfs -llc image.sqfs",
        "unsquashfs -i -d out@ image.sqfs",
        "unsquashfs -d out@ image.sqfs",
        "unsquashfs -d tree/@/@ image.sqfs",
        "unsquashfs -cat image.sqfs @ none@",
        "unsquashfs none@",
        "unsquashfs -none@ image.sqfs",
    ] {
        for name in [NAMES[0], NAMES[1], NAMES[4], NAMES[6]] {
            for through in [Through::Pipe, Through::Terminal] {
                let harm = scene.harm(&words(line, name), through);
                assert!(harm.is_empty(), "{through:?}: {line} with {}: {harm:?}", name.escape_ascii());
            }
        }
    }
}

#[test]
fn mounts_of_hostile_names_are_announced_harmlessly() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::Peer("script")]) {
        return;
    }
    let scene = Scene::new();
    for name in [NAMES[0], NAMES[4], NAMES[5], NAMES[6]] {
        let directory = scene.path(OsStr::from_bytes(&[b"mount ", name].concat()));
        fs::create_dir(&directory).expect("made");
        let image = scene.hostile_image();
        for through in [Through::Pipe, Through::Terminal] {
            let mut mount = words("floe mount --daemon", b"");
            mount.extend([image.to_owned(), directory.clone().into_os_string()]);
            let with = |line: &str| [words(line, b""), vec![directory.clone().into_os_string()]].concat();
            let mut complaints = Vec::new();
            for command in [
                mount.clone(),
                mount,
                with("floe status"),
                words("floe status", b""),
                with("floe status --json"),
                words("floe status --prometheus", b""),
                with("floe tune"),
                with("floe umount"),
                with("floe umount"),
            ] {
                complaints.extend(scene.harm(&command, through).into_iter().map(|harm| format!("{command:?}: {harm}")));
            }
            assert!(complaints.is_empty(), "{through:?}: {complaints:?}");
            let mounts = fs::read_to_string("/proc/self/mounts").expect("text");
            assert!(!mounts.contains(scene.folder.path().to_str().expect("text")), "it is unmounted");
        }
    }
}
