//! Work in a process of its own, which may be that of an ordinary user: mounts of users admit nobody else.

use std::{
    env,
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use super::{file_list, launch::Launch, stand::Stand, tree_digest::TreeDigest};
use crate::{
    bench::{
        listing::{self, ListedFile},
        ordinary_user::OrdinaryUser,
        workload::{self, Measurement, Scene, Workload},
    },
    task_error::{During, Outcome, TaskError},
};

/// Runs this program in the name of a user.
pub(super) struct Errand {
    program: PathBuf,
    user: Option<OrdinaryUser>,
    /// The user's directory for temporary files.
    folder: PathBuf,
    duration: Duration,
}

/// The arguments of the process.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_enum)]
    work: Work,
    mount: PathBuf,
    #[arg(long, default_value = "")]
    workload: String,
    #[arg(long)]
    files: Option<PathBuf>,
    #[arg(long, default_value_t = 0)]
    round: u64,
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Work {
    /// Lists what this user may read.
    List,
    /// Prints the digest of the listed files.
    Digest,
    /// Runs a workload, and prints its results.
    Run,
}

impl Errand {
    /// Copies this program to where every user may run it. Workloads without an end last `duration`.
    pub(super) fn new(stand: &Stand, user: Option<OrdinaryUser>, duration: Duration) -> Outcome<Self> {
        let program = stand.folder().join("xtask");
        fs::copy(env::current_exe()?, &program).during(program.display())?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        let folder = stand.folder().join("errands");
        fs::create_dir(&folder).during(folder.display())?;
        user.map_or(Ok(()), |user| user.own(&folder))?;
        Ok(Self { program, user, folder, duration })
    }

    /// The files of a mount that the user may read.
    pub(super) fn list(&self, mount: &Path) -> Outcome<Vec<ListedFile>> {
        file_list::decode(&self.output(Work::List, mount, |_| {})?)
    }

    /// The digest of a mount's listed files.
    pub(super) fn digest(&self, mount: &Path, files: &Path) -> Outcome<String> {
        let output = self.output(Work::Digest, mount, |command| {
            command.arg("--files").arg(files);
        })?;
        Ok(String::from_utf8_lossy(&output).trim().to_owned())
    }

    /// Runs a workload with a mount.
    pub(super) fn run(
        &self,
        workload: &dyn Workload,
        mount: &Path,
        files: &Path,
        round: u64,
    ) -> Outcome<Vec<Measurement>> {
        let output = self.output(Work::Run, mount, |command| {
            command.arg("--workload").arg(workload.name()).arg("--files").arg(files);
            command.arg("--round").arg(round.to_string());
            command.arg("--seconds").arg(self.duration.as_secs_f64().to_string());
        })?;
        serde_json::from_slice(&output).during("the results of a workload")
    }

    fn output(&self, work: Work, mount: &Path, add: impl FnOnce(&mut Command)) -> Outcome<Vec<u8>> {
        let mut command = self.user.map_or_else(|| Command::new(&self.program), |user| user.command(&self.program));
        let work = match work {
            Work::List => "list",
            Work::Digest => "digest",
            Work::Run => "run",
        };
        command.args(["bench", "service", "errand", work]).arg(mount).env("TMPDIR", &self.folder);
        add(&mut command);
        let output = command.stdin(Stdio::null()).output().during(self.program.display())?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(TaskError::new(String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// All workloads, those that run by default first.
pub(super) fn workloads() -> Vec<Box<dyn Workload>> {
    let mut workloads = workload::all(&[8]);
    workloads.push(Box::new(Launch));
    workloads
}

/// Does the work.
pub(super) fn run(arguments: &Arguments) -> Outcome {
    let Arguments { work, mount, workload, files, round, seconds } = arguments;
    let listed = || {
        let path = files.as_ref().ok_or(TaskError::new("there is no list of files"))?;
        file_list::decode(&fs::read(path).during(path.display())?)
    };
    let output = match work {
        Work::List => file_list::encode(&listing::list_readable(mount)?),
        Work::Digest => TreeDigest::of(mount, &listed()?)?.text().into_bytes(),
        Work::Run => {
            let all = workloads();
            let workload = all.iter().find(|known| known.name() == *workload);
            let workload = workload.ok_or(TaskError::new("unknown workload"))?;
            let scene = Scene {
                mount,
                files: &listed()?,
                tree: None,
                round: *round,
                duration: Duration::from_secs_f64(*seconds),
            };
            serde_json::to_vec(&workload.run(&scene)?).during("the results")?
        }
    };
    Ok(std::io::stdout().write_all(&output)?)
}
