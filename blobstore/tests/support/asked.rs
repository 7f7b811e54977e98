//! A store whose requests are written down, for tests of who asks it for what, and when.

use super::node::{self, MS};
use blobstore::fetch::{Fetcher, Hedge, Layer, Options};
use blobstore::store::{Action, Fault, Request, Store};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A store with two layers, whose requests are written down.
pub struct Setup {
    pub dir: TempDir,
    pub layers: [Layer; 2],
    pub contents: [Vec<Vec<u8>>; 2],
    pub asked: Arc<Mutex<Vec<Request>>>,
}

impl Setup {
    pub async fn new(chunks: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let contents = [0, 100_000].map(|base| (0..chunks).map(|n| node::content(base + n)).collect::<Vec<_>>());
        let mut layers = Vec::new();
        for chunks in &contents {
            layers.push(node::add(dir.path(), chunks, &[1; 4096]).await.0);
        }
        Self { dir, layers: layers.try_into().unwrap(), contents, asked: Arc::default() }
    }

    pub fn fault(&self, action: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Arc<Fault> {
        let asked = self.asked.clone();
        Arc::new(Fault::new(node::store(self.dir.path()), move |request| {
            asked.lock().unwrap().push(request.clone());
            action(request)
        }))
    }

    /// Without a chunk cache.
    pub fn fetcher(&self, options: Options, action: impl Fn(&Request) -> Action + Send + Sync + 'static) -> Fetcher {
        self.fetcher_from(self.fault(action), options)
    }

    pub fn fetcher_from(&self, store: Arc<dyn Store>, options: Options) -> Fetcher {
        node::uncached(self.dir.path(), store, options)
    }

    /// Layer and chunks of each request so far.
    pub fn requests(&self) -> Vec<(usize, Vec<u32>)> {
        let asked = self.asked.lock().unwrap();
        let of = |request: &Request| {
            let layer = self.layers.iter().position(|l| l.key == request.key).unwrap();
            let range = request.range.clone().unwrap();
            let within = |at: &blobstore::layer::Located| range.contains(&at.file_offset);
            (layer, self.layers[layer].index.chunks().filter(within).map(|at| at.chunk).collect())
        };
        asked.iter().map(of).collect()
    }

    /// Begins to read a chunk; its bytes are checked.
    pub fn read(&self, fetcher: &Fetcher, layer: usize, chunk: u32) -> tokio::task::JoinHandle<()> {
        let (fetcher, of) = (fetcher.clone(), self.layers[layer].clone());
        let expected = self.contents[layer][chunk as usize].clone();
        tokio::spawn(async move { assert_eq!(fetcher.get(&of, chunk).await.unwrap()[..], expected) })
    }

    pub async fn wait_for(&self, requests: usize) {
        while self.asked.lock().unwrap().len() < requests {
            tokio::time::sleep(MS).await;
        }
    }
}

pub fn quick() -> Options {
    Options { pause: MS, neighbours: false, hedge: Hedge::Off, ..Options::default() }
}

/// One request at a time, the first of which takes long: what comes meanwhile waits in the queue.
pub fn one_at_a_time() -> Options {
    Options { concurrency: 1, ..quick() }
}

pub fn first_stalls(request: &Request) -> Action {
    if request.number == 0 { Action::Stall(150 * MS) } else { Action::Pass }
}
