//! A server in front of a registry, or alone: it passes requests on as they are, breaks them, or answers itself, and
//! remembers what it was asked. One request a connection.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// What TLS begins with; it is not spoken here.
const TLS_HANDSHAKE: u8 = 22;

/// A request's head.
#[derive(Debug, Clone)]
pub struct Request {
    /// GET and the like.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The header lines, as they came.
    pub head: String,
    /// Bytes of its body, by its header.
    pub length: u64,
    /// How many requests came before it.
    pub number: usize,
    /// When it came.
    pub at: Instant,
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// It is passed on.
    Pass,
    /// It is passed on, and the connection ends after so many bytes of the answer's body.
    CutAnswer(usize),
    /// The connection ends after so many bytes of the request's body were passed on.
    CutRequest(u64),
    /// So many bytes of the request's body are kept here, and the connection ends: the server in front is then one that
    /// lets uploads go on where they broke, which docker-registry 2.8 does not.
    Keep(u64),
    /// It is passed on, and the last byte of the answer is changed.
    Flip,
    /// It is passed on; after so many bytes of the answer's body nothing more comes before the client leaves.
    StallAnswer(usize),
    /// It is passed on, and the connection is reset after so many bytes of the answer's body.
    ResetAnswer(usize),
    /// It is not passed on: the connection is reset.
    Reset,
    /// It is not answered before the client leaves.
    Silence,
    /// These bytes are all that comes.
    Raw(&'static [u8]),
    /// It is answered here: status line, header lines, body.
    Reply(&'static str, Vec<String>, Vec<u8>),
    /// It is answered here, with a body whose length no header tells: it ends with the connection.
    Bare(Vec<u8>),
    /// It is answered here, by status line and body, with an answer that does not end before the client leaves.
    Hang(&'static str, &'static str),
}

/// The server; it runs as long as the process.
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    requests: Mutex<Vec<Request>>,
    /// Beginnings of uploads, by path.
    kept: Mutex<HashMap<String, Vec<u8>>>,
}

impl Request {
    /// The value of a header, if there is one.
    pub fn header(&self, name: &str) -> Option<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).next()
    }
}

impl Front {
    /// Starts one before `upstream`; `decide` says of each request what becomes of it.
    pub fn start(upstream: Option<SocketAddr>, decide: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<State> = Arc::default();
        let (shared, decide) = (state.clone(), Arc::new(decide));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (shared, decide) = (shared.clone(), decide.clone());
                thread::spawn(move || {
                    // A client that goes away is no fault here.
                    let _ = serve(client.unwrap(), upstream, &shared, &*decide);
                });
            }
        });
        Self { address, state }
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }
}

/// The next request on a connection.
pub(crate) fn request(client: &mut TcpStream) -> io::Result<Request> {
    let head = head(client)?;
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap_or_default());
    let mut request = Request { method, path, head, length: 0, number: 0, at: Instant::now() };
    request.length = request.header("content-length").map_or(0, |n| n.parse().unwrap());
    Ok(request)
}

fn serve(
    mut client: TcpStream,
    upstream: Option<SocketAddr>,
    state: &State,
    decide: &(dyn Fn(&Request) -> Answer + Send + Sync),
) -> io::Result<()> {
    let mut first = [0];
    client.peek(&mut first)?;
    if first == [TLS_HANDSHAKE] {
        return Ok(());
    }
    let mut request = request(&mut client)?;
    {
        let mut seen = state.requests.lock().unwrap();
        request.number = seen.len();
        seen.push(request.clone());
    }
    let mut kept = state.kept.lock().unwrap().remove(&request.path).unwrap_or_default();
    match decide(&request) {
        Answer::Keep(count) => {
            io::copy(&mut Read::by_ref(&mut client).take(count), &mut kept)?;
            state.kept.lock().unwrap().insert(request.path, kept);
            return client.shutdown(Shutdown::Both);
        }
        _ if request.method == "GET" && !kept.is_empty() => {
            let range = format!("Range: 0-{}\r\nLocation: {}", kept.len() - 1, request.path);
            state.kept.lock().unwrap().insert(request.path, kept);
            write!(client, "HTTP/1.1 204 No Content\r\n{range}\r\nConnection: close\r\n\r\n")?;
        }
        Answer::Reply(status, headers, body) => {
            io::copy(&mut Read::by_ref(&mut client).take(request.length), &mut io::sink())?;
            let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
            let length = body.len();
            write!(client, "HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
            if request.method != "HEAD" {
                client.write_all(&body)?;
            }
        }
        Answer::Bare(body) => {
            write!(client, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            client.write_all(&body)?;
        }
        Answer::Hang(status, body) => {
            io::copy(&mut Read::by_ref(&mut client).take(request.length), &mut io::sink())?;
            write!(client, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len() + 1)?;
            return io::copy(&mut client, &mut io::sink()).map(drop);
        }
        Answer::Silence => return io::copy(&mut client, &mut io::sink()).map(drop),
        Answer::Raw(bytes) => client.write_all(bytes)?,
        Answer::Reset => return reset(client),
        Answer::CutRequest(after) => {
            let mut server = connect(upstream, &request, 0)?;
            io::copy(&mut Read::by_ref(&mut client).take(after), &mut server)?;
            server.shutdown(Shutdown::Both)?;
        }
        answer => {
            let mut server = connect(upstream, &request, kept.len() as u64)?;
            server.write_all(&kept)?;
            io::copy(&mut Read::by_ref(&mut client).take(request.length), &mut server)?;
            let response = self::head(&mut server)?;
            let mut body = Vec::new();
            server.read_to_end(&mut body)?;
            match answer {
                Answer::CutAnswer(after) | Answer::StallAnswer(after) | Answer::ResetAnswer(after) => {
                    body.truncate(after)
                }
                Answer::Flip => {
                    // Some answers have no body.
                    if let Some(last) = body.last_mut() {
                        *last ^= 1;
                    }
                }
                _ => {}
            }
            client.write_all(response.as_bytes())?;
            client.write_all(&body)?;
            match answer {
                Answer::StallAnswer(_) => return io::copy(&mut client, &mut io::sink()).map(drop),
                Answer::ResetAnswer(_) => return reset(client),
                _ => {}
            }
        }
    }
    // Read what is left: a connection that is closed on unread bytes is reset, and takes the answer with it.
    client.shutdown(Shutdown::Write)?;
    io::copy(&mut client, &mut io::sink()).map(drop)
}

/// Ends a connection as a machine does that knows nothing of it (any more).
fn reset(client: TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO))?)
}

/// A connection on which the request's head was sent; its body is longer by `more` bytes.
fn connect(upstream: Option<SocketAddr>, request: &Request, more: u64) -> io::Result<TcpStream> {
    let mut server = TcpStream::connect(upstream.expect("a server to pass this on to"))?;
    let own = ["connection:", "content-length:", "content-range:"];
    let is_own = |line: &&str| own.iter().any(|name| line.to_ascii_lowercase().starts_with(name));
    let (first, rest) = request.head.split_once("\r\n").unwrap();
    let rest = rest.split("\r\n").filter(|line| !is_own(line)).collect::<Vec<_>>().join("\r\n");
    let length = request.length + more;
    write!(server, "{first}\r\nConnection: close\r\nContent-Length: {length}\r\n{rest}")?;
    Ok(server)
}

/// Everything up to the empty line, that one too.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap())
}
