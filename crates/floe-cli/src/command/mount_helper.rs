//! `mount.floe` and `mount.fuse.floe`: the helpers that mount(8) calls for `mount -t floe IMAGE DIR` and `mount -t fuse.floe`.

use std::ffi::OsString;

use clap::{Command, CommandFactory, Parser};
use floe::Offset;
use floe_sandbox::Mode;

use super::mount::{fulfil, mount_through_service};
use crate::{
    fail::{Exit, Fail},
    fake,
    output::remark,
    remote,
};
use floe_image::{ShownName, json_name};
use floe_mount::{
    Request,
    control::{Answer, Client, Question},
    daemon,
    options::{self, Settings, Strictness},
};

/// The option for the offset of an image, under this name and those of FUSE programs.
pub(crate) const OFFSET_OPTION: &str = "-o offset=";

/// The names of the helper.
pub(crate) const NAMES: [&str; 2] = ["mount.floe", "mount.fuse.floe"];

const HELP: &str = "\
Examples:
  mount -t floe /srv/app.erofs /opt/app
  mount -t floe -o cache=256M,nofail /srv/app.erofs /opt/app

In /etc/fstab:
  /srv/app.erofs  /opt/app  floe  defaults,nofail  0  0

In a mount unit of systemd, /etc/systemd/system/opt-app.mount:
  [Mount]
  What=/srv/app.erofs
  Where=/opt/app
  Type=floe

Exit codes: those of mount
  0   the mount works
  1   wrong usage
  32  it could not be mounted";

/// Mount an image for mount(8), /etc/fstab and mount units of systemd
///
/// The helper returns when the mount works. A process in the background serves it until it is unmounted. If the image is
/// mounted on the directory already, the helper does nothing: so `mount -a` can be run again.
#[derive(Parser)]
#[command(name = NAMES[0], version, override_usage = "mount.floe IMAGE DIR [-fnsv] [-o OPTIONS]", after_help = format!("{}\n{HELP}", options::help()))]
struct Arguments {
    /// The image
    image: OsString,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    directory: OsString,
    /// Options: key=value,… (see floe mount -o help)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore unknown options
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything except mounting
    #[arg(short = 'f')]
    fake: bool,
    /// Has no effect
    #[arg(short = 'n')]
    no_table: bool,
    /// Say that the mount works
    #[arg(short = 'v')]
    verbose: bool,
    /// The file system type; has no effect
    #[arg(short = 't', value_name = "TYPE")]
    file_system: Option<String>,
    /// A mount namespace; has no effect
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// The definition of the command line.
pub(crate) fn command_line() -> Command {
    Arguments::command()
}

/// Runs the helper, which returns when the mount works.
///
/// # Errors
/// The image cannot be mounted.
pub(crate) fn run(arguments: &[OsString], sandbox: Mode) -> Result<u8, Fail> {
    fake::leave();
    let arguments = Arguments::try_parse_from(arguments).unwrap_or_else(|error| {
        if error.use_stderr() {
            say!("{}", error.render().to_string().trim_end());
        } else {
            let _ = error.print();
        }
        // To mount(8), exit code 1 means wrong usage.
        std::process::exit(if error.use_stderr() { 1 } else { 0 })
    });
    let strictness = if arguments.sloppy { Strictness::Sloppy } else { Strictness::MountHelper };
    let mut settings = Settings { sandbox, ..Settings::default() };
    for list in &arguments.options {
        settings.take_list(list, strictness).map_err(|failure| Fail::from(failure).with_exit(Exit::Failed))?;
    }
    if arguments.fake {
        return Ok(Exit::Done.code());
    }
    let request = Request { in_background: true, ..Request::new(arguments.image, arguments.directory, settings) };
    // The background process of an upgrade takes the mount over.
    if !daemon::is_background() && is_mounted(&request) {
        if arguments.verbose {
            let image = remote::without_credentials(&request.image);
            remark(format_args!("{} is already mounted on {}\n", image.shown(), request.directory.shown()));
        }
        return Ok(Exit::Done.code());
    }
    let mounted = match mount_through_service(&request, &arguments.options, arguments.verbose) {
        Ok(Some(code)) => Ok(code),
        Ok(None) => fulfil(request, arguments.verbose),
        Err(fail) => Err(fail),
    };
    match mounted {
        Ok(0) => Ok(Exit::Done.code()),
        Ok(_) => Ok(Exit::MountHelper.code()),
        Err(fail) => Err(fail.with_offset_option(OFFSET_OPTION).with_exit(Exit::MountHelper)),
    }
}

/// Whether Floe serves the image on the directory already. `mount -a` skips mounted images, but recognises them
/// by their source in the mount table, which differs with the kernel's EROFS in front, with `fsname=`, and for a URL with
/// credentials.
fn is_mounted(request: &Request) -> bool {
    let answer = Client::find(&request.directory).and_then(|mounted| mounted.ask(&Question::Status));
    let Ok(Answer::Status(report)) = answer else { return false };
    let is_at = match request.settings.open.offset {
        Offset::None => report.image.offset_bytes == 0,
        Offset::At(at) => report.image.offset_bytes == at,
        Offset::Auto => true,
    };
    is_at && report.image.path == json_name(request.shown_image().as_os_str().as_encoded_bytes())
}
