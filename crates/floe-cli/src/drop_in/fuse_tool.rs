//! `erofsfuse`, `squashfuse` and `squashfuse_ll`: their options.

use std::{ffi::OsString, num::NonZero, path::PathBuf, time::Duration};

use floe_keeper::Access;
use floe_sandbox::Mode;

use super::erofs_tool::number;
use crate::{
    command::{mount::fulfil, mount_helper::OFFSET_OPTION},
    fail::{Exit, Fail},
    fake,
    output::{Output, remark},
};
use floe_mount::{
    Front, Request, notify,
    options::{Settings, Strictness},
};

/// A program of libfuse.
struct FuseTool {
    name: &'static str,
    /// The options that are not of libfuse.
    usage: &'static str,
    /// The exit code of the original for wrong usage, and for requests of help.
    usage_exit: u8,
    /// Whether the options of libfuse are listed on standard output, as libfuse does.
    lists_to_output: bool,
}

const EROFSFUSE: FuseTool = FuseTool {
    name: "erofsfuse",
    usage: "\
Usage: erofsfuse [options] IMAGE MOUNTPOINT
Mount an EROFS image. This is floe under the name of erofsfuse; see floe mount --help.

Options:
    --offset=#             the image begins at byte # of the file
    --device=#             an extra device, in the order of the device table
    --dbglevel=#           has no effect
    -o subdir=PATH         mount only this directory of the image
",
    usage_exit: 1,
    lists_to_output: true,
};

const SQUASHFUSE: FuseTool = FuseTool {
    name: "squashfuse",
    usage: "\
Usage: squashfuse [options] ARCHIVE MOUNTPOINT
Mount a SquashFS image. This is floe under the name of squashfuse; see floe mount --help.

Options:
    -o offset=N            the image begins at byte N of the file
    -o subdir=PATH         mount only this directory of the image
    -o notify_pipe=PATH    write 's' or 'f' to this pipe when the mount works or has failed
    -o timeout=N           unmount after N seconds without use
    -o uid=N               the owner of all files
    -o gid=N               the group of all files
",
    usage_exit: 254,
    lists_to_output: false,
};

const SQUASHFUSE_LL: FuseTool = FuseTool {
    name: "squashfuse_ll",
    usage: "\
Usage: squashfuse_ll [options] ARCHIVE MOUNTPOINT
Mount a SquashFS image. This is floe under the name of squashfuse_ll; see floe mount --help.

Options:
    -o offset=N            the image begins at byte N of the file
    -o subdir=PATH         mount only this directory of the image
    -o notify_pipe=PATH    write 's' or 'f' to this pipe when the mount works or has failed
    -o timeout=N           unmount after N seconds without use
    -o uid=N               the owner of all files
    -o gid=N               the group of all files
",
    usage_exit: 2,
    lists_to_output: true,
};

const FUSE_OPTIONS: &str = "    -h   --help            print this help
    -V   --version         print the version
    -d   -o debug          stay in the foreground
    -f                     stay in the foreground
    -s                     one thread
    -o clone_fd            an own descriptor of the device for each thread
    -o max_idle_threads    has no effect
    -o max_threads         has no effect
    -o allow_other         admit other users
    -o allow_root          admit root
    -o opt,…               options of floe mount, and of FUSE; front=kernel admits all users
    --sandbox=off          do not confine the process that reads the image
";

/// The options of `erofsfuse`.
pub(super) fn erofsfuse_help() -> String {
    EROFSFUSE.help()
}

/// The options of `squashfuse`.
pub(super) fn squashfuse_help() -> String {
    SQUASHFUSE.help()
}

/// The options of `squashfuse_ll`.
pub(super) fn squashfuse_ll_help() -> String {
    SQUASHFUSE_LL.help()
}

/// Runs `erofsfuse`.
///
/// # Errors
/// The image cannot be mounted.
pub(super) fn run_erofsfuse(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    EROFSFUSE.run(arguments, sandbox)
}

/// Runs `squashfuse`.
///
/// # Errors
/// The image cannot be mounted.
pub(super) fn run_squashfuse(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    SQUASHFUSE.run(arguments, sandbox)
}

/// Runs `squashfuse_ll`.
///
/// # Errors
/// The image cannot be mounted.
pub(super) fn run_squashfuse_ll(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    SQUASHFUSE_LL.run(arguments, sandbox)
}

/// Why a command line is not carried out.
enum Refusal {
    /// It asks for the version.
    Version,
    /// It is wrong, or asks for help.
    Usage(Option<Fail>),
    /// An option of `-o` is unknown or has a wrong value.
    Option(Fail),
}

impl From<Fail> for Refusal {
    fn from(fail: Fail) -> Self {
        Self::Option(fail)
    }
}

impl FuseTool {
    fn help(&self) -> String {
        format!("{}\nFUSE options:\n{FUSE_OPTIONS}", self.usage)
    }

    /// Runs the program. For wrong usage and requests of help, the exit code is that of the original.
    fn run(&self, arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
        fake::leave();
        let request = match self.request(arguments, sandbox) {
            Ok(request) => request,
            Err(Refusal::Version) => {
                return Output::print(format_args!("{} (floe) {}\n", self.name, env!("CARGO_PKG_VERSION")));
            }
            Err(Refusal::Usage(fail)) => {
                if let Some(fail) = fail {
                    say!("floe: {fail}");
                }
                self.print_usage();
                return Ok(self.usage_exit);
            }
            Err(Refusal::Option(fail)) => return Err(fail.with_exit(Exit::Failed)),
        };
        let pipe = request.notify_pipe.clone();
        // Callers show their users what the program prints.
        let result = fulfil(request, false);
        if let Some(pipe) = pipe
            && !matches!(result, Ok(0))
        {
            notify(&pipe, false);
        }
        result.map_err(|fail| fail.with_offset_option(OFFSET_OPTION).with_exit(Exit::Failed))
    }

    /// Prints the usage. Callers look for options in it.
    fn print_usage(&self) {
        say!("{}\nFUSE options:", self.usage);
        if self.lists_to_output {
            remark(FUSE_OPTIONS);
        } else {
            say!("{}", FUSE_OPTIONS.trim_end());
        }
    }

    /// What the command line asks for.
    fn request(&self, arguments: &[OsString], sandbox: Mode) -> Result<Request, Refusal> {
        let wrong = |message: String| Refusal::Usage(Some(Fail::usage(message)));
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
                "-h" | "--help" => return Err(Refusal::Usage(None)),
                "-V" | "--version" => return Err(Refusal::Version),
                "-f" | "-d" => fuse.in_background = false,
                "-s" => settings.mount.threads = NonZero::<usize>::MIN,
                "-o" => {
                    let list = rest.next().and_then(|list| list.to_str());
                    let list = list.ok_or_else(|| wrong("-o needs options: -o option,…".to_owned()))?;
                    fuse.take_list(&mut settings, list)?;
                }
                _ if text.starts_with("-o") => fuse.take_list(&mut settings, &text[2..])?,
                _ => {
                    let unknown = || wrong(format!("no such option: {text}"));
                    let (key, value) =
                        text.strip_prefix("--").and_then(|long| long.split_once('=')).ok_or_else(unknown)?;
                    match key {
                        "offset" => {
                            let at = number(value.as_ref()).ok_or_else(|| wrong(format!("invalid offset {value}")))?;
                            settings.open.offset = floe::Offset::At(at);
                        }
                        "device" => settings.open.devices.push(value.into()),
                        "dbglevel" => {}
                        _ => return Err(unknown()),
                    }
                }
            }
        }
        let [image, directory] = match <[PathBuf; 2]>::try_from(operands) {
            Ok(operands) => operands,
            Err(operands) if operands.is_empty() && arguments.len() < 2 => return Err(Refusal::Usage(None)),
            Err(_) => return Err(wrong("give an image and a directory".to_owned())),
        };
        let FuseOptions { in_background, idle, notify_pipe, subtype } = fuse;
        // libfuse admits only the user who mounts; the kernel's EROFS has no such restriction.
        let access = if settings.front == Front::Kernel { Access::All } else { Access::Owner };
        settings.mount.kernel.access.get_or_insert(access);
        // A mount with an explicit source name has no subtype, unless one is given too.
        let is_named = settings.source.is_some();
        let own_subtype = || if is_named { String::new() } else { self.name.to_owned() };
        settings.mount.kernel.subtype = subtype.unwrap_or_else(own_subtype);
        settings.source.get_or_insert_with(|| settings.mount.kernel.subtype.clone());
        Ok(Request { in_background, idle, notify_pipe, ..Request::new(image, directory, settings) })
    }
}

/// The default mount options of these programs. libfuse ignores set-user-id bits and device files, and leaves
/// permission checks to the program, which makes none.
fn as_libfuse() -> Settings {
    let mut settings = Settings { front: Front::Fuse, ..Settings::default() };
    settings.mount.kernel.checks_permissions = false;
    settings.mount.kernel.acl = Some(false);
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
        Ok(settings.take_list(&kept.join(","), Strictness::MountHelper)?)
    }
}
