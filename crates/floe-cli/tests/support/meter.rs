//! A proxy that counts what a server sends.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// A proxy to one server on this machine. It runs until the test program ends.
pub(crate) struct Meter {
    /// The port for clients.
    pub(crate) port: u16,
    sent: Arc<AtomicU64>,
}

impl Meter {
    /// A proxy to the server that listens on `upstream`.
    pub(crate) fn before(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                let [to_server, to_client] = [(&client, &server), (&server, &client)]
                    .map(|(from, to)| (from.try_clone().expect("cloned"), to.try_clone().expect("cloned")));
                let counter = Arc::clone(&counter);
                thread::spawn(move || copy(to_server, |_| ()));
                thread::spawn(move || {
                    copy(to_client, |bytes| {
                        counter.fetch_add(bytes, Relaxed);
                    })
                });
            }
        });
        Self { port, sent }
    }

    /// The number of bytes that the server has sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

fn copy((mut from, mut to): (TcpStream, TcpStream), count: impl Fn(u64)) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        count(len as u64);
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
