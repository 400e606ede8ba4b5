//! Mounts of a service manager (`NOTIFY_SOCKET`).

use std::{collections::HashSet, fs, os::unix::net::UnixDatagram, path::PathBuf, process::Command, time::Duration};

use floe_testkit::skip::{self, Need};
use rustix::process::{Pid, Signal};

use crate::support::program::{Place, Serving, demo, within};

/// The open datagram sockets of a process.
fn datagram_sockets(process: Pid) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").expect("the table of sockets");
    let datagram = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The fifth field is the type: SOCK_DGRAM.
        (*fields.get(4)? == "0002").then(|| fields.get(6).map(|inode| (*inode).to_owned()))?
    });
    let inodes: HashSet<String> = datagram.collect();
    let files = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).expect("it runs").flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    let is_datagram = |target: &PathBuf| {
        let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(inode))
    };
    targets.filter(is_datagram).collect()
}

#[test]
fn a_confined_program_keeps_no_socket_of_the_service_manager() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let address = folder.path().join("notify.sock");
    let manager = UnixDatagram::bind(&address).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("ours");
    let (mut mounted_count, mut refused_count) = (0, 0);
    for limit in (4..=24).chain([64]) {
        let place = Place::new();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_floe"));
        command.arg("mount").arg(demo()).arg(&place.path).args(["-o", "front=fuse,transport=dev"]);
        command.env("NOTIFY_SOCKET", &address);
        match Serving::attempt(command, place) {
            Ok(mut serving) => {
                mounted_count += 1;
                let path = serving.place.file("README.txt");
                assert!(!within(move || fs::read(path)).expect("it is served").is_empty(), "{limit}");
                assert_eq!(datagram_sockets(serving.pid), Vec::<PathBuf>::new(), "{limit}");
                // Before it says that it works, it may have stored descriptors.
                let mut message = [0; 64];
                while !message.starts_with(b"READY=1") {
                    manager.recv(&mut message).expect("a message");
                }
                serving.place.wait_until_unused();
                serving.signal(Signal::TERM);
                let (status, errors) = serving.end();
                assert_eq!((status.code(), errors.as_str()), (Some(0), ""), "{limit}");
                // What else it has sent to the manager is of no interest.
                manager.set_nonblocking(true).expect("ours");
                while manager.recv(&mut message).is_ok() {}
                manager.set_nonblocking(false).expect("ours");
            }
            Err((status, errors)) => {
                refused_count += 1;
                assert!(status.code().is_some() && errors.lines().count() <= 1, "{limit}: {status}: {errors}");
            }
        }
    }
    assert!(mounted_count > 0 && refused_count > 0, "{mounted_count} mounts, {refused_count} refusals");
}
