//! Mirrors of a registry that behave like those of Spegel and of Dragonfly.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// The size of the pieces that Dragonfly fetches and keeps.
const PIECE_BYTES: u64 = 4 << 20;

/// How a mirror answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behaviour {
    /// Spegel: it has what its peers have, and answers 404 to all else.
    Peers,
    /// Dragonfly: it fetches pieces from the registry, once, and keeps them.
    Pieces,
    /// As [`Behaviour::Pieces`], but each answer breaks off after some bytes.
    BreaksOff,
    /// As [`Behaviour::Pieces`], but one byte of each blob is wrong.
    Corrupts,
}

/// A mirror. It runs until the test program ends.
pub(crate) struct Mirror {
    pub(crate) port: u16,
    state: Arc<State>,
}

struct State {
    behaviour: Behaviour,
    upstream: u16,
    /// Pieces of blobs and whole documents, by path and by the number of the piece.
    kept: Mutex<BTreeMap<(String, u64), Vec<u8>>>,
    answers: AtomicU64,
    misses: AtomicU64,
}

struct Asked {
    path: String,
    accept: String,
    range: Option<(u64, u64)>,
}

impl Mirror {
    /// A mirror of the registry that listens on `upstream`.
    pub(crate) fn of(upstream: u16, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (kept, answers, misses) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        let state = Arc::new(State { behaviour, upstream, kept, answers, misses });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || state.serve(&stream));
            }
        });
        Self { port, state }
    }

    /// Gives the mirror what another one has kept, as peers do.
    pub(crate) fn take_from(&self, other: &Self) {
        let kept = other.state.kept.lock().expect("sound").clone();
        self.state.kept.lock().expect("sound").extend(kept);
    }

    /// The numbers of answers with content, and of those with 404.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.state.answers.load(Relaxed), self.state.misses.load(Relaxed))
    }
}

impl State {
    fn serve(&self, stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        while let Some(asked) = Asked::read(&mut reader) {
            if self.answer(stream, &asked).is_none() {
                return;
            }
        }
    }

    fn answer(&self, mut stream: &TcpStream, asked: &Asked) -> Option<()> {
        let is_blob = asked.path.contains("/blobs/");
        let found = if is_blob { self.blob(asked) } else { self.document(asked) };
        let Some((status, headers, mut body)) = found else {
            self.misses.fetch_add(1, Relaxed);
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok();
        };
        self.answers.fetch_add(1, Relaxed);
        if is_blob && self.behaviour == Behaviour::Corrupts {
            body.last_mut().into_iter().for_each(|byte| *byte ^= 1);
        }
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        stream.write_all(head.as_bytes()).ok()?;
        if is_blob && self.behaviour == Behaviour::BreaksOff {
            stream.write_all(&body[..body.len() / 2]).ok()?;
            return None;
        }
        stream.write_all(&body).ok()
    }

    /// A manifest or an index.
    fn document(&self, asked: &Asked) -> Option<(&'static str, String, Vec<u8>)> {
        let key = (asked.path.clone(), 0);
        let kept = self.kept.lock().expect("sound").get(&key).cloned();
        let bytes = match kept {
            Some(bytes) => bytes,
            None if self.behaviour == Behaviour::Peers => return None,
            None => {
                let (_, bytes) = self.fetch(&asked.path, &asked.accept, None)?;
                self.kept.lock().expect("sound").insert(key, bytes.clone());
                bytes
            }
        };
        Some(("200 OK", "Content-Type: application/vnd.oci.image.manifest.v1+json\r\n".to_owned(), bytes))
    }

    /// A range of a blob, out of pieces. The first piece begins with the length of the blob.
    fn blob(&self, asked: &Asked) -> Option<(&'static str, String, Vec<u8>)> {
        let (first, last) = asked.range.unwrap_or((0, u64::MAX));
        let (len, _) = self.piece(&asked.path, 0)?;
        let last = last.min(len.checked_sub(1)?);
        let mut bytes = Vec::new();
        for number in first / PIECE_BYTES..=last / PIECE_BYTES {
            bytes.extend(self.piece(&asked.path, number)?.1);
        }
        let skipped = (first % PIECE_BYTES) as usize;
        let part = bytes.get(skipped..skipped + (last + 1 - first) as usize)?.to_vec();
        match asked.range {
            Some(_) => Some(("206 Partial Content", format!("Content-Range: bytes {first}-{last}/{len}\r\n"), part)),
            None => Some(("200 OK", String::new(), part)),
        }
    }

    /// A piece of a blob, and the length of the blob.
    fn piece(&self, path: &str, number: u64) -> Option<(u64, Vec<u8>)> {
        let key = (path.to_owned(), number);
        let decode = |kept: &Vec<u8>| (u64::from_le_bytes(kept[..8].try_into().expect("a length")), kept[8..].to_vec());
        // Held while a piece is fetched, so that each is fetched once.
        let mut pieces = self.kept.lock().expect("sound");
        if let Some(kept) = pieces.get(&key) {
            return Some(decode(kept));
        }
        if self.behaviour == Behaviour::Peers {
            return None;
        }
        let first = number * PIECE_BYTES;
        let (len, bytes) = self.fetch(path, "*/*", Some((first, first + PIECE_BYTES - 1)))?;
        let kept = [&len.to_le_bytes()[..], &bytes].concat();
        pieces.insert(key, kept);
        Some((len, bytes))
    }

    /// Requests from the registry. Returns the length of the whole object, and the bytes.
    fn fetch(&self, path: &str, accept: &str, range: Option<(u64, u64)>) -> Option<(u64, Vec<u8>)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.upstream)).ok()?;
        let range = range.map(|(first, last)| format!("Range: bytes={first}-{last}\r\n")).unwrap_or_default();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost:{}\r\nAccept: {accept}\r\nConnection: close\r\n{range}\r\n",
            self.upstream
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut reader = BufReader::new(stream);
        let (mut status, mut body_len, mut whole) = (String::new(), None, None);
        reader.read_line(&mut status).ok()?;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => body_len = value.parse::<usize>().ok(),
                "content-range" => whole = value.rsplit('/').next().and_then(|len| len.parse::<u64>().ok()),
                _ => {}
            }
        }
        if !status.contains(" 200 ") && !status.contains(" 206 ") {
            return None;
        }
        let mut bytes = vec![0; body_len?];
        reader.read_exact(&mut bytes).ok()?;
        Some((whole.unwrap_or(bytes.len() as u64), bytes))
    }
}

impl Asked {
    fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?;
        // The registry that is mirrored, in the parameter ns, is always the same one here.
        let path = path.split('?').next()?.to_owned();
        let (mut accept, mut range) = ("*/*".to_owned(), None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "accept" => value.clone_into(&mut accept),
                "range" => {
                    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                    range = Some((first.parse().ok()?, last.parse().ok()?));
                }
                _ => {}
            }
        }
        Some(Self { path, accept, range })
    }
}
