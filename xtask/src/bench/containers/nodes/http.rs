//! A server for GET and HEAD on a loopback address, whose answers come over a line.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use super::line::Line;
use crate::task_error::Outcome;

/// The stack of a thread that serves a connection, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Has objects by their paths.
pub(super) trait Objects: Send + Sync + 'static {
    /// The media type of an object, its length, and the bytes of a range of it that begins and ends inside; `None` if there is no
    /// such object. Without a range, all bytes.
    fn object(&self, path: &str, range: Option<(u64, u64)>) -> Option<Part>;
}

/// A part of an object.
pub(super) struct Part {
    pub(super) media_type: &'static str,
    pub(super) object_len: u64,
    pub(super) bytes: Vec<u8>,
}

/// A server. Dropping it ends it.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) line: Arc<Line>,
    is_ending: Arc<AtomicBool>,
}

impl Server {
    /// Serves `objects` over `line`.
    ///
    /// # Errors
    /// There is no free port.
    pub(super) fn start(objects: Arc<dyn Objects>, line: Line) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, line, is_ending) = (listener.local_addr()?, Arc::new(line), Arc::new(AtomicBool::new(false)));
        let (shared, ending) = (Arc::clone(&line), Arc::clone(&is_ending));
        thread::Builder::new().spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ending.load(Relaxed) {
                    return;
                }
                let (objects, line) = (Arc::clone(&objects), Arc::clone(&shared));
                let served = move || drop(serve(&client, &*objects, &line));
                // Without a thread, the client finds the connection closed, and asks again.
                drop(thread::Builder::new().stack_size(STACK_BYTES).spawn(served));
            }
        })?;
        Ok(Self { address, line, is_ending })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_ending.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(client: &TcpStream, objects: &dyn Objects, line: &Line) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut reader, mut is_first) = (BufReader::with_capacity(4096, client), true);
    while let Some(asked) = Asked::read(&mut reader)? {
        line.receive(is_first);
        is_first = false;
        let Some(part) = objects.object(&asked.path, asked.range) else {
            line.send(client, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let Part { media_type, object_len, bytes } = part;
        let (status, range) = match asked.range {
            Some((first, _)) => {
                let last = (first + bytes.len() as u64).saturating_sub(1);
                ("206 Partial Content", format!("Content-Range: bytes {first}-{last}/{object_len}\r\n"))
            }
            None => ("200 OK", String::new()),
        };
        let len = bytes.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {len}\r\n{range}\r\n");
        let mut answer = head.into_bytes();
        if !asked.is_head {
            answer.extend(bytes);
        }
        line.send(client, &answer)?;
    }
    Ok(())
}

/// Requests a range of an object, or all of it, from the server at `address`.
///
/// # Errors
/// The server does not have it, or does not answer.
pub(super) fn get(address: SocketAddr, path: &str, range: Option<(u64, u64)>) -> io::Result<(u64, Vec<u8>)> {
    let mut server = BufReader::new(TcpStream::connect(address)?);
    let range = range.map(|(first, last)| format!("Range: bytes={first}-{last}\r\n")).unwrap_or_default();
    write!(server.get_mut(), "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{range}\r\n")?;
    let mut status = String::new();
    server.read_line(&mut status)?;
    if !status.contains(" 200 ") && !status.contains(" 206 ") {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (mut len, mut object_len) = (0, None);
    while let Some((name, value)) = header(&mut server)? {
        match name.as_str() {
            "content-length" => len = value.parse().unwrap_or(0),
            "content-range" => object_len = value.rsplit('/').next().and_then(|len| len.parse().ok()),
            _ => {}
        }
    }
    let mut bytes = vec![0; len];
    server.read_exact(&mut bytes)?;
    Ok((object_len.unwrap_or(len as u64), bytes))
}

struct Asked {
    path: String,
    is_head: bool,
    /// The first and the last byte.
    range: Option<(u64, u64)>,
}

impl Asked {
    /// Reads a request; `None` at the end of the connection.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        // Mirrors are told the name of the registry, which is always the same one here.
        let path = path.split('?').next().unwrap_or_default().to_owned();
        let mut asked = Self { is_head: method == "HEAD", path, range: None };
        while let Some((name, value)) = header(reader)? {
            if name == "range" {
                let bounds = value.strip_prefix("bytes=").and_then(|bounds| bounds.split_once('-'));
                asked.range = bounds.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
            }
        }
        Ok(Some(asked))
    }
}

/// Reads a header; `None` behind the last one. The name is in lower case.
fn header(reader: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    Ok(line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())))
}
