//! An HTTP server with scripted answers, byte by byte.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod content;
pub(crate) mod mutation;

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// A request of a client.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// The path and the query.
    pub(crate) path: String,
    /// The headers, with names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// An answer of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Sends only this many bytes of the body, and closes the connection.
    pub(crate) cut: Option<usize>,
    /// Waits this long before the last byte, or before the head if there is no body.
    pub(crate) stall: Duration,
    /// Waits this long before each byte of the body.
    pub(crate) pace: Duration,
    /// Closes the connection without an answer.
    pub(crate) hangs_up: bool,
}

/// A server on a loopback address. Dropping it ends the server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    is_ending: Arc<AtomicBool>,
    pub(crate) asked: Arc<AtomicU64>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (is_ending, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (answer, ends, counts) = (Arc::new(answer), Arc::clone(&is_ending), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Relaxed) {
                    return;
                }
                let (answer, counts) = (Arc::clone(&answer), Arc::clone(&counts));
                thread::spawn(move || {
                    if let Ok(stream) = stream {
                        serve(&stream, answer.as_ref(), &counts);
                    }
                });
            }
        });
        Self { address, is_ending, asked }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.asked.load(Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_ending.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, answer: &(impl Fn(&Asked) -> Answer + ?Sized), counts: &AtomicU64) {
    let mut reader = BufReader::new(stream);
    while let Some(asked) = read_request(&mut reader) {
        counts.fetch_add(1, Relaxed);
        let reply = answer(&asked);
        if reply.hangs_up || send(stream, &reply).is_none() {
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, headers, body })
}

/// `None` if the connection must be closed.
fn send(mut stream: &TcpStream, answer: &Answer) -> Option<()> {
    let mut head = format!("HTTP/1.1 {} X\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let sent = answer.cut.unwrap_or(answer.body.len()).min(answer.body.len());
    let (early, late) = answer.body[..sent].split_at(sent.saturating_sub(1));
    if sent == 0 {
        thread::sleep(answer.stall);
    }
    stream.write_all(head.as_bytes()).ok()?;
    if answer.pace.is_zero() {
        stream.write_all(early).ok()?;
    } else {
        for byte in early {
            thread::sleep(answer.pace);
            stream.write_all(&[*byte]).ok()?;
        }
    }
    if !late.is_empty() {
        thread::sleep(answer.stall);
        stream.write_all(late).ok()?;
    }
    // The end of the connection ends bodies of unknown length.
    let has_length = answer.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    (answer.cut.is_none() && has_length).then_some(())
}

impl Asked {
    /// The requested range: its first and last byte.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

impl Answer {
    pub(crate) fn new(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let mut owned: Vec<_> = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        owned.push(("content-length".to_owned(), body.len().to_string()));
        Self { status, headers: owned, body, ..Self::default() }
    }

    /// The correct answer to a request for a range of `object`, or for all of it.
    pub(crate) fn of_object(asked: &Asked, object: &[u8], etag: &str) -> Self {
        let Some((first, last)) = asked.range() else { return Self::new(200, &[("etag", etag)], object) };
        if asked.header("if-match").is_some_and(|wanted| wanted != etag) {
            return Self::new(412, &[("etag", etag)], "");
        }
        let end = (last + 1).min(object.len() as u64);
        if first >= end {
            return Self::new(416, &[("content-range", &format!("bytes */{}", object.len()))], "");
        }
        let range = format!("bytes {first}-{}/{}", end - 1, object.len());
        Self::new(206, &[("etag", etag), ("content-range", &range)], &object[first as usize..end as usize])
    }

    /// Replaces a header, or adds it.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }
}

/// Bytes without short repetitions.
pub(crate) fn object(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
