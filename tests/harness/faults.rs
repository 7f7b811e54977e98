//! What can be wrong with a store on the network, one fault a row, and what a reader of it is to see; and servers that have
//! it: a bucket's, and one of files.

use crate::front::{Answer, Front, Request};
use crate::s3::{self, S3};
use crate::web;
use blobstore::fetch::FetchKind;
use blobstore::store::{Settings, Store, open_with};
use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// What speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// `s3://`.
    Bucket,
    /// `http://`.
    Web,
}

/// A fault, and what becomes of a read that meets it.
pub struct Fault {
    /// What it is.
    pub name: &'static str,
    /// What is answered.
    pub answer: fn(&Asked) -> Answer,
    /// Whether a read that meets it once is served by another request; else it fails.
    pub passes: bool,
    /// Of a store that has it all the time: what a read fails with.
    pub kind: FetchKind,
    /// And after how many attempts: 4 where it should not be, 1 where it will be the same again, 0 at the deadline.
    pub attempts: u32,
    /// And what the error's text has of the cause: of a bucket, of a web server.
    pub says: [&'static str; 2],
}

/// A request for a part of an object.
pub struct Asked {
    /// Which part.
    pub range: Range<usize>,
    /// The whole object.
    pub object: Arc<Vec<u8>>,
}

impl Asked {
    /// The right answer, but for the part that it says to be and the bytes that it is.
    fn part(&self, range: &Range<usize>, body: Vec<u8>) -> Answer {
        let said = format!("Content-Range: bytes {}-{}/{}", range.start, range.end - 1, self.object.len());
        let date = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT".to_owned();
        Answer::Reply("206 Partial Content", vec![said, date, "ETag: \"x\"".to_owned()], body)
    }

    fn right(&self) -> Vec<u8> {
        self.object[self.range.clone()].to_vec()
    }
}

/// A refusal in S3's words, with a header.
fn refuse(status: &'static str, code: &str, header: &str) -> Answer {
    let body = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>because</Message></Error>");
    let headers = [header].into_iter().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    Answer::Reply(status, headers, body.into_bytes())
}

/// Every row. Of those that end at the deadline some know more than that nothing came.
pub const FAULTS: &[Fault] = &[
    Fault {
        name: "200 and the whole object for a range",
        answer: |asked| {
            let date = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT".to_owned();
            Answer::Reply("200 OK", vec![date, "ETag: \"x\"".to_owned()], asked.object.to_vec())
        },
        passes: true,
        kind: FetchKind::Answer,
        attempts: 4,
        says: ["range", "one that serves ranges is needed"],
    },
    Fault {
        name: "a body that is shorter than its range",
        answer: |asked| asked.part(&asked.range, asked.right()[..asked.range.len() / 2].to_vec()),
        passes: true,
        kind: FetchKind::Answer,
        attempts: 4,
        says: ["the body ended after", "the body ended after"],
    },
    Fault {
        name: "a body without bytes",
        answer: |asked| asked.part(&asked.range, Vec::new()),
        passes: true,
        kind: FetchKind::Answer,
        attempts: 4,
        says: ["the body ended after 0 of", "the body ended after 0 of"],
    },
    Fault {
        name: "a body that is longer than its range",
        answer: |asked| asked.part(&asked.range, [asked.right(), vec![7]].concat()),
        passes: true,
        kind: FetchKind::Answer,
        attempts: 4,
        says: ["more than the", "more than the"],
    },
    Fault {
        name: "a wrong byte",
        answer: |_| Answer::Flip,
        passes: true,
        kind: FetchKind::Verify,
        attempts: 4,
        says: ["BLAKE3", "BLAKE3"],
    },
    Fault {
        name: "bytes of elsewhere",
        answer: |asked| asked.part(&asked.range, vec![0x55; asked.range.len()]),
        passes: true,
        kind: FetchKind::Verify,
        attempts: 4,
        says: ["BLAKE3", "BLAKE3"],
    },
    Fault {
        name: "another range",
        answer: |asked| asked.part(&(asked.range.start + 1..asked.range.end + 1), asked.right()),
        passes: true,
        kind: FetchKind::Answer,
        attempts: 4,
        says: ["Requested", "bytes"],
    },
    Fault {
        name: "a part that does not say which",
        answer: |asked| Answer::Reply("206 Partial Content", vec![], asked.right()),
        passes: true,
        kind: FetchKind::Answer,
        attempts: 4,
        says: ["Content-Range", "without saying which"],
    },
    Fault {
        name: "403",
        answer: |_| refuse("403 Forbidden", "AccessDenied", ""),
        passes: true,
        kind: FetchKind::Denied,
        attempts: 4,
        says: ["403 Forbidden: AccessDenied: because", "403 Forbidden"],
    },
    Fault {
        name: "404",
        answer: |_| refuse("404 Not Found", "NoSuchKey", ""),
        passes: false,
        kind: FetchKind::NotFound,
        attempts: 1,
        says: ["no such object", "no such object"],
    },
    Fault {
        name: "404, the bucket",
        answer: |_| refuse("404 Not Found", "NoSuchBucket", ""),
        passes: false,
        kind: FetchKind::NotFound,
        attempts: 1,
        says: ["there is no such bucket", "no such"],
    },
    Fault {
        name: "429 and soon",
        answer: |_| refuse("429 Too Many Requests", "SlowDown", "Retry-After: 1"),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["429 Too Many Requests: SlowDown", "429 Too Many Requests"],
    },
    Fault {
        name: "503 and much later",
        answer: |_| refuse("503 Service Unavailable", "SlowDown", "Retry-After: 120"),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 2,
        says: ["503 Service Unavailable: SlowDown", "503 Service Unavailable"],
    },
    Fault {
        name: "500",
        answer: |_| refuse("500 Internal Server Error", "InternalError", ""),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["500 Internal Server Error: InternalError", "500 Internal Server Error"],
    },
    Fault {
        name: "a reset before the answer",
        answer: |_| Answer::Reset,
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["reset", "reset"],
    },
    Fault {
        name: "a reset within the body",
        answer: |_| Answer::ResetAnswer(100),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["reset", "reset"],
    },
    Fault {
        name: "a connection that ends within the body",
        answer: |_| Answer::CutAnswer(100),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["body", "body"],
    },
    Fault {
        name: "an end before the answer",
        answer: |_| Answer::Raw(b""),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["connection closed", "connection closed"],
    },
    Fault {
        name: "what is no answer",
        answer: |_| Answer::Raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"),
        passes: true,
        kind: FetchKind::Transport,
        attempts: 0,
        says: ["invalid HTTP", "invalid HTTP"],
    },
    Fault {
        name: "no answer",
        answer: |_| Answer::Silence,
        passes: true,
        kind: FetchKind::Timeout,
        attempts: 0,
        says: ["nothing came within", "nothing came within"],
    },
    Fault {
        name: "a stall within the body",
        answer: |_| Answer::StallAnswer(100),
        passes: true,
        kind: FetchKind::Timeout,
        attempts: 0,
        says: ["nothing came within", "nothing came within"],
    },
];

/// A server with objects, and nothing wrong with it.
pub struct Upstream {
    backend: Backend,
    address: SocketAddr,
    root: PathBuf,
    _bucket: Option<S3>,
    _directory: Option<tempfile::TempDir>,
}

impl Upstream {
    /// Starts one; `None` after saying so where it is missing.
    pub fn start(backend: Backend, test: &str) -> Option<Self> {
        match backend {
            Backend::Bucket => {
                let bucket = S3::start(test)?;
                let (address, root) = (bucket.address, bucket.file("bucket", "lamina"));
                Some(Self { backend, address, root, _bucket: Some(bucket), _directory: None })
            }
            Backend::Web => {
                let directory = tempfile::tempdir().unwrap();
                let (address, root) = (web::serve(directory.path(), true).address, directory.path().to_owned());
                Some(Self { backend, address, root, _bucket: None, _directory: Some(directory) })
            }
        }
    }

    /// What it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The file in which it keeps an object.
    pub fn file(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Makes an object.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        crate::tree::write(&self.file(key), bytes);
    }

    /// A server before it that does to each request for a part of an object what `decide` says, if anything.
    pub fn before(&self, decide: impl Fn(&Request, &Asked) -> Option<Answer> + Send + Sync + 'static) -> Front {
        let (root, of_bucket) = (self.root.clone(), self.backend == Backend::Bucket);
        Front::start(Some(self.address), move |request| {
            let key = request.path.trim_start_matches('/');
            let key = if of_bucket { key.trim_start_matches("bucket/lamina/") } else { key };
            let object = request.header("range").and_then(|range| Some((range, fs::read(root.join(key)).ok()?)));
            let Some((range, object)) = object.filter(|_| request.method == "GET") else { return Answer::Pass };
            let (start, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let range = start.parse().unwrap()..last.parse::<usize>().unwrap() + 1;
            decide(request, &Asked { range, object: Arc::new(object) }).unwrap_or(Answer::Pass)
        })
    }

    /// The same with a fault that the first so many requests for parts meet. The number can be changed.
    pub fn with(&self, fault: &'static Fault, faulty: &Arc<AtomicUsize>) -> Front {
        let left = faulty.clone();
        self.before(move |_, asked| {
            let one_less = |left: usize| left.checked_sub(1);
            left.fetch_update(SeqCst, SeqCst, one_less).ok().map(|_| (fault.answer)(asked))
        })
    }

    /// The URL of the store at a server before it.
    pub fn url(&self, address: SocketAddr) -> String {
        match self.backend {
            Backend::Bucket => "s3://bucket/lamina".to_owned(),
            Backend::Web => format!("http://{address}"),
        }
    }

    /// The store at a server before it.
    pub fn store(&self, address: SocketAddr) -> Arc<dyn Store> {
        let settings = match self.backend {
            Backend::Bucket => s3::settings(address),
            Backend::Web => Settings::default(),
        };
        open_with(&self.url(address), &settings).unwrap()
    }

    /// What the configuration needs besides for the store at a server before it.
    pub fn section(&self, address: SocketAddr) -> String {
        match self.backend {
            Backend::Bucket => s3::section(address),
            Backend::Web => String::new(),
        }
    }
}
