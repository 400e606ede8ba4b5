//! Clients of a mount that are stopped while they wait (SIGSTOP, or Ctrl-Z in a shell), and continued later.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use floe_testkit::skip::{self, Need};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::program::{Serving, demo, floe, told, until};

/// The state of a process: one letter.
fn state(process: &Child) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process waits in a system call on a socket.
fn waits_on_a_socket(process: &Child) -> bool {
    let of_process = format!("/proc/{}", process.id());
    let descriptor = || {
        let call = fs::read_to_string(format!("{of_process}/syscall")).ok()?;
        let descriptor = call.split(' ').nth(1)?.strip_prefix("0x")?;
        u32::from_str_radix(descriptor, 16).ok()
    };
    let target = descriptor().and_then(|number| fs::read_link(format!("{of_process}/fd/{number}")).ok());
    state(process) == Some('S') && target.is_some_and(|target| target.to_string_lossy().starts_with("socket:"))
}

#[test]
fn clients_that_are_stopped_get_their_answers() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let arguments: [&str; 0] = [];
    let serving = Serving::new(&demo(), arguments);
    for (words, expected) in
        [(&["status"][..], "EROFS image"), (&["tune"], "fetch-around"), (&["tune", "cache=1M"], "")]
    {
        // It accepts connections, and does not answer.
        serving.stop();
        let mut command: Command = floe();
        command.arg(words[0]).arg(&serving.place.path).args(&words[1..]);
        let client = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let client = client.expect("the program starts");
        let pid = Pid::from_child(&client);
        let has_ended = || state(&client) == Some('Z');
        for _ in 0..3 {
            until("it waits for the answer", || waits_on_a_socket(&client) || has_ended());
            kill_process(pid, Signal::STOP).expect("our own child");
            until("it is stopped", || state(&client) == Some('T') || has_ended());
            kill_process(pid, Signal::CONT).expect("our own child");
            until("it continues", || state(&client) != Some('T'));
        }
        serving.signal(Signal::CONT);
        let output = client.wait_with_output().expect("it ends");
        assert_eq!(told(&output), (Some(0), String::new()), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(expected), "{words:?}: {output:?}");
    }
}
