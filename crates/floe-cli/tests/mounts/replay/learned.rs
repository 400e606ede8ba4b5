//! Launches that are learned, that leave their profile, or that end early.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    thread,
};

use floe_testkit::skip::{self, Need};
use rustix::process::{Pid, Signal, kill_process};

use super::launched::{between, detach, is_state, launch, profile_option, status, total, unmount, wait_for_state};
use crate::support::{
    front::{self, Scene},
    program::{Serving, until},
};

#[test]
fn the_first_launch_is_learned_and_the_next_ones_replay_it() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(40, 20_000);
    let mut fronts = vec!["front=fuse"];
    if front::ready() {
        fronts.push("front=kernel");
    }
    for front in fronts {
        let cache = tempfile::tempdir().expect("a directory");
        let options = format!("profile=learn,cache-directory={},{front}", cache.path().display());
        let mount = || Serving::new(&scene.image, ["-o", &options]);
        let read = |serving: &Serving, number: usize| {
            let name = format!("{}/{number}", number % 10);
            assert_eq!(fs::read(serving.place.file(&name)).expect("read"), scene.contents[Path::new(&name)]);
        };
        let files = || -> Vec<PathBuf> {
            let images = fs::read_dir(cache.path().join("launches")).into_iter().flatten().flatten();
            let files = images.flat_map(|image| fs::read_dir(image.path()).into_iter().flatten().flatten());
            files.map(|file| file.path()).collect()
        };
        let profile = || {
            let files = files();
            assert!(files.len() == 1 && files[0].ends_with("profile"), "{files:?}");
            files[0].clone()
        };

        let mut idle = mount();
        assert_eq!(launch(&idle.place)["state"], "learning", "{front}");
        unmount(&mut idle);
        assert_eq!(files(), Vec::<PathBuf>::new(), "nothing was read");

        let mut first = mount();
        [31, 7, 22].iter().for_each(|number| read(&first, *number));
        let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
        let place = first.place.path.to_str().expect("text");
        let is_direct = table.lines().any(|line| line.contains(place) && line.contains("directio"));
        let _ = fs::metadata(first.place.file("no such name"));
        unmount(&mut first);
        let learned = fs::read_to_string(profile()).expect("written");
        let ranges = ["0 20000 /1/31\n", "0 20000 /7/7\n", "0 20000 /2/22\n"].map(|line| learned.find(line));
        assert!(ranges.iter().all(Option::is_some) && ranges.is_sorted(), "{front}: {learned}");
        assert_eq!(learned.contains("missing /no such name\n"), front == "front=fuse", "{learned}");
        // Linux 6.15 reads each file by itself, and so nothing of its neighbours.
        let files_read = learned.lines().filter(|line| line.starts_with("0 ")).count();
        assert!(files_read == 3 || front == "front=kernel" && !is_direct, "{front}: {learned}");

        let mut second = mount();
        read(&second, 31);
        let report = wait_for_state(&second.place, "replayed");
        assert_eq!(report["source"], profile().to_str().expect("text"), "{report}");
        // The replay may leave the first file to the program, which is reading it.
        assert!(report["ranges"] == 3 || report["ranges"] == 2, "{report}");
        [7, 22].iter().for_each(|number| read(&second, *number));
        assert_eq!(scene.wrong(&second.place.path), Vec::<String>::new());
        unmount(&mut second);

        // A damaged profile is learned again.
        fs::write(profile(), "# floe profile 2\nnonsense").expect("ours");
        let mut third = mount();
        read(&third, 5);
        detach(&third);
        let (status, errors) = third.end();
        assert_eq!(status.code(), Some(0));
        assert!(errors.contains("line 2") && errors.lines().count() == 1, "{errors}");
        assert!(fs::read_to_string(profile()).expect("text").contains("0 20000 /5/5\n"));
    }
}

#[test]
fn nothing_is_learned_where_another_user_could_exchange_the_profile() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(10, 5000);
    for is_profile_there in [false, true] {
        let cache = tempfile::tempdir().expect("a directory");
        let directory = cache.path().join("home/cache");
        fs::create_dir_all(&directory).expect("made");
        let options = format!("profile=learn,cache-directory={}", directory.display());
        if is_profile_there {
            let mut first = Serving::new(&scene.image, ["-o", &options]);
            fs::read(first.place.file("1/1")).expect("read");
            unmount(&mut first);
        }
        chown(cache.path().join("home"), Some(65_534), None).expect("given away");
        let serving = Serving::new(&scene.image, ["-o", &options]);
        let report = launch(&serving.place);
        assert_eq!(report["state"], "unavailable", "{report}");
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        let mut serving = serving;
        detach(&serving);
        let (status, errors) = serving.end();
        assert!(status.success() && errors.lines().count() == 1, "{errors}");
        assert!(errors.contains("another user (user ID 65534)") && errors.contains("no launch is learned"), "{errors}");
        assert_eq!(directory.join("launches").exists(), is_profile_there);
    }
}

#[test]
fn a_launch_that_leaves_the_profile_ends_the_replay() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(100, 5000);
    let profile = scene.folder.path().join("profile");
    let lines: String = (0..50).map(|number| format!("0 5000 /{}/{number}\n", number % 10)).collect();
    fs::write(&profile, format!("# floe profile 1\n{lines}")).expect("ours");
    // A replay that ends counts no further files.
    for (outside, counted, state) in [(50, 16..=50, "left"), (10, 10..=10, "replayed")] {
        let mut serving = Serving::new(&scene.image, profile_option(&profile));
        // While the keeper is stopped, no names are looked up ahead, so the launch overtakes the replay.
        let keeper = stop_keeper(&serving);
        fs::read(serving.place.file("0/0")).expect("read");
        until("the replay begins", || is_state(&serving.place, "replaying"));
        for number in 50..50 + outside {
            fs::read(serving.place.file(&format!("{}/{number}", number % 10))).expect("read");
        }
        if state == "left" {
            wait_for_state(&serving.place, state);
        }
        kill_process(keeper, Signal::CONT).expect("it runs");
        let report = wait_for_state(&serving.place, state);
        assert!(report["outside_files"].as_u64().is_some_and(|files| counted.contains(&files)), "{report}");
        assert!(state == "replayed" || report["ranges"].as_u64() < Some(50), "{report}");
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        unmount(&mut serving);
    }
}

#[test]
fn a_mount_ends_in_the_middle_of_a_replay() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(100, 5000);
    let profile = scene.folder.path().join("profile");
    let lines: String = (0..100).map(|number| format!("0 5000 /{}/{number}\n", number % 10)).collect();
    fs::write(&profile, format!("# floe profile 1\n{lines}")).expect("ours");
    for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        let mut serving = Serving::new(&scene.image, profile_option(&profile));
        let keeper = stop_keeper(&serving);
        fs::read(serving.place.file("0/0")).expect("read");
        until("the replay begins", || is_state(&serving.place, "replaying"));
        match signal {
            None => detach(&serving),
            Some(signal) => serving.signal(signal),
        }
        kill_process(keeper, Signal::CONT).expect("it runs");
        let (status, errors) = serving.end();
        match signal {
            Some(Signal::KILL) => assert_eq!(status.code(), None, "{errors}"),
            _ => assert_eq!((status.code(), errors.as_str()), (Some(0), "")),
        }
        until("the keeper ends", || !Path::new(&format!("/proc/{}", keeper.as_raw_nonzero())).exists());
    }
}

#[test]
fn a_remote_image_is_learned_and_replayed() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::many(40, 20_000);
    let url = serve_over_http(scene.image.clone());
    let cache = tempfile::tempdir().expect("a directory");
    let options = format!("profile=learn,cache-directory={}", cache.path().display());
    for state in ["learning", "replayed"] {
        let mut serving = Serving::new(Path::new(&url), ["-o", &options]);
        fs::read(serving.place.file("1/31")).expect("read");
        wait_for_state(&serving.place, state);
        let before = status(&serving.place);
        for number in 0..30 {
            fs::read(serving.place.file(&format!("{}/{number}", number % 10))).expect("read");
        }
        let with = between(&before, &status(&serving.place));
        match state {
            "learning" => assert!(total(&with) >= 60, "{with:?}"),
            _ => assert!(total(&with) <= 60 / 4, "{with:?}"),
        }
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
        unmount(&mut serving);
    }
}

/// Stops the keeper once it has started the thread that looks names up. The program's thread for launches has its answer when
/// it waits for the first touch; until then it waits for a message.
fn stop_keeper(serving: &Serving) -> Pid {
    let keeper = serving.keeper();
    let tasks = format!("/proc/{}/task", serving.pid.as_raw_nonzero());
    let waits_for_touch = |task: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        read("comm").trim() == "floe-launch" && read("wchan").starts_with("futex")
    };
    until("the replay waits for its launch", || {
        fs::read_dir(&tasks).expect("it runs").flatten().any(waits_for_touch) && has_walker(keeper)
    });
    kill_process(keeper, Signal::STOP).expect("it runs");
    keeper
}

fn has_walker(keeper: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", keeper.as_raw_nonzero())).expect("it runs");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().any(|task| name(task).trim() == "floe-walk")
}

/// Serves a file over HTTP, by ranges. Returns its URL.
fn serve_over_http(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let bytes: &'static [u8] = fs::read(file).expect("it is there").leak();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                let mut stream = stream;
                loop {
                    let (mut range, mut method) = (None, String::new());
                    loop {
                        let mut line = String::new();
                        if !matches!(reader.read_line(&mut line), Ok(1..)) {
                            return;
                        }
                        let line = line.trim_end().to_ascii_lowercase();
                        match line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
                            _ if line.is_empty() => break,
                            Some((from, to)) => range = from.parse::<usize>().ok().zip(to.parse::<usize>().ok()),
                            None if method.is_empty() => method = line,
                            None => {}
                        }
                    }
                    let (from, to) = range.unwrap_or((0, usize::MAX));
                    let to = to.min(bytes.len() - 1);
                    let (status, part) = match range {
                        Some(_) => ("206 Partial Content", &bytes[from..=to]),
                        None => ("200 OK", bytes),
                    };
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{to}/{}\r\nETag: \"one\"\r\n\
                         Accept-Ranges: bytes\r\n\r\n",
                        part.len(),
                        bytes.len()
                    );
                    let body = if method.starts_with("head") { &[][..] } else { part };
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("http://{address}/image.erofs")
}
