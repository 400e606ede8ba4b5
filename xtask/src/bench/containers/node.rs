//! A machine with containerd, in namespaces of its own.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{CONTAINERD_NODE, ContainerRoot, container_root};

use super::super::process_tree::{all_descendants, descendants};
use crate::task_error::{During, Outcome, TaskError};

/// How long the processes of a node may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the benchmark adds to [`CONTAINERD_NODE`]: the stargz snapshotter, and containers.
const CONTAINERS: &str = include_str!("node.sh");

/// The programs of a node, which are in use there and therefore in the page cache.
const PROGRAMS: [&str; 13] = [
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "ctr-remote",
    "runc",
    "mkfs.erofs",
    "curl",
    "apptainer",
    "conmon",
    "crun",
    "fusermount3",
    "podman",
    "squashfuse_ll",
];

/// A node whose script reports what it does, line by line. Dropping it ends all of its processes.
pub(crate) struct Node {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

/// What the processes of a node take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// CPU time in seconds, including that of processes that have ended.
    pub(super) cpu_s: f64,
    /// The proportional set size of all processes outside of the container, and of those of Floe, in MiB.
    pub(super) pss_mib: f64,
    pub(super) floe_pss_mib: f64,
}

impl Node {
    /// Starts a node with files in `folder`, which runs `script` when it is told to go.
    pub(crate) fn start(folder: &Path, floe: &Path, script: &str) -> Outcome<Self> {
        let root = ContainerRoot::new().ok_or_else(|| TaskError::new("there is no root directory with containerd"))?;
        let programs = floe.parent().unwrap_or(Path::new("/"));
        let script = format!("data=/run/scene\n{CONTAINERD_NODE}{CONTAINERS}\n{script}\n");
        fs::write(folder.join("script"), script)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut command = root.enter(folder, programs);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().during("unshare")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(TaskError::new("the node has no pipes"));
        };
        let mut node = Self { child, input, lines: BufReader::new(output) };
        node.wait_for("ready").map_err(|error| {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            TaskError::new(format!("{error}: {}", log.lines().rev().take(5).collect::<Vec<_>>().join("; ")))
        })?;
        Ok(node)
    }

    /// Lets the script go on.
    pub(super) fn go(&mut self) -> Outcome {
        Ok(self.input.write_all(b"go\n")?)
    }

    /// Waits for a line of the script or of the program in the container.
    pub(super) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(TaskError::new("the script of the node ended early"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Waits for this line.
    pub(super) fn wait_for(&mut self, expected: &str) -> Outcome {
        match self.line()? {
            line if line == expected => Ok(()),
            line => Err(TaskError::new(format!("the node says '{line}' instead of '{expected}'"))),
        }
    }

    /// A path in its root directory, for this process.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join("root").join(inside)
    }

    /// What its processes have taken so far.
    pub(super) fn taken(&self) -> Outcome<Taken> {
        let mut taken = Taken::default();
        for process in all_descendants(self.child.id())? {
            taken.cpu_s += process.cpu_s + process.waited_cpu_s;
            let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
            let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid)).unwrap_or_default();
            let kib =
                rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok());
            let mib: f64 = kib.unwrap_or(0.0) / 1024.0;
            if name.starts_with("floe") {
                taken.floe_pss_mib += mib;
            }
            if ["floe", "containerd"].iter().any(|prefix| name.starts_with(prefix)) {
                taken.pss_mib += mib;
            }
        }
        Ok(taken)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let processes = descendants(self.child.id()).unwrap_or_default();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let started = Instant::now();
        let is_there = |pid: u32| Path::new(&format!("/proc/{pid}/cwd")).exists();
        while processes.iter().any(|process| is_there(process.pid)) && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Empties the caches of this machine, and reads what a node has in use, and what its registry serves.
pub(super) fn cool_down(floe: &Path, registry: &Path) -> Outcome {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").during("/proc/sys/vm/drop_caches")?;
    let root = container_root().unwrap_or_default();
    let programs = PROGRAMS.iter().map(|name| root.join("usr/bin").join(name)).chain([floe.to_owned()]);
    for program in programs.filter(|program| program.exists()) {
        std::io::copy(&mut fs::File::open(&program).during(program.display())?, &mut std::io::sink())?;
    }
    read_all(registry)
}

fn read_all(folder: &Path) -> Outcome {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)?.flatten() {
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else {
                std::io::copy(&mut fs::File::open(entry.path())?, &mut std::io::sink())?;
            }
        }
    }
    Ok(())
}

/// Removes the directory of a node, when its mounts are gone.
pub(super) fn remove(folder: &Path) -> Outcome {
    let started = Instant::now();
    loop {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if started.elapsed() > PATIENCE => return Err(error).during(folder.display()),
            Err(_) => thread::sleep(Duration::from_millis(50)),
            Ok(()) => return Ok(()),
        }
    }
}

/// A command line for a shell.
pub(super) fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_survive_the_shell() {
        let words = ["a b".to_owned(), "it's".to_owned(), "$x".to_owned()];
        assert_eq!(quoted(&words), r"'a b' 'it'\''s' '$x'");
    }
}
