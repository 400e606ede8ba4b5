//! The options of mounts through the service.

use std::path::{Path, PathBuf};

use floe::OpenOptions;
use floe_fuse::MountOptions;
use floe_image::ShownName;
use floe_ipc::protocol::MountRequest;
use floe_sandbox::Mode;

use super::record::path;

use crate::{
    failure::Failure,
    front::Front,
    launch::ProfileChoice,
    options::{Settings, Strictness},
    remote,
};

/// The settings of a mount through the service, with the devices that its client has opened.
///
/// # Errors
/// An option is unknown or has a wrong value, or needs a mount without the service.
fn settings_of_mount(options: &str, image: &Path, devices: Vec<PathBuf>) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    settings.take_list(options, Strictness::MountHelper)?;
    settings.open.devices = devices;
    check_mount(image, &settings)?;
    if settings.subdirectory.is_some() {
        // A profile is of the whole image.
        settings.profile = ProfileChoice::Off;
    }
    let source = || image.to_string_lossy().into_owned();
    settings.mount.kernel.source = settings.source.clone().unwrap_or_else(source);
    settings.mount.deadline = remote::raised_deadline(image, &settings);
    Ok(settings)
}

/// As [`settings_of_mount`], for a request of a client.
///
/// # Errors
/// As there.
pub(super) fn settings_of_request(request: &MountRequest) -> Result<Settings, Failure> {
    let devices = request.devices.iter().map(|device| path(device)).collect();
    settings_of_mount(&request.options, &path(&request.image), devices)
}

/// Whether the mount of a request is over io_uring.
pub(super) fn has_rings(request: &MountRequest) -> bool {
    settings_of_request(request).is_ok_and(|settings| settings.requires_rings())
}

/// The settings of the service itself: those that all its mounts share.
///
/// # Errors
/// An option is unknown or has a wrong value, or is one of mounts.
pub fn settings_of_service(options: &str) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    settings.take_list(options, Strictness::User)?;
    if settings.open.engine.spill_file_bytes > 0 {
        return Err(Failure::usage("spill-file= is not available in the service: omit it"));
    }
    let (mut rest, default) = (settings.clone(), Settings::default());
    (rest.open.engine, rest.sandbox) = (default.open.engine.clone(), default.sandbox);
    rest.open.remote.cache_directory = None;
    (rest.mount.threads, rest.mount.busy_polling) = (default.mount.threads, default.mount.busy_polling);
    if format!("{rest:?}") != format!("{default:?}") {
        return Err(Failure::usage(
            "floe serve takes the options that all mounts share (memory, threads, sandbox=, cache-directory=): give the others to floe mount",
        ));
    }
    Ok(settings)
}

/// Checks that a mount with these settings can be one of the service.
///
/// # Errors
/// It needs a process of its own; the message says why.
pub fn check_mount(image: &Path, settings: &Settings) -> Result<(), Failure> {
    let refused = |what: &str| {
        Err(Failure::usage(format!(
            "{what} is not available through the service: mount without it, with -o service=off"
        )))
    };
    let Settings { open, mount, .. } = settings;
    if remote::is_url(image) {
        if remote::has_secrets(image) {
            return refused("a URL with a password or a query");
        }
        if !open.devices.is_empty() {
            return refused("a remote image with extra devices");
        }
        if open.remote.remote.mirrors.iter().any(|mirror| remote::has_secrets(Path::new(mirror))) {
            return refused("a mirror with a password or a query");
        }
    }
    if open.devices.iter().any(|device| remote::is_url(device)) {
        return refused("a remote device");
    }
    let default = MountOptions::default();
    let has_own_threads = (mount.threads, mount.busy_polling) != (default.threads, default.busy_polling);
    if open.engine != OpenOptions::default().engine || has_own_threads {
        return Err(Failure::usage(
            "options of memory and threads are the same for all mounts of the service: give them to floe serve, or mount \
             with -o service=off",
        ));
    }
    if settings.sandbox != Mode::default() {
        return Err(Failure::usage(
            "sandbox= is the same for all mounts of the service: give it to floe serve, or mount with -o service=off",
        ));
    }
    if open.device_directory.is_some() {
        return Err(Failure::usage(
            "device-directory= is not available through the service: name the files with --device",
        ));
    }
    if image.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(Failure::usage(format!("{}: a path has no zero bytes", image.shown())));
    }
    if settings.profile == ProfileChoice::Learn {
        return refused("profile=learn");
    }
    settings.check_profile()?;
    for (is_set, what) in [
        (settings.decode_marks.is_some(), "decode-marks="),
        (mount.kernel.auto_unmount, "auto-unmount"),
        // The requests that a descriptor of a dead process has received would be lost.
        (mount.clone_fd, "clone-fd"),
        (mount.user_overlay && settings.front == Front::Kernel, "overlay-xattrs=user with the kernel's EROFS in front"),
    ] {
        if is_set {
            return refused(what);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_need_a_process_of_their_own_are_refused() {
        for (image, options, is_permitted) in [
            ("/a", "", true),
            ("/a", "ro,nodev,suid=on,uid=7,offset=4096,subdir=usr,front=fuse,profile=off,read-ahead=1M", true),
            ("/a", "front=auto,transport=auto,access=private,fsname=x,prefetch=none", true),
            ("/a", "front=kernel", true),
            ("/a", "overlay-xattrs=user", true),
            ("/a", "overlay-xattrs=user,front=kernel", false),
            ("/a", "transport=uring", true),
            ("/a", "transport=uring,auto-unmount", false),
            ("/a", "profile=learn", false),
            ("/a", "profile=/x", true),
            ("/a", "profile=/x,subdir=usr", false),
            ("/a", "auto-unmount", false),
            ("/a", "clone-fd", false),
            ("/a", "decode-marks=/x", false),
            ("/a", "device-directory=/x", false),
            ("/a", "cache=1M", false),
            ("/a", "busy-polling=off", false),
            ("/a", "sandbox=off", false),
            ("/a", "no-such-option", false),
            ("https://example.org/a", "", true),
            ("oci://example.org/a@sha256:1", "outage=eio,cache-size=1G,cache-directory=/x,plain-http", true),
            ("https://a:b@example.org/a", "", false),
            ("https://example.org/a?signature=b", "", false),
        ] {
            let devices = if remote::is_url(Path::new(image)) { Vec::new() } else { vec![PathBuf::from("/b")] };
            let settings = settings_of_mount(options, Path::new(image), devices.clone());
            assert_eq!(settings.is_ok(), is_permitted, "{image} {options}");
            if let Ok(settings) = settings {
                assert_eq!(settings.open.devices, devices);
            }
        }
    }

    #[test]
    fn the_service_takes_what_its_mounts_share() {
        for (options, is_permitted) in [
            ("", true),
            ("cache=1M,reserved-pages=64,priority=normal,sandbox=require,busy-polling=off", true),
            ("cache-directory=/var/cache/other", true),
            ("spill-file=1G", false),
            ("uid=7", false),
            ("front=fuse", false),
            ("no-such-option", false),
        ] {
            assert_eq!(settings_of_service(options).is_ok(), is_permitted, "{options}");
        }
    }
}
