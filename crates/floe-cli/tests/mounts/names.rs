//! Images and directories with unusual names, through the whole life of a mount: processes tell each other these names.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use floe_testkit::{
    check_rows,
    skip::{self, Need},
};

use crate::support::{
    front,
    program::{demo, floe, run, told, until, wait_until_unused},
};

/// The names of the image and of the directory.
const NAMES: [&[u8]; 14] = [
    b"plain",
    b"line\nbreak",
    b"\nfirst",
    b"last\n",
    b"a\n\nb\r\nc",
    b"floe: x\nfloe: y",
    b"tab\tand\\back\\040slash",
    b"not \xff UTF-8 \xc3",
    b"-o",
    b"--daemon",
    b"two  spaces ",
    b"'quotes\" `and` $(more)",
    b"comma,suid,hash#colon:equals=",
    b"escape \x1b[31m\x07 and \x7f",
];

/// Runs a command, and says so if it fails. Returns its standard output.
fn succeed(told_of: &mut Vec<String>, what: &str, command: &mut std::process::Command) -> Vec<u8> {
    let output = run(command);
    let (code, errors) = told(&output);
    if (code, errors.as_str()) != (Some(0), "") {
        told_of.push(format!("{what} ends with {code:?}: {errors:?}"));
    }
    output.stdout
}

/// Mounts, asks, changes, replaces and unmounts one mount. The names are relative to `folder`, or absolute.
fn live(folder: &Path, image: &Path, directory: &Path, options: &str) -> Vec<String> {
    let mut told_of = Vec::new();
    let floe_in = |words: &[&str]| {
        let mut command = floe();
        command.current_dir(folder).args(words);
        command
    };
    let at = folder.join(directory);
    let said = succeed(&mut told_of, "mount", floe_in(&["mount", "-d", "-o", options, "--"]).arg(image).arg(directory));
    if !String::from_utf8_lossy(&said).contains(" is mounted on ") {
        told_of.push(format!("mount says {:?}", String::from_utf8_lossy(&said)));
    }
    if !fs::read(at.join("README.txt")).is_ok_and(|bytes| !bytes.is_empty()) {
        told_of.push("it is not served".to_owned());
    }
    for words in [&["status"][..], &["status", "--json"], &["tune", "cache=1M"]] {
        // An option may not follow the directory.
        let (first, rest) = (words[0], &words[1..]);
        let mut command = floe_in(&[first]);
        match first {
            "tune" => command.arg("--").arg(directory).args(rest),
            _ => command.args(rest).arg("--").arg(directory),
        };
        succeed(&mut told_of, &words.join(" "), &mut command);
    }
    let metrics = succeed(&mut told_of, "metrics", floe_in(&["status", "--prometheus", "--"]).arg(directory));
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    let is_metric = |line: &str| line.starts_with("floe_") || line.starts_with("# ");
    told_of.extend(
        metrics
            .split('\n')
            .filter(|line| !line.is_empty() && !is_metric(line))
            .map(|line| format!("{line:?} is no metric")),
    );
    if !metrics.contains("floe_") {
        told_of.push("there are no metrics".to_owned());
    }
    if options.starts_with("front=fuse") {
        succeed(&mut told_of, "upgrade", floe_in(&["upgrade", "--"]).arg(directory));
        if !fs::read(at.join("guide/reading.txt")).is_ok_and(|bytes| !bytes.is_empty()) {
            told_of.push("it is not served after the upgrade".to_owned());
        }
    }
    wait_until_unused(&at);
    succeed(&mut told_of, "umount", floe_in(&["umount", "--"]).arg(directory));
    if at.join("README.txt").exists() {
        told_of.push("it is still mounted".to_owned());
        until("it is unmounted", || rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).is_err());
    }
    told_of
}

#[test]
fn mounts_with_unusual_names_live_as_others() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    // A mount over io_uring, where root has enabled it, cannot be handed over.
    let mut options = vec!["front=fuse,transport=dev"];
    if front::ready() {
        options.push("front=kernel");
    }
    let rows: Vec<_> = NAMES.iter().flat_map(|name| options.iter().map(move |options| (*name, *options))).collect();
    check_rows(
        &rows,
        |(name, options)| format!("{} {options}", name.escape_ascii()),
        |(name, options)| {
            let folder = tempfile::Builder::new().prefix("floe-names-").tempdir().expect("a folder");
            let folder = folder.path().canonicalize().expect("it is there");
            let name = OsStr::from_bytes(name);
            // Other tests read the mount table as text.
            let mountpoint = if name.to_str().is_some() { name } else { OsStr::new("directory") };
            let [image, directory] = [("images", name), ("mounts", mountpoint)].map(|(parent, name)| {
                fs::create_dir(folder.join(parent)).expect("ours");
                PathBuf::from(parent).join(name)
            });
            fs::copy(demo(), folder.join(&image)).expect("a copy");
            fs::create_dir(folder.join(&directory)).expect("ours");
            let mut told_of = live(&folder, &image, &directory, options);
            // The bare name, in its folder.
            let own = PathBuf::from(mountpoint);
            fs::create_dir(folder.join(&own)).expect("ours");
            told_of.extend(live(&folder, &folder.join(&image), &own, options));
            told_of
        },
    );
}
