//! A static web server over a directory: whole files, ranges, entity tags; no listings.

use crate::front::{self, Answer, Front, Request};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;

/// Serves `root`; `ranges`: also parts of files.
pub fn serve(root: &Path, ranges: bool) -> Front {
    let root = root.to_owned();
    Front::start(None, move |request| answer(&root, request, ranges))
}

/// Serves `root` as [`serve`] does with ranges, many requests a connection.
pub fn serve_on(root: &Path) -> SocketAddr {
    let (listener, root) = (TcpListener::bind("127.0.0.1:0").unwrap(), root.to_owned());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, root) = (client.unwrap(), root.clone());
            client.set_nodelay(true).unwrap();
            thread::spawn(move || while converse(&mut client, &root).is_some() {});
        }
    });
    address
}

/// One request and its answer; `None` at the end of the connection.
fn converse(client: &mut TcpStream, root: &Path) -> Option<()> {
    let request = front::request(client).ok()?;
    let Answer::Reply(status, headers, body) = answer(root, &request, true) else { return None };
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    client.write_all(&[head.as_bytes(), &body].concat()).ok()
}

/// What such a server says to a request.
pub fn answer(root: &Path, request: &Request, ranges: bool) -> Answer {
    let none = |status| Answer::Reply(status, vec![], vec![]);
    if !matches!(&*request.method, "GET" | "HEAD") {
        return none("405 Method Not Allowed");
    }
    let path = root.join(decoded(request.path.trim_start_matches('/')));
    if path.is_dir() {
        return Answer::Reply("301 Moved Permanently", vec![format!("Location: {}/", request.path)], vec![]);
    }
    let Ok(body) = fs::read(&path) else { return none("404 Not Found") };
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    let tag = format!("\"{:x}\"", hasher.finish());
    if request.header("if-match").is_some_and(|wanted| wanted != tag) {
        return none("412 Precondition Failed");
    }
    let mut headers = vec![format!("ETag: {tag}"), "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT".to_owned()];
    let Some(range) = request.header("range").filter(|_| ranges) else {
        return Answer::Reply("200 OK", headers, body);
    };
    let (start, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let (start, last) = (start.parse::<usize>().unwrap(), last.parse::<usize>().unwrap().min(body.len().max(1) - 1));
    if start >= body.len() {
        return none("416 Range Not Satisfiable");
    }
    headers.push(format!("Content-Range: bytes {start}-{last}/{}", body.len()));
    Answer::Reply("206 Partial Content", headers, body[start..=last].to_vec())
}

fn decoded(path: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).unwrap().into()
}
