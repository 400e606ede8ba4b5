//! `erofsfuse`, `squashfuse` and `squashfuse_ll`: their options.

use std::{ffi::OsString, num::NonZero, path::PathBuf, time::Duration};

use floe_fuse::Access;
use floe_sandbox::Mode;

use super::erofs_tool::number;
use crate::{
    command::{
        mount::{Order, fulfil, notify},
        mount_helper::OFFSET_OPTION,
    },
    exit::Exit,
    fail::Fail,
    fake,
    front::Front,
    mount_options::{Settings, Strictness},
    output::Output,
};

const EROFSFUSE_HELP: &str = "\
usage: erofsfuse [options] IMAGE MOUNTPOINT
Mount an EROFS image. This is floe under the name of erofsfuse; see floe mount --help.

    --offset=#     offset of the image in bytes
    --device=#     an extra device, in the order of the device table
    --dbglevel=#   has no effect
";

const SQUASHFUSE_HELP: &str = "\
usage: NAME [options] ARCHIVE MOUNTPOINT
Mount a SquashFS image. This is floe under the name of NAME; see floe mount --help.

    -o offset=N            offset of the image in bytes
    -o uid=N, -o gid=N     the owner and the group of all files
    -o timeout=N           unmount after N seconds without use
    -o notify_pipe=PATH    write 's' or 'f' to this pipe when the mount works or has failed
";

const FUSE_HELP: &str = "    -f, -d         stay in the foreground
    -s             one thread
    --no-sandbox   do not confine the process that reads the image
    -o opt,…       options of floe mount, and of FUSE; front=kernel admits all users
    -h, --help, -V, --version
";

/// The output of `erofsfuse --help`.
pub(super) fn erofsfuse_help() -> String {
    format!("{EROFSFUSE_HELP}{FUSE_HELP}")
}

/// The output of `squashfuse --help` or `squashfuse_ll --help`.
pub(super) fn squashfuse_help(name: &str) -> String {
    format!("{}{FUSE_HELP}", SQUASHFUSE_HELP.replace("NAME", name))
}

/// Runs `erofsfuse`.
///
/// # Errors
/// The image cannot be mounted, or the arguments are wrong; FUSE programs exit with 1 in both cases.
pub(super) fn run_erofsfuse(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    run("erofsfuse", |_| erofsfuse_help(), arguments, sandbox).map_err(|fail| fail.with_exit(Exit::Failed))
}

/// Runs `squashfuse`.
///
/// # Errors
/// The image cannot be mounted, or the arguments are wrong; FUSE programs exit with 1 in both cases.
pub(super) fn run_squashfuse(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    run("squashfuse", squashfuse_help, arguments, sandbox).map_err(|fail| fail.with_exit(Exit::Failed))
}

/// Runs `squashfuse_ll`.
///
/// # Errors
/// The image cannot be mounted, or the arguments are wrong; FUSE programs exit with 1 in both cases.
pub(super) fn run_squashfuse_ll(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    run("squashfuse_ll", squashfuse_help, arguments, sandbox).map_err(|fail| fail.with_exit(Exit::Failed))
}

fn run(name: &str, help: fn(&str) -> String, arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    fake::leave();
    let (mut settings, mut operands) = (Settings { sandbox, ..as_libfuse() }, Vec::new());
    let mut fuse = FuseOptions { in_background: true, ..FuseOptions::default() };
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        if argument == "--" {
            operands.extend(rest.map(PathBuf::from));
            break;
        }
        let Some(text) = argument.to_str().filter(|text| text.len() > 1 && text.starts_with('-')) else {
            operands.push(PathBuf::from(argument));
            continue;
        };
        match text {
            "-h" | "--help" => {
                return Output::print(help(name));
            }
            "-V" | "--version" => {
                return Output::print(format_args!("{name} (floe) {}\n", env!("CARGO_PKG_VERSION")));
            }
            "-f" | "-d" => fuse.in_background = false,
            "-s" => settings.mount.threads = NonZero::<usize>::MIN,
            "-o" => {
                let list = rest.next().and_then(|list| list.to_str());
                let list = list.ok_or_else(|| Fail::usage("-o needs options: -o option,…"))?;
                fuse.take_list(&mut settings, list)?;
            }
            _ if text.starts_with("-o") => {
                fuse.take_list(&mut settings, &text[2..])?;
            }
            _ => {
                let unknown = || Fail::usage(format!("no such option: {text} (see {name} --help)"));
                let (key, value) = text.strip_prefix("--").and_then(|long| long.split_once('=')).ok_or_else(unknown)?;
                match key {
                    "offset" => {
                        let at =
                            number(value.as_ref()).ok_or_else(|| Fail::usage(format!("invalid offset {value}")))?;
                        settings.open.offset = floe::Offset::At(at);
                    }
                    "device" => settings.open.devices.push(value.into()),
                    "dbglevel" => {}
                    _ => return Err(unknown()),
                }
            }
        }
    }
    let Ok([image, directory]) = <[PathBuf; 2]>::try_from(operands) else {
        return Err(Fail::usage(format!("give an image and a directory: {name} [options] IMAGE MOUNTPOINT")));
    };
    let FuseOptions { in_background, idle, notify_pipe, subtype } = fuse;
    // libfuse admits only the user who mounts; the kernel's EROFS has no such restriction.
    let access = if settings.front == Front::Kernel { Access::All } else { Access::Owner };
    settings.mount.access.get_or_insert(access);
    // A mount with an explicit source name has no subtype, unless one is given too.
    let is_named = settings.source.is_some();
    settings.mount.subtype = subtype.unwrap_or_else(|| if is_named { String::new() } else { name.to_owned() });
    settings.source.get_or_insert_with(|| settings.mount.subtype.clone());
    let pipe = notify_pipe.clone();
    let result = fulfil(Order { in_background, idle, notify_pipe, ..Order::new(image, directory, settings) });
    if let Some(pipe) = pipe
        && !matches!(result, Ok(0))
    {
        notify(&pipe, false);
    }
    result.map_err(|fail| fail.with_offset_option(OFFSET_OPTION))
}

/// The default mount options of these programs. libfuse ignores set-user-id bits and device files, and leaves
/// permission checks to the program, which makes none.
fn as_libfuse() -> Settings {
    let mut settings = Settings { front: Front::Fuse, ..Settings::default() };
    settings.mount.checks_permissions = false;
    settings.mount.acl = Some(false);
    settings
}

/// Options that only these programs have.
#[derive(Default)]
struct FuseOptions {
    in_background: bool,
    idle: Option<Duration>,
    notify_pipe: Option<PathBuf>,
    /// The type that the mount table shows after `fuse.`.
    subtype: Option<String>,
}

impl FuseOptions {
    /// Parses FUSE options. Those that are not specific to these programs go to `settings`.
    fn take_list(&mut self, settings: &mut Settings, list: &str) -> Result<(), Fail> {
        let mut kept = Vec::new();
        for option in list.split(',') {
            match option.split_once('=') {
                Some(("notify_pipe", pipe)) => self.notify_pipe = Some(pipe.into()),
                Some(("timeout", seconds)) => {
                    let seconds: u64 = seconds
                        .parse()
                        .map_err(|_| Fail::usage(format!("-o timeout: '{seconds}' is not a number of seconds")))?;
                    self.idle = Some(Duration::from_secs(seconds)).filter(|idle| !idle.is_zero());
                }
                Some(("subtype", subtype)) => self.subtype = Some(subtype.to_owned()),
                Some(("max_idle_threads" | "max_threads", _)) => {}
                None if option == "debug" => self.in_background = false,
                _ => kept.push(option),
            }
        }
        settings.take_list(&kept.join(","), Strictness::MountHelper)
    }
}
