//! A network between a server on this machine and its clients: a round trip time, and a bandwidth that all connections
//! share.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use floe_sync::Mutex;

use crate::task_error::{Outcome, TaskError};

/// The maximum number of bytes in one piece.
const PIECE_BYTES: usize = 32 << 10;

/// A proxy that delays the bytes it forwards. Each piece arrives half a round trip after the line has carried it, and the
/// line carries one piece after another. A new connection takes one more round trip before its first byte, like a handshake.
/// Slow start and loss are not simulated.
pub(in crate::bench) struct Link {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    server: SocketAddr,
    one_way: Duration,
    bytes_per_s: f64,
    /// The time at which the line to the clients has carried all bytes so far.
    busy_until: Mutex<Instant>,
    requests: AtomicU64,
    bytes: AtomicU64,
    connections: AtomicU64,
    is_ending: AtomicBool,
    /// If requests are printed, the time that they are relative to.
    traced_since: Option<Instant>,
}

/// Counts of the traffic.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::bench) struct Passed {
    pub(in crate::bench) requests: u64,
    /// Bytes to the clients, including the heads of answers.
    pub(in crate::bench) bytes: u64,
    pub(in crate::bench) connections: u64,
}

impl Passed {
    /// The traffic since an earlier count.
    pub(in crate::bench) const fn since(self, earlier: Self) -> Self {
        Self {
            requests: self.requests - earlier.requests,
            bytes: self.bytes - earlier.bytes,
            connections: self.connections - earlier.connections,
        }
    }
}

type Piece = (Instant, Vec<u8>);

impl Link {
    /// A link to the server at `server`, with this round trip time, and this bandwidth in Mbit/s. If `is_traced`, it prints
    /// each request with its time.
    pub(in crate::bench) fn new(
        server: SocketAddr,
        round_trip: Duration,
        mbit_per_s: f64,
        is_traced: bool,
    ) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            server,
            one_way: round_trip / 2,
            bytes_per_s: mbit_per_s * 1e6 / 8.0,
            busy_until: Mutex::new(Instant::now()),
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
            traced_since: is_traced.then(Instant::now),
        });
        let accepting = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.is_ending.load(Relaxed) {
                    return;
                }
                let state = Arc::clone(&accepting);
                thread::spawn(move || state.connect(&client));
            }
        });
        Ok(Self { address, state })
    }

    /// The host and the port that clients connect to.
    pub(in crate::bench) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Downloads parts of a file of these sizes through the link, one after the other over one connection, into `output`.
    pub(in crate::bench) fn download(&self, name: &str, parts: &[u64], output: &mut impl Write) -> Outcome {
        let mut server = BufReader::new(TcpStream::connect(self.address)?);
        server.get_ref().set_nodelay(true)?;
        let mut offset = 0;
        for part in parts {
            let range = format!("bytes={offset}-{}", offset + part - 1);
            write!(server.get_mut(), "GET /{name} HTTP/1.1\r\nHost: link\r\nRange: {range}\r\n\r\n")?;
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if server.read_line(&mut line)? == 0 {
                    return Err(TaskError::new("the server closed the connection"));
                }
            }
            io::copy(&mut server.by_ref().take(*part), output)?;
            offset += part;
        }
        Ok(())
    }

    /// The traffic so far.
    pub(in crate::bench) fn passed(&self) -> Passed {
        let State { requests, bytes, connections, .. } = &*self.state;
        Passed { requests: requests.load(Relaxed), bytes: bytes.load(Relaxed), connections: connections.load(Relaxed) }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.is_ending.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn connect(self: &Arc<Self>, client: &TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        self.connections.fetch_add(1, Relaxed);
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let handshake_until = Instant::now() + 2 * self.one_way;
        thread::scope(|scope| {
            let (up, from_client) = channel();
            let (down, from_server) = channel();
            let server = &server;
            scope.spawn(move || deliver(&from_client, server));
            scope.spawn(move || deliver(&from_server, client));
            scope.spawn(|| {
                self.carry(client, up, |piece| {
                    // Clients send one request at a time, and none has a body.
                    if piece.starts_with(b"GET ") || piece.starts_with(b"HEAD ") {
                        self.requests.fetch_add(1, Relaxed);
                        self.trace(piece);
                    }
                    Instant::now().max(handshake_until)
                });
            });
            self.carry(server, down, |piece| {
                self.bytes.fetch_add(piece.len() as u64, Relaxed);
                let mut busy_until = self.busy_until.lock();
                let takes = Duration::from_secs_f64(piece.len() as f64 / self.bytes_per_s);
                *busy_until = (*busy_until).max(Instant::now()) + takes;
                *busy_until
            });
        });
    }

    /// Prints the path and the range of a request.
    fn trace(&self, request: &[u8]) {
        let Some(since) = self.traced_since else { return };
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let range = text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("range: ").map(str::to_owned));
        eprintln!("{:7.1} ms  {path}  {}", since.elapsed().as_secs_f64() * 1e3, range.unwrap_or_default());
    }

    /// Reads the bytes of one side; `sent` is the time at which the line has carried a piece.
    fn carry(&self, mut from: &TcpStream, to: Sender<Piece>, sent: impl Fn(&[u8]) -> Instant) {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(len) = from.read(&mut piece) {
            let bytes = &piece[..len];
            let carried = sent(bytes);
            if len == 0 || to.send((carried + self.one_way, bytes.to_vec())).is_err() {
                return;
            }
            // No sender is more than a round trip ahead of the line.
            thread::sleep(carried.saturating_duration_since(Instant::now() + 2 * self.one_way));
        }
    }
}

/// Writes pieces at the times of their arrival.
fn deliver(pieces: &Receiver<Piece>, mut to: &TcpStream) {
    while let Ok((arrives, bytes)) = pieces.recv() {
        thread::sleep(arrives.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
