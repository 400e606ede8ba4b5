//! The processes and threads of the machine.

use std::collections::BTreeMap;
use std::fs;

/// Processes and threads at a moment, or over a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessTree {
    /// By process ID.
    pub processes: BTreeMap<i32, Process>,
    /// By thread ID.
    pub threads: BTreeMap<i32, Thread>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The parent's process ID.
    pub parent_pid: i32,
    /// Its command line; for kernel threads, the name in brackets.
    pub command_line: Vec<String>,
    /// Its owner.
    pub uid: u32,
}

/// A thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its process.
    pub pid: i32,
    /// Its name.
    pub name: String,
}

impl ProcessTree {
    /// Reads all processes and threads from `/proc`.
    pub fn read() -> Self {
        let mut tree = Self::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            let status = read("status");
            let number = |key: &str| {
                let value = status.lines().find_map(|line| line.strip_prefix(key))?;
                value.split_whitespace().next()?.parse::<u32>().ok()
            };
            let Some(parent_pid) = number("PPid:") else { continue };
            let mut command_line: Vec<String> =
                read("cmdline").split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect();
            if command_line.is_empty() {
                command_line.push(read("comm").trim_end().to_owned());
            }
            let process =
                Process { parent_pid: parent_pid.cast_signed(), command_line, uid: number("Uid:").unwrap_or(0) };
            tree.processes.insert(pid, process);
            for task in fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
                let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
                tree.threads.insert(tid, Thread { pid, name: name.trim_end().to_owned() });
            }
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_its_threads_are_listed() {
        let pid = std::process::id().cast_signed();
        let (send, receive) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("lab-tree".into()).spawn(move || receive.recv()).unwrap();
        // A thread sets its name when it starts.
        let named = |tree: &ProcessTree| tree.threads.values().any(|t| t.pid == pid && t.name == "lab-tree");
        assert!((0..5000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            named(&ProcessTree::read())
        }));
        let tree = ProcessTree::read();
        assert!(!tree.processes[&pid].command_line.is_empty());
        drop(send);
        assert!(thread.join().unwrap().is_err());
    }
}
