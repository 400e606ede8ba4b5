//! `floe mount IMAGE /dev/fd/N`, with which a container runtime mounts itself.

use std::{
    ffi::CString,
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::Command,
};

use floe_testkit::skip::{self, Need};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

use crate::support::program::{Place, Serving, demo, floe, run, told, until};

/// A descriptor of the device that programs inherit, and the command that serves it.
fn device() -> (OwnedFd, Command) {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the device");
    fcntl_setfd(&device, FdFlags::empty()).expect("it is inherited");
    let mut command = floe();
    command.arg("mount").arg(demo()).arg(format!("/dev/fd/{}", device.as_raw_fd()));
    (device.into(), command)
}

fn mount_as_a_runtime(device: &OwnedFd, directory: &Path) {
    let data = format!("fd={},rootmode=40755,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let data = CString::new(data).expect("text");
    mount("runtime", directory, "fuse.runtime", MountFlags::RDONLY, data.as_c_str()).expect("a mount");
}

#[test]
fn a_mounted_descriptor_is_served() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let place = Place::new();
    let (device, command) = device();
    mount_as_a_runtime(&device, &place.path);
    let mut serving = Serving::start(command, place);
    let expected = format!("{} (EROFS) is mounted on /dev/fd/{}\n", demo().display(), device.as_raw_fd());
    assert_eq!(serving.ready, expected);
    drop(device);
    assert!(!fs::read(serving.place.file("README.txt")).expect("data").is_empty());
    // A program that another test is starting may still hold copies of this process's descriptors.
    until("it is unmounted", || unmount(&serving.place.path, UnmountFlags::empty()).is_ok());
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn a_descriptor_that_is_not_mounted_is_refused() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for arguments in [&[][..], &["--sandbox=off"], &["--daemon"]] {
        let (device, mut command) = device();
        let (code, errors) = told(&run(command.args(arguments)));
        let expected =
            "floe: the descriptor of /dev/fuse is not mounted: mount it with fd=N before the program starts\n";
        assert_eq!((code, errors.as_str()), (Some(1), expected), "{arguments:?}");
        drop(device);
    }
}
