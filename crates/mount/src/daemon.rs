//! Mounts that are served in the background.
//!
//! Instead of forking, the program starts itself again in a new session and waits for a message on a pipe. So no thread
//! is lost, and the caller gets the error, or its shell prompt once the mount works.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::{ffi::OsStrExt, fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use floe_image::{ShownName, start_error};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::failure::Failure;

/// The environment variable that identifies the background process.
const VARIABLE: &str = "FLOE_IN_BACKGROUND";

/// How long the standard error of a program that works may stay open.
const REMARK_PATIENCE: Duration = Duration::from_secs(1);

/// The role of this process.
pub enum Role {
    /// The foreground process, with the message that the mount works.
    Foreground(String),
    /// The foreground process, with the exit code of the background process, which has said why it failed.
    Failed(u8),
    /// The background process, which serves the mount and reports when it works.
    Background(Report),
}

/// The pipe on which the background process reports that the mount works, as its standard output.
pub struct Report {
    /// `/dev/null`, opened early, because opening it when the mount already works could fail.
    nowhere: File,
}

/// Starts the background process for a mount that reads `files`, or continues as one.
///
/// # Errors
/// The program cannot be started again, or `/dev/null` cannot be opened.
pub fn start<'a>(mut files: impl Iterator<Item = &'a Path>) -> Result<Role, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot start in the background: {error}"));
    if is_background() {
        // This succeeds for a process that does not lead its process group, such as this child.
        let _ = rustix::process::setsid();
        let nowhere = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
        return Ok(Role::Background(Report { nowhere }));
    }
    let mut arguments: Vec<OsString> = env::args_os().collect();
    let name = if arguments.is_empty() { "floe".into() } else { arguments.remove(0) };
    let mut child = Command::new(own_program())
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, "1")
        .stdin(if files.any(is_input) { Stdio::inherit() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(start_error(error)))?;
    let message = child.stdout.take().and_then(|output| read_message(output).ok());
    let Some(message) = message else {
        // The background process printed the reason on the shared stderr.
        let status = child.wait().map_err(failed)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return match code {
            Some(code) if code != 0 => Ok(Role::Failed(code)),
            _ => Err(Failure::failed(format!("the background process ended early: {status}"))),
        };
    };
    Ok(Role::Foreground(message))
}

/// Starts a program that serves a mount in the background, and waits until it works. Returns what the program has written to
/// standard error.
///
/// # Errors
/// The program cannot be started or fails; the message is its own, if it has one.
pub fn launch(mut command: Command) -> Result<String, Failure> {
    let program = Path::new(command.get_program()).to_owned();
    let failed = |error: io::Error| Failure::failed(format!("cannot start {}: {error}", program.shown()));
    command.env(VARIABLE, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(start_error(error)))?;
    let (sender, remarks) = mpsc::channel();
    if let Some(mut errors) = child.stderr.take() {
        let relay = move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
        };
        thread::Builder::new().spawn(relay).map_err(|error| failed(start_error(error)))?;
    }
    let works = child.stdout.take().is_some_and(|output| read_message(output).is_ok());
    let status = if works { None } else { Some(child.wait().map_err(failed)?) };
    let remarks = remarks.recv_timeout(REMARK_PATIENCE).unwrap_or_default();
    match status {
        None => Ok(remarks),
        Some(status) => {
            let silent = || format!("{} ended early: {status}", program.shown());
            Err(Failure::failed(last_message(&remarks).map_or_else(silent, str::to_owned)))
        }
    }
}

/// The last message of a program on its standard error; `None` if it wrote nothing. A message can contain a line break, in a
/// name.
pub fn last_message(errors: &str) -> Option<&str> {
    const PREFIX: &str = "floe: ";
    let errors = errors.trim_end_matches('\n');
    let start = errors.rmatch_indices(PREFIX).map(|(start, _)| start);
    let start = start.into_iter().find(|start| *start == 0 || errors[..*start].ends_with('\n'));
    let last = start.map_or_else(|| errors.lines().last(), |start| Some(&errors[start + PREFIX.len()..]));
    last.filter(|message| !message.is_empty())
}

/// Writes the message that the mount works: its length, and its bytes, which may contain line breaks.
fn write_message(mut output: impl Write, message: &str) -> io::Result<()> {
    let len = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    output.write_all(&[&len.to_le_bytes(), message.as_bytes()].concat())?;
    output.flush()
}

/// Reads the message of [`write_message`].
///
/// # Errors
/// The other process has ended without a complete message.
fn read_message(mut output: impl Read) -> io::Result<String> {
    let mut len = [0; 4];
    output.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    let mut message = Vec::new();
    if output.take(len.into()).read_to_end(&mut message)? < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&message).into_owned())
}

/// Whether a file is the standard input, such as `/dev/stdin`.
fn is_input(path: &Path) -> bool {
    let input = rustix::fs::fstat(io::stdin());
    fs::metadata(path)
        .is_ok_and(|file| input.is_ok_and(|input| (file.dev(), file.ino()) == (input.st_dev, input.st_ino)))
}

/// Whether this process is the background process.
pub fn is_background() -> bool {
    env::var_os(VARIABLE).is_some()
}

impl Report {
    /// Reports that the mount works, and detaches from the terminal and the working directory.
    ///
    /// # Errors
    /// The foreground process is gone.
    pub fn works(self, message: &str) -> io::Result<()> {
        write_message(io::stdout().lock(), message)?;
        env::set_current_dir("/")?;
        dup2_stdin(&self.nowhere)?;
        dup2_stdout(&self.nowhere)?;
        dup2_stderr(&self.nowhere)?;
        Ok(())
    }
}

/// The program's file, also after another one has replaced it under its name.
const LINK: &str = "/proc/self/exe";

/// The file of this program, as an absolute path. Without `/proc`, it is the path that started the program.
pub fn own_program() -> PathBuf {
    let link = PathBuf::from(LINK);
    if link.exists() {
        return link;
    }
    let started = Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::path::absolute(started).unwrap_or(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_line_breaks_arrives_whole() {
        for message in ["", "image is mounted on /mnt", "a\nb is mounted on \n/mnt\n", "\0\u{fffd}\t\\"] {
            let mut bytes = Vec::new();
            write_message(&mut bytes, message).expect("memory");
            assert_eq!(read_message(&bytes[..]).ok().as_deref(), Some(message));
            for len in 0..bytes.len() {
                assert!(read_message(&bytes[..len]).is_err(), "{len} bytes of {message:?}");
            }
        }
    }

    #[test]
    fn the_last_message_may_have_several_lines() {
        for (errors, expected) in [
            ("", None),
            ("\n", None),
            ("floe: one\n", Some("one")),
            ("floe: one\nfloe: two\n", Some("two")),
            ("floe: one\nfloe: /a\nb: no such file\n", Some("/a\nb: no such file")),
            ("floe: /a floe: b\n", Some("/a floe: b")),
            ("Segmentation fault\n", Some("Segmentation fault")),
        ] {
            assert_eq!(last_message(errors), expected, "{errors:?}");
        }
    }
}
