//! Whose bytes they are: the files of each layer that is read, from its metadata on this node.

use blobstore::layer::map_file;
use control::v1::{TraceEvent, TracedHead};
use erofs::{Files, Image};
use std::collections::HashMap;
use std::error::Error;
use std::fs::File;

/// The layers that are known so far.
#[derive(Default)]
pub(super) struct Names(HashMap<String, Files>);

/// A file that has some of an event's bytes, and how many.
pub(super) struct Named {
    pub(super) path: String,
    pub(super) bytes: u64,
}

impl Names {
    /// Reads a layer's tree. One that cannot be read leaves its files without names.
    pub(super) fn learn(&mut self, head: &TracedHead) {
        match files(head) {
            Ok(files) => drop(self.0.insert(head.layer.clone(), files)),
            Err(error) => tracing::warn!(layer = head.layer, error, "its files cannot be named"),
        }
    }

    /// The files whose bytes these are, in the order of where they lie.
    pub(super) fn of(&self, event: &TraceEvent) -> Vec<Named> {
        let range = event.offset..event.offset.saturating_add(event.bytes);
        let Some(files) = self.0.get(&event.layer) else { return Vec::new() };
        let mut named: Vec<Named> = Vec::new();
        for (path, bytes) in files.at(range) {
            let path = String::from_utf8_lossy(path);
            match named.last_mut() {
                // A file with holes has several places.
                Some(last) if last.path == path => last.bytes += bytes,
                _ => named.push(Named { path: path.into_owned(), bytes }),
            }
        }
        named
    }
}

fn files(head: &TracedHead) -> Result<Files, Box<dyn Error>> {
    if head.path.is_empty() {
        return Err("its metadata are not on this node".into());
    }
    let metadata = map_file(&File::open(&head.path)?, 0..head.length)?;
    Ok(Files::of(&Image::new(&metadata)?)?)
}
