//! An HTTP proxy that leads every connection to one server.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A proxy that answers `CONNECT` to any name with a connection to one port of this machine.
pub(crate) struct Tunnel {
    /// Its URL, for `HTTPS_PROXY`.
    pub(crate) url: OsString,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl Tunnel {
    /// A proxy to the server on this port.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address")).into();
        let names: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let noted = Arc::clone(&names);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let noted = Arc::clone(&noted);
                thread::spawn(move || connect(&client, port, &noted));
            }
        });
        Self { url, names }
    }

    /// The names and ports that clients asked for.
    pub(crate) fn names(&self) -> Vec<String> {
        self.names.lock().expect("no panic while held").iter().cloned().collect()
    }
}

fn connect(client: &TcpStream, port: u16, names: &Mutex<BTreeSet<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let name =
        line.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).ok_or(io::ErrorKind::InvalidData)?;
    names.lock().expect("no panic while held").insert(name.to_owned());
    while !matches!(line.as_str(), "\r\n" | "") {
        line.clear();
        reader.read_line(&mut line)?;
    }
    // The client sends nothing more before the answer, so the reader has buffered nothing.
    let server = TcpStream::connect(("127.0.0.1", port))?;
    (&*client).write_all(b"HTTP/1.1 200 Connected\r\n\r\n")?;
    thread::scope(|scope| {
        scope.spawn(|| copy(&server, client));
        copy(client, &server);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
