//! Records a launch of the image that is converted.

use std::{
    ffi::OsString,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use floe::ByteRange;
use floe_convert::{Settings, SourceImage};
use floe_image::ShownName;
use floe_mkfs::Profile;

use super::{error_of, root};
use crate::{
    command::{
        push::launch::layer_launch_ranges,
        record::{counts, launch::Launch},
    },
    fail::Fail,
};

/// Reads the profile in a file.
///
/// # Errors
/// It cannot be read, or is none.
pub(super) fn read_profile(path: &Path) -> Result<Profile, Fail> {
    let failed = |error: &dyn std::fmt::Display| Fail::failed(format!("{}: {error}", path.shown()));
    let file = fs::File::open(path).map_err(|error| failed(&error))?;
    Profile::read(file).map_err(|error| failed(&error))
}

/// The parts of the layer in a file that a launch reads, whose profile is in another file.
///
/// # Errors
/// One of them cannot be read; the error is a message.
pub(super) fn parts(layer: &Path, profile: &Path) -> Result<Vec<Vec<ByteRange>>, String> {
    let len = fs::metadata(layer).map_err(|error| error.to_string())?.len();
    layer_launch_ranges(layer, profile, len).map_err(|fail| fail.to_string())
}

/// Merges the layers of the image for this machine, runs a command in it, or the program that it names, and returns what that used. A
/// signal ends the command; the profile has what was used until then.
///
/// # Errors
/// The image cannot be merged or mounted, or the command fails.
pub(super) fn record(
    image: &SourceImage,
    command: &[OsString],
    settings: &Settings,
    cancel: &AtomicBool,
) -> Result<Profile, Fail> {
    let failed = |error: std::io::Error| Fail::failed(format!("the temporary directory: {error}"));
    let scene = tempfile::Builder::new().prefix("floe-convert-").tempdir().map_err(failed)?;
    let path = scene.path().join(root::IMAGE);
    let start = image.merge(&path, settings, cancel).map_err(|error| error_of(error, cancel))?;
    let own: Vec<OsString> = start.entrypoint.iter().chain(&start.arguments).map(Into::into).collect();
    let words = if command.is_empty() { &own[..] } else { command };
    if words.is_empty() {
        return Err(Fail::usage("the image names no program: name one behind --"));
    }
    let command = root::command(scene.path(), &start, words).map_err(failed)?;
    let status = Launch::prepare()?.of_launches(3).run(command)?;
    if !status.success() && !cancel.load(Relaxed) {
        let program = words.first().map(|word| word.shown().to_string()).unwrap_or_default();
        return Err(Fail::failed(format!("{program} failed in the image ({status}), so its launch is not recorded")));
    }
    let profile = read_profile(&scene.path().join(root::PROFILE))?;
    say!("floe: the launch used {}", counts(&profile));
    Ok(profile)
}
