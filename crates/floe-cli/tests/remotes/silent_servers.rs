//! Signals to programs that wait for a server that does not answer.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, thread};

use floe_testkit::{
    Random,
    skip::{self, Need},
};
use rustix::{fs::Advice, process::Signal};
use tempfile::TempDir;

use crate::support::{
    front,
    plain_server::{Pages, PlainServer},
    program::{Place, Running, Serving, floe, floe_with_messages_in, run, told, until},
};

/// The programs wait much longer for the server than a test for their end.
const OUTAGE: &str = "wait:10m";

/// The size of the only file of the image, in bytes.
const LEN: usize = 16 << 20;

/// The number of readers: more than requests can be in progress.
const READER_COUNT: usize = 48;

/// An image with one incompressible file, on a server.
struct Remote {
    directory: TempDir,
    server: PlainServer,
    url: String,
}

impl Remote {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let (tree, image) = (directory.path().join("tree"), directory.path().join("image.erofs"));
        fs::create_dir(&tree).expect("made");
        fs::write(tree.join("noise"), Random::new(23).noise(LEN)).expect("written");
        let (code, errors) = told(&run(floe().args(["mkfs", "--quiet"]).arg(&image).arg(&tree)));
        assert_eq!(code, Some(0), "{errors}");
        let bytes = fs::read(&image).expect("read");
        let server = PlainServer::of(Pages::from([("/image".to_owned(), ("application/octet-stream", bytes))]));
        let url = format!("http://127.0.0.1:{}/image", server.port);
        Self { directory, server, url }
    }

    /// An image that is mounted, with its file open, on a server that then falls silent.
    fn silent(options: &str) -> (Self, Serving, fs::File) {
        let remote = Self::new();
        let serving = remote.mount(options);
        let file = fs::File::open(serving.place.file("noise")).expect("it is there");
        remote.server.fall_silent_after(0);
        (remote, serving, file)
    }

    fn messages(&self) -> PathBuf {
        self.directory.path().join("messages")
    }

    fn mount(&self, options: &str) -> Serving {
        let place = Place::new();
        let mut command = floe_with_messages_in(&self.messages());
        command.args(["mount", "--outage", OUTAGE, "--cache-size", "0", "-o", options]);
        command.arg(&self.url).arg(&place.path);
        Serving::start(command, place)
    }
}

/// The options of the mounts that are tested.
fn options() -> Vec<&'static str> {
    let mut options = vec!["front=fuse", "front=fuse,sandbox=off"];
    if front::ready() {
        options.extend(["front=kernel", "front=kernel,transport=dev,sandbox=off", "front=kernel,sandbox=off"]);
    }
    options
}

#[test]
fn a_mount_without_users_ends_soon_after_a_signal() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for options in options() {
        let (remote, mut serving, file) = Remote::silent(options);
        // The kernel reads ahead for a program that does not wait, and then closes the file.
        for offset in (0..LEN).step_by(LEN / 8) {
            let _ = rustix::fs::fadvise(&file, offset as u64, std::num::NonZero::new(128 << 10), Advice::WillNeed);
        }
        drop(file);
        until("requests wait", || remote.server.unanswered() > 0);
        serving.place.wait_until_unused();
        serving.signal(Signal::TERM);
        assert_eq!(serving.end().0.code(), Some(0), "{options}");
        assert!(!serving.place.is_mounted(), "{options}");
    }
}

#[test]
fn a_mount_with_users_ends_soon_after_a_second_signal() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for options in options() {
        let (remote, mut serving, file) = Remote::silent(options);
        let readers: Vec<_> = (0..READER_COUNT)
            .map(|index| {
                let file = file.try_clone().expect("a descriptor");
                thread::spawn(move || file.read_at(&mut [0; 512], (index * (LEN / READER_COUNT)) as u64))
            })
            .collect();
        until("requests wait", || remote.server.unanswered() > 0);
        serving.signal(Signal::TERM);
        let said = || fs::read_to_string(remote.messages()).expect("ours");
        until("it says that it is in use", || said().contains("signal again to stop now"));
        serving.signal(Signal::TERM);
        assert_eq!(serving.end().0.code(), Some(1), "{options}: {}", said());
        until("the readers end", || readers.iter().all(thread::JoinHandle::is_finished));
        drop(file);
    }
}

#[test]
fn commands_end_soon_after_a_signal() {
    for (words, code) in [(&["check", "IMAGE"][..], 32), (&["extract", "IMAGE", "-C", "TARGET"], 130)] {
        let remote = Remote::new();
        let target = remote.directory.path().join("target");
        let mut command = floe();
        command.args(words.iter().map(|word| match *word {
            "IMAGE" => remote.url.as_ref(),
            "TARGET" => target.as_os_str(),
            word => word.as_ref(),
        }));
        // Opening the image takes two.
        remote.server.fall_silent_after(6);
        let running = Running::start(command.args(["--outage", OUTAGE, "--cache-size", "0"]));
        until("requests wait", || remote.server.unanswered() > 0);
        running.signal(Signal::TERM);
        let (found, errors) = running.end();
        assert!(found == Some(code) && errors.lines().count() <= 1, "{words:?}: {found:?}, {errors}");
        assert!(!target.join("noise").exists(), "an incomplete file");
    }
}
