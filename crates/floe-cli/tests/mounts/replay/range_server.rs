//! A web server with one file.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::PathBuf,
    thread,
};

/// Serves a file over HTTP, by ranges. Returns its URL.
pub(crate) fn serve_over_http(file: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let bytes: &'static [u8] = fs::read(file).expect("it is there").leak();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                let mut stream = stream;
                loop {
                    let (mut range, mut method) = (None, String::new());
                    loop {
                        let mut line = String::new();
                        if !matches!(reader.read_line(&mut line), Ok(1..)) {
                            return;
                        }
                        let line = line.trim_end().to_ascii_lowercase();
                        match line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
                            _ if line.is_empty() => break,
                            Some((from, to)) => range = from.parse::<usize>().ok().zip(to.parse::<usize>().ok()),
                            None if method.is_empty() => method = line,
                            None => {}
                        }
                    }
                    let (from, to) = range.unwrap_or((0, usize::MAX));
                    let to = to.min(bytes.len() - 1);
                    let (status, part) = match range {
                        Some(_) => ("206 Partial Content", &bytes[from..=to]),
                        None => ("200 OK", bytes),
                    };
                    let head = format!(
                        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{to}/{}\r\nETag: \"one\"\r\n\
                         Accept-Ranges: bytes\r\n\r\n",
                        part.len(),
                        bytes.len()
                    );
                    let body = if method.starts_with("head") { &[][..] } else { part };
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("http://{address}/image.erofs")
}
