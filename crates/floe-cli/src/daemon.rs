//! Mounts that are served in the background.
//!
//! Nothing is forked: the program starts itself anew, in a session of its own, and waits for word on a pipe. So no thread
//! is lost, and whoever called gets the error, or its shell back once the mount works.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::{fail::Fail, output::remark};

/// Tells the program that it is the one in the background.
const VARIABLE: &str = "FLOE_IN_BACKGROUND";

/// Our part in it.
pub(crate) enum Role {
    /// To wait for the one in the background; it has ended, with this exit code.
    Foreground(u8),
    /// To serve, and to say when that works.
    Background(Report),
}

/// Where to say that the mount works.
pub(crate) struct Report(());

/// Starts the background, or takes part in it.
///
/// # Errors
/// The program cannot be started anew.
pub(crate) fn start() -> Result<Role, Fail> {
    if env::var_os(VARIABLE).is_some() {
        // A child of a shell that is not the leader of its group always may.
        let _ = rustix::process::setsid();
        return Ok(Role::Background(Report(())));
    }
    let mut arguments: Vec<OsString> = env::args_os().collect();
    let name = if arguments.is_empty() { "floe".into() } else { arguments.remove(0) };
    let failed = |error: io::Error| Fail::failed(format!("cannot start in the background: {error}"));
    let mut child = Command::new("/proc/self/exe")
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line.is_empty() {
        // It said why on our stderr.
        let status = child.wait().map_err(failed)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return match code {
            Some(code) if code != 0 => Ok(Role::Foreground(code)),
            _ => Err(Fail::failed(format!("the one in the background ended early: {status}"))),
        };
    }
    remark(line);
    Ok(Role::Foreground(0))
}

impl Report {
    /// Says that the mount works, and lets go of the terminal and of the working directory.
    ///
    /// # Errors
    /// Nobody listens any more.
    pub(crate) fn works(self, message: &str) -> io::Result<()> {
        let nowhere = fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        let mut output = io::stdout().lock();
        writeln!(output, "{message}")?;
        output.flush()?;
        env::set_current_dir("/")?;
        dup2_stdin(&nowhere)?;
        dup2_stdout(&nowhere)?;
        dup2_stderr(&nowhere)?;
        Ok(())
    }
}
