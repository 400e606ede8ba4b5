//! A web server for files of this machine.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use crate::task_error::Outcome;

/// The number of bytes that are read from a file at a time.
const PIECE_BYTES: u64 = 256 << 10;

/// The maximum number of components of a path: the root, `v2`, a repository, `blobs`, and the digest of a blob.
const PATH_COMPONENTS_MAX: usize = 5;

/// Serves the files of a directory with range requests, over connections that stay open. It is also the endpoint of an object store,
/// where each file is an object of a bucket with any name, and signatures are not checked; and a registry, where each file is a blob
/// of a repository with any name, and has its digest as its name.
pub(super) struct WebServer {
    address: SocketAddr,
    is_ending: Arc<AtomicBool>,
}

impl WebServer {
    /// Serves the files in `folder`.
    pub(super) fn new(folder: &Path) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let is_ending = Arc::new(AtomicBool::new(false));
        let (folder, ends) = (folder.to_owned(), Arc::clone(&is_ending));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ends.load(Relaxed) {
                    return;
                }
                let folder = folder.clone();
                thread::spawn(move || serve(&client, &folder));
            }
        });
        Ok(Self { address, is_ending })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Lets `program` find the server at `address` as an object store. Returns the URL of a file there.
pub(super) fn as_object_store(program: &mut Command, address: SocketAddr, file: &str) -> String {
    let endpoint = format!("http://{address}");
    program.envs([("AWS_ENDPOINT_URL_S3", endpoint.as_str()), ("AWS_REGION", "bench")]);
    program.envs([("AWS_ACCESS_KEY_ID", "bench"), ("AWS_SECRET_ACCESS_KEY", "bench")]);
    format!("s3://bench/{file}")
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.is_ending.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

/// Answers the requests of one connection. An error ends it.
fn serve(client: &TcpStream, folder: &Path) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut lines = BufReader::new(client).lines();
    loop {
        let request = lines.next()?.ok()?;
        let mut range = None;
        loop {
            let line = lines.next()?.ok()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            range = line.strip_prefix("range: bytes=").map(str::to_owned).or(range);
        }
        answer(client, &request, range.as_deref(), folder)?;
    }
}

fn answer(mut client: &TcpStream, request: &str, range: Option<&str>, folder: &Path) -> Option<()> {
    let mut words = request.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let path = Path::new(path.split('?').next()?);
    let is_near = path.components().count() <= PATH_COMPONENTS_MAX;
    let name = path.file_name().filter(|_| is_near).and_then(|name| name.to_str());
    let name = name.map(|name| name.strip_prefix("sha256:").unwrap_or(name));
    let file = name.and_then(|name| File::open(folder.join(name)).ok());
    let Some(file) = file else {
        return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok();
    };
    let len = file.metadata().ok()?.len();
    let (first, end) = match range.and_then(|range| range.split_once('-')) {
        Some((first, last)) => {
            let last = last.parse().unwrap_or(u64::MAX);
            (first.parse().ok()?, len.min(last.saturating_add(1)))
        }
        None => (0, len),
    };
    let status = match range {
        Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {first}-{}/{len}", end.checked_sub(1)?),
        None => "200 OK".to_owned(),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nETag: \"{len}\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\r\n",
        end.checked_sub(first)?
    );
    client.write_all(head.as_bytes()).ok()?;
    if method == "HEAD" {
        return Some(());
    }
    let mut piece = vec![0; PIECE_BYTES as usize];
    for offset in (first..end).step_by(PIECE_BYTES as usize) {
        let piece = &mut piece[..(end - offset).min(PIECE_BYTES) as usize];
        file.read_exact_at(piece, offset).ok()?;
        client.write_all(piece).ok()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader, Read, Write},
        net::TcpStream,
    };

    use super::WebServer;

    /// The status of the answer to a request for bytes 2 to 4 of a path, and its body.
    fn answer(server: &WebServer, path: &str) -> (String, Vec<u8>) {
        let mut stream = BufReader::new(TcpStream::connect(server.address()).expect("connected"));
        write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nRange: bytes=2-4\r\n\r\n").expect("sent");
        let (mut lines, mut len) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("answered");
            if line == "\r\n" {
                break;
            }
            len = line.strip_prefix("Content-Length: ").map_or(len, |len| len.trim().parse().expect("a number"));
            lines.push(line);
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body).expect("read");
        (lines[0].split(' ').nth(1).unwrap_or_default().to_owned(), body)
    }

    #[test]
    fn files_are_objects_and_blobs_too() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), "0123456789").expect("written");
        let server = WebServer::new(folder.path()).expect("started");
        for path in ["/file", "/bucket/file", "/v2/repository/blobs/sha256:file"] {
            assert_eq!(answer(&server, path), ("206".to_owned(), b"234".to_vec()), "{path}");
        }
        for path in ["/other", "/v2/repository/blobs/sha256:other", "/one/two/three/four/file"] {
            assert_eq!(answer(&server, path), ("404".to_owned(), Vec::new()), "{path}");
        }
    }
}
