//! Toxiproxy, between a real server and its clients.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::peer;

use super::servers::free_port;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy to one server. It is killed when dropped.
pub(crate) struct Toxiproxy {
    child: Child,
    control: u16,
    /// The address for clients.
    pub(crate) port: u16,
}

impl Toxiproxy {
    /// A proxy to the server that listens on `upstream`.
    pub(crate) fn to(upstream: u16) -> Self {
        let [control, port] = [(); 2].map(|()| free_port());
        let mut command = Command::new(peer("toxiproxy-server").expect("the test needs it"));
        command.args(["-host", "127.0.0.1", "-port", &control.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let proxy = Self { child: command.spawn().expect("toxiproxy starts"), control, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", control)).is_err() {
            assert!(started.elapsed() < PATIENCE, "toxiproxy does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        proxy.ask(
            "/proxies",
            &format!(r#"{{"name":"it","listen":"127.0.0.1:{port}","upstream":"127.0.0.1:{upstream}"}}"#),
        );
        proxy
    }

    /// Cuts all connections and accepts none, or accepts connections again.
    pub(crate) fn set_reachable(&self, is_reachable: bool) {
        self.ask("/proxies/it", &format!(r#"{{"enabled":{is_reachable}}}"#));
    }

    /// Closes each connection after this many bytes to the client.
    pub(crate) fn limit_answers(&self, bytes: u64) {
        self.ask("/proxies/it/toxics", &format!(r#"{{"type":"limit_data","attributes":{{"bytes":{bytes}}}}}"#));
    }

    fn ask(&self, path: &str, body: &str) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.control)).expect("it listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 20"), "{path} {body}: {answer}");
    }
}

impl Drop for Toxiproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
