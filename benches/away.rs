//! A bucket some milliseconds away: an S3 server on loopback, and before it a proxy that holds every request for a while.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tests::s3::{S3, section};

/// Lamina's place in the bucket.
pub const STORE: &str = "s3://bucket/lamina";

/// The server, and the proxy, which runs as long as the process.
pub struct Away {
    s3: S3,
    proxy: SocketAddr,
}

impl Away {
    /// Starts both; `None` after saying so where there is no S3 server.
    pub fn start(bench: &str, latency: Duration) -> Option<Self> {
        let s3 = S3::start(bench)?;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, proxy) = (s3.address, listener.local_addr().unwrap());
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                // A client that goes away is no fault here.
                thread::spawn(move || drop(serve(&client, server, latency)));
            }
        });
        Some(Self { s3, proxy })
    }

    /// Configuration of a store that is there at once.
    pub fn near(&self) -> String {
        section(self.s3.address)
    }

    /// Configuration of the same store behind the proxy.
    pub fn far(&self) -> String {
        section(self.proxy)
    }

    /// Where the server keeps what is below [`STORE`].
    pub fn files(&self) -> PathBuf {
        self.s3.file("bucket", "lamina")
    }
}

/// One connection. On it a client has one request under way, and a request without a body comes in one piece: what is held
/// is each piece.
fn serve(client: &TcpStream, server: SocketAddr, latency: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut to = client;
            let _ = copy(&mut &server, &mut to, Duration::ZERO);
            client.shutdown(Shutdown::Both)
        });
        let mut from = client;
        let _ = copy(&mut from, &mut &server, latency);
        server.shutdown(Shutdown::Both)
    })
}

fn copy(from: &mut impl Read, to: &mut impl Write, held: Duration) -> io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            length => {
                thread::sleep(held);
                to.write_all(&buffer[..length])?;
            }
        }
    }
}
