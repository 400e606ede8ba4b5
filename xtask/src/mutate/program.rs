//! Runs one image through the program: `floe check`, `floe extract`, and a real mount.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use floe_testkit::run_bounded;

use super::{
    Stage,
    examination::{Examination, compare},
    survey::{self, Survey},
    verdict::{Fault, FaultKind, Verdict},
};
use crate::task_error::{During, Outcome};

/// The time limit of one invocation, and of reading one mount.
const PATIENCE: Duration = Duration::from_secs(30);

impl Examination<'_> {
    /// Runs `program` on the image; compares its results with those of the library.
    ///
    /// # Errors
    /// The program cannot be run.
    pub(super) fn run_program(&self, program: &Path, survey: &Survey, verdict: &mut Verdict) -> Outcome {
        verdict.is_mounted = self.stages.contains(&Stage::Mount);
        if self.stages.contains(&Stage::Check) {
            let is_sound = self.call(program, "check", &[], verdict)?;
            if verdict.is_sound.is_some_and(|expected| expected != is_sound) {
                let words = format!("the program's check says {is_sound}, the library's {:?}", verdict.is_sound);
                verdict.faults.push(Fault::new(FaultKind::Differs, words));
            }
        }
        if self.stages.contains(&Stage::Extract) && survey.is_whole {
            let target = self.scratch.join("program");
            self.call(program, "extract", &["--quiet".into(), "-C".into(), target.clone().into()], verdict)?;
            let _ = fs::remove_dir_all(&target);
        }
        if verdict.is_mounted {
            self.mount(program, survey, verdict)?;
        }
        Ok(())
    }

    fn image_arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![OsString::from("--offset"), self.seed.offset.to_string().into()];
        for device in &self.seed.devices {
            arguments.extend(["--device".into(), device.into()]);
        }
        arguments.push(self.path.into());
        arguments
    }

    /// Runs a command; returns whether it succeeded.
    fn call(&self, program: &Path, name: &str, rest: &[OsString], verdict: &mut Verdict) -> Outcome<bool> {
        let mut command = Command::new(program);
        let run =
            run_bounded(command.arg(name).args(self.image_arguments()).args(rest), PATIENCE).during("the program")?;
        if run.is_timed_out {
            verdict.faults.push(Fault::new(FaultKind::Hang, format!("floe {name} takes more than {PATIENCE:?}")));
        } else if run.status.code().is_none() || run.stderr.contains("panicked at") {
            verdict.faults.push(Fault::new(FaultKind::Crash, format!("floe {name}: {}: {}", run.status, run.stderr)));
        } else if let Some(line) = run.stderr.lines().find(|line| !line.starts_with("floe: ")) {
            verdict.faults.push(Fault::new(FaultKind::Message, format!("floe {name} says {line:?}")));
        } else if !run.status.success() && run.stderr.is_empty() && run.stdout.is_empty() {
            verdict.faults.push(Fault::new(FaultKind::Message, format!("floe {name} fails without a message")));
        }
        Ok(run.status.success())
    }

    fn mount(&self, program: &Path, survey: &Survey, verdict: &mut Verdict) -> Outcome {
        let directory = tempfile::Builder::new().prefix("floe-mutate-").tempdir()?;
        let mut command = Command::new(program);
        command.arg("mount").args(self.image_arguments()).arg(directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().during("the program")?;
        let mut line = String::new();
        if let Some(stdout) = server.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.contains("is mounted on") {
            let (sender, receiver) = mpsc::channel();
            let root = directory.path().to_owned();
            thread::spawn(move || sender.send(survey::directory(&root)));
            match receiver.recv_timeout(PATIENCE) {
                Ok(found) if verdict.is_sound == Some(true) && verdict.is_whole => {
                    compare("mounted", &survey.entries, &found, verdict);
                }
                Ok(_) => {}
                Err(_) => {
                    let words = format!("reading the mount takes more than {PATIENCE:?}");
                    verdict.faults.push(Fault::new(FaultKind::Hang, words));
                    server.kill()?;
                }
            }
            unmount(program, directory.path())?;
        } else if verdict.is_sound == Some(true) {
            verdict.faults.push(Fault::new(FaultKind::Unsound, "does not mount"));
        }
        let (code, words) = end(&mut server)?;
        if words.contains("panicked at") || code.is_none() {
            verdict.faults.push(Fault::new(FaultKind::Crash, format!("floe mount ends with {code:?}: {words}")));
        } else if let Some(line) = words.lines().find(|line| !line.starts_with("floe: ")) {
            verdict.faults.push(Fault::new(FaultKind::Message, format!("floe mount says {line:?}")));
        }
        Ok(())
    }
}

/// Waits for a server to exit, or kills it; returns its exit code and standard error.
fn end(server: &mut Child) -> Outcome<(Option<i32>, String)> {
    let started = Instant::now();
    while server.try_wait()?.is_none() {
        if started.elapsed() > PATIENCE {
            server.kill()?;
        }
        thread::sleep(Duration::from_millis(1));
    }
    let mut words = String::new();
    if let Some(mut stderr) = server.stderr.take() {
        stderr.read_to_string(&mut words)?;
    }
    Ok((server.wait()?.code(), words))
}

fn unmount(program: &Path, directory: &Path) -> Outcome {
    let mut command = Command::new(program);
    let output = command.args(["umount", "--lazy"]).arg(directory).output().during("the program")?;
    match output.status.success() {
        true => Ok(()),
        false => Err(crate::task_error::TaskError::new(String::from_utf8_lossy(&output.stderr).trim())),
    }
}
