//! A web server that can fall silent, and an HTTP proxy that leads every connection to one server.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// The pages of a server, by path: each with its media type.
pub(crate) type Pages = BTreeMap<String, (&'static str, Vec<u8>)>;

/// A server of pages, whole or by ranges. It runs until the test program ends.
pub(crate) struct PlainServer {
    pub(crate) port: u16,
    state: Arc<State>,
}

struct State {
    pages: Pages,
    /// The number of requests that it still answers.
    answers_left: AtomicU64,
    /// The requests that wait for an answer.
    unanswered: AtomicU64,
}

impl PlainServer {
    pub(crate) fn of(pages: Pages) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State { pages, answers_left: AtomicU64::new(u64::MAX), unanswered: AtomicU64::new(0) });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || state.serve(&stream));
            }
        });
        Self { port, state }
    }

    /// Goes on accepting connections and requests, but answers only this many more.
    pub(crate) fn fall_silent_after(&self, answers: u64) {
        self.state.answers_left.store(answers, Relaxed);
    }

    /// The number of requests that wait for an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        self.state.unanswered.load(Relaxed)
    }
}

impl State {
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(asked) = Asked::read(&mut reader) {
            let answers = |left: u64| left.checked_sub(1);
            if self.answers_left.fetch_update(Relaxed, Relaxed, answers).is_err() {
                self.unanswered.fetch_add(1, Relaxed);
                // The client closes the connection when it gives up, or the test ends.
                let _ = reader.fill_buf();
                return;
            }
            if self.answer(stream, &asked).is_none() {
                return;
            }
        }
    }

    fn answer(&self, mut stream: &TcpStream, asked: &Asked) -> Option<()> {
        let Some((media_type, page)) = self.pages.get(&asked.path) else {
            return stream.write_all(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n").ok();
        };
        let (status, range, part) = match asked.range {
            Some((first, last)) => {
                let last = last.min(page.len().saturating_sub(1));
                (206, format!("Content-Range: bytes {first}-{last}/{}\r\n", page.len()), page.get(first..=last)?)
            }
            None => (200, String::new(), page.as_slice()),
        };
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\nETag: \"one\"\r\n{range}\r\n",
            part.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        if asked.is_head { Some(()) } else { stream.write_all(part).ok() }
    }
}

/// A request of a client.
struct Asked {
    is_head: bool,
    path: String,
    range: Option<(usize, usize)>,
}

impl Asked {
    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let mut words = line.split_whitespace();
        let (is_head, path) = (words.next()? == "HEAD", words.next()?.to_owned());
        let mut range = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                return Some(Self { is_head, path, range });
            }
            if let Some((first, last)) = line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
                range = Some((first.parse().ok()?, last.parse().unwrap_or(usize::MAX)));
            }
        }
    }
}

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
