//! A way to a server that forgets its connections, as firewalls and NATs do: what is sent on those that are there is swallowed from
//! then on, both ways, and nobody is told. New ones work.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

/// See the module; it is there as long as the process.
pub struct Wire {
    /// Where it begins.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Connections so far.
    made: AtomicUsize,
    /// The first of those that are not forgotten.
    living: AtomicUsize,
}

impl Wire {
    /// A way to a server.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::<State>::default());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let number = shared.made.fetch_add(1, SeqCst);
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to, state) = (from.try_clone().unwrap(), to.try_clone().unwrap(), shared.clone());
                    thread::spawn(move || carry(from, to, number, &state));
                }
            }
        });
        Self { address, state }
    }

    /// Forgets all connections that are there; gives how many there have been.
    pub fn forget(&self) -> usize {
        let made = self.made();
        self.state.living.store(made, SeqCst);
        made
    }

    /// Connections so far.
    pub fn made(&self) -> usize {
        self.state.made.load(SeqCst)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, number: usize, state: &State) {
    let mut buffer = vec![0; 64 << 10];
    to.set_nodelay(true).unwrap();
    // What it has read of a forgotten connection it acknowledges, and throws away; nor is its end told.
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if state.living.load(SeqCst) <= number && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    if state.living.load(SeqCst) <= number {
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
}
