//! One layer, from its input to a layer file in the stage.

use crate::assume::{AssumeList, assume};
use crate::below::Below;
use crate::chunk_size::ChunkSize;
use crate::entries::{read_directory, read_entries};
use crate::error::{Error, Result};
use crate::limits::LISTED;
use crate::metadata;
use crate::pack::{Contents, First, Plan, Spool, plan};
use crate::source::{Headers, InPlace, LayerBlob, LayerStream, OpenBlob, ReadSums, Reading};
use crate::stored::StoredContents;
use crate::tar::Reader;
use crate::tree::{Settled, Upper};
use blobstore::layer::{Flags, Front, Options as WriterOptions, Section, Summary, WRITER_GENERATION, Writer, format};
use blobstore::refs::{Assume, Digest, StackEntry, layer_key};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;

/// Name of a layer file that is being written.
pub(crate) const PART: &str = "part";

/// How layers are made.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// zstd's level.
    pub(crate) level: i32,
    /// Threads that compress.
    pub(crate) threads: usize,
    /// The chunk size that is aimed at.
    pub(crate) chunk_size: ChunkSize,
    /// Files whose contents come first.
    pub(crate) first: Option<Arc<First>>,
    /// Directory for what is on the way: spools, and layer files under their keys.
    pub(crate) stage: PathBuf,
}

/// What a layer is made of.
pub(crate) enum Input {
    /// A layer of an image, and what its documents say of the blob.
    Layer(OpenBlob, LayerBlob),
    /// A tar that is no image's, perhaps compressed; whether it keeps its whiteouts and opaque marks.
    Tar { blob: OpenBlob, keep_marks: bool },
    /// A directory.
    Directory(PathBuf),
}

/// A layer in the stage, and what the work directory keeps of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) entry: StackEntry,
    /// Bytes of its data, decompressed.
    pub(crate) data_bytes: u64,
    pub(crate) chunks: u32,
    /// What it took from below.
    pub(crate) assumes: AssumeList,
    pub(crate) warnings: Vec<String>,
    /// Digests and sizes of a tar.
    pub(crate) sums: Option<ReadSums>,
    pub(crate) entries: u64,
    pub(crate) deduplicated: u64,
    /// It has marks for what it will be stacked on, so that it is not what the same tar is as an image's layer.
    /// Only layers of images are kept.
    #[serde(skip)]
    pub(crate) marks: bool,
}

/// Makes a layer over what lies below it; also gives its metadata, checked. Blocks; not for the runtime's own threads.
pub(crate) fn build(input: Input, below: &Below, settings: &Settings, runtime: &Handle) -> Result<(Made, Bytes)> {
    let started = Instant::now();
    let mut spool = Spool::new(&settings.stage)?;
    let mut upper = Upper::new();
    let (entries, sums) = match input {
        Input::Layer(blob, layer) => read_tar(blob, Some(layer), &mut upper, &mut spool)?,
        Input::Tar { blob, keep_marks } => {
            if keep_marks {
                upper.keep_marks();
            }
            read_tar(blob, None, &mut upper, &mut spool)?
        }
        Input::Directory(path) => (read_directory(&path, &mut upper, &mut spool)?, Sums::None),
    };
    tracing::debug!(entries, spooled = spool.stored(), ms = started.elapsed().as_millis(), "layer read");
    let collected = Collected::of(&upper, spool)?;
    let made = upper.settle(&below.merged).and_then(|mut settled| {
        let assumes = AssumeList::write(std::mem::take(&mut settled.assumes).into_iter().map(assume), LISTED)?;
        let contents = collected.complete(&mut settled, below, runtime)?;
        finish(settled, assumes, contents, settings)
    });
    match made {
        Ok((made, metadata)) => Ok((Made { sums: sums.take()?, entries, ..made }, metadata)),
        Err(error) => Err(sums.blame(error)),
    }
}

/// Makes the layer of what is decided already, whose contents lie in layers of `below`. Blocks.
pub(crate) fn assemble(
    mut settled: Settled,
    assumes: Vec<Assume>,
    below: &Below,
    settings: &Settings,
    runtime: &Handle,
) -> Result<Made> {
    let entries = settled.tree.walk().count() as u64;
    let assumes = AssumeList::write(assumes, LISTED)?;
    let contents = Collected::Open(Spool::new(&settings.stage)?).complete(&mut settled, below, runtime)?;
    let (made, _) = finish(settled, assumes, contents, settings)?;
    Ok(Made { entries, ..made })
}

/// The contents of a layer that was read, before it is settled.
enum Collected {
    /// Some may have to be copied from below.
    Open(Spool),
    All(Contents),
}

impl Collected {
    /// What finds equal contents takes memory, and so does what follows: where nothing can be copied from below, it goes now.
    fn of(upper: &Upper, spool: Spool) -> Result<Self> {
        match upper.may_copy() {
            true => Ok(Self::Open(spool)),
            false => spool.complete().map(Self::All),
        }
    }

    /// With the files that the layer takes from below, which are among the layer's own then.
    fn complete(self, settled: &mut Settled, below: &Below, runtime: &Handle) -> Result<Contents> {
        let copies = std::mem::take(&mut settled.copies);
        match self {
            Self::All(contents) if copies.is_empty() => Ok(contents),
            // Cannot happen: see `Upper::may_copy`.
            Self::All(_) => Err(Error::failed("copying files from below", "the layer has no links to any")),
            Self::Open(mut spool) => {
                let mut stored = StoredContents::new(below.layers(), runtime);
                for (node, from) in copies {
                    settled.contents.push((node, stored.copy(&from, &mut spool)?));
                }
                drop(stored);
                spool.complete()
            }
        }
    }
}

/// Makes the layer file of a layer that is decided, and whose files' contents are all there.
fn finish(settled: Settled, assumes: AssumeList, contents: Contents, settings: &Settings) -> Result<(Made, Bytes)> {
    let started = Instant::now();
    let Settled { mut tree, contents: files, root_opaque, warnings, marks, .. } = settled;
    let plan = plan(&mut tree, &files, contents, settings.chunk_size.bytes(), settings.first.as_deref())?;
    drop(files);
    let metadata = metadata::write(tree, plan.blocks, &settings.stage)?;
    let (flags, sections) = properties(root_opaque, &assumes);
    let chunks = u32::try_from(plan.chunks()).map_err(|e| Error::failed("counting the chunks", e))?;
    tracing::debug!(chunks, ms = started.elapsed().as_millis(), "layer planned");
    let summary = write(&Front { metadata: &metadata.bytes, flags, sections: &sections, chunks }, &plan, settings)?;
    metadata.check_file()?;
    tracing::debug!(bytes = summary.file_len, ms = started.elapsed().as_millis(), "layer written");
    let entry = StackEntry {
        layer: summary.id,
        head: summary.head_len,
        size: summary.file_len,
        format: u32::from(format::MAJOR),
        generation: WRITER_GENERATION,
        root_opaque,
    };
    let made = Made {
        entry,
        data_bytes: summary.data_bytes,
        chunks: summary.chunks,
        assumes,
        warnings,
        sums: None,
        entries: 0,
        deduplicated: plan.deduplicated,
        marks,
    };
    Ok((made, metadata.bytes))
}

/// What is known of a blob that was read.
enum Sums {
    /// It was none.
    None,
    Taken(ReadSums),
    /// Of one that is still being read, and what they should be.
    Coming(InPlace, Option<LayerBlob>),
}

impl Sums {
    /// Waits for them. Where they are not what they should be, nothing that was made of the blob may be kept.
    fn take(self) -> Result<Option<ReadSums>> {
        match self {
            Self::None => Ok(None),
            Self::Taken(sums) => Ok(Some(sums)),
            Self::Coming(tar, expect) => checked(tar.finish()?, expect.as_ref()).map(Some),
        }
    }

    /// Why a layer is refused: perhaps because the blob is not the one it should be.
    fn blame(self, error: Error) -> Error {
        match self {
            Self::Coming(_, Some(_)) if error.is_refusal() => self.take().err().unwrap_or(error),
            _ => error,
        }
    }
}

/// Reads what is in a blob. Where it is refused because the blob is not the one it should be, that is what is said.
fn read_tar(blob: OpenBlob, expect: Option<LayerBlob>, upper: &mut Upper, spool: &mut Spool) -> Result<(u64, Sums)> {
    let limit = expect.as_ref().map_or(u64::MAX, |layer| layer.size);
    let blob = match Reading::of(blob, limit)? {
        Reading::InPlace(tar, headers) => {
            let (file, start) = headers.place().map_err(|e| Error::failed("reading the layer", e))?;
            spool.read_again(file, start, true);
            let attested = expect.is_some();
            let sums = Sums::Coming(tar, expect);
            return match parse(&mut Reader::passing(headers, Headers::pass), attested, upper, spool) {
                Ok(entries) => Ok((entries, sums)),
                Err(error) => Err(sums.blame(error)),
            };
        }
        Reading::Stream(blob) => blob,
    };
    let stream = LayerStream::new(blob.stream, limit)?;
    if let (true, Some(place)) = (stream.is_plain(), blob.place) {
        spool.read_again(place.file, place.start, false);
    }
    let mut reader = Reader::new(stream);
    let read = parse(&mut reader, expect.is_some(), upper, spool);
    let stream = reader.into_inner();
    match (read, expect) {
        (Ok(entries), expect) => Ok((entries, Sums::Taken(checked(stream.finish()?, expect.as_ref())?))),
        (Err(error), Some(layer)) if error.is_refusal() => {
            match stream.abandon() {
                Ok((digest, _)) => compare("blob", layer.digest, digest)?,
                // Where it comes from knows what is wrong with it.
                Err(e) if e.get_ref().is_some_and(|inner| inner.is::<Error>()) => {
                    return Err(Error::stream("reading the layer", e));
                }
                Err(_) => {}
            }
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Reads a tar to its end; how many entries it has. `attested`: a digest says that nothing is missing; else the tar itself has
/// to, for a pipe also ends where its writer fails.
fn parse<R: Read>(reader: &mut Reader<R>, attested: bool, upper: &mut Upper, spool: &mut Spool) -> Result<u64> {
    let entries = read_entries(reader, upper, spool)?;
    if !attested && !reader.end_was_marked() {
        return Err(Error::refused(
            "the tar ends without the blocks of zeros that mark its end: it is empty or cut short (1024 zero bytes behind it \
             say that it is whole)",
        ));
    }
    if reader.rest()? {
        upper.warn("there is something behind the end of the tar: left out".to_owned());
    }
    Ok(entries)
}

/// What was read, if it is what should be read.
fn checked(sums: ReadSums, expect: Option<&LayerBlob>) -> Result<ReadSums> {
    if let Some(layer) = expect {
        compare("blob", layer.digest, sums.blob)?;
        compare("size of the blob", layer.size, sums.blob_size)?;
        compare("diff_id", layer.diff_id, sums.diff_id)?;
    }
    Ok(sums)
}

fn compare<T: PartialEq + std::fmt::Display>(what: &str, want: T, found: T) -> Result<()> {
    match want == found {
        true => Ok(()),
        false => Err(Error::refused(format!("{what} mismatch: it should be {want}, and is {found}"))),
    }
}

/// Writes the layer file, which begins with `front`, into the stage.
fn write(front: &Front, plan: &Plan, settings: &Settings) -> Result<Summary> {
    let failed = |e| Error::failed("writing the layer", e);
    let options = WriterOptions { level: settings.level, threads: settings.threads };
    let part = settings.stage.join(PART);
    let mut writer = Writer::new(&options, front, create(&part)?).map_err(failed)?;
    plan.read(&mut |chunk| writer.push(chunk).map_err(failed))?;
    let summary = writer.finish().map_err(failed)?;
    let path = settings.stage.join(layer_key(&summary.id));
    let moved = std::fs::create_dir_all(path.parent().unwrap_or(&path)).and_then(|()| std::fs::rename(&part, &path));
    moved.map_err(|e| Error::failed(path.display().to_string(), e))?;
    Ok(summary)
}

/// What the layer's index says of the layer beside its tables: what it took from below is listed in it.
fn properties(root_opaque: bool, assumes: &AssumeList) -> (Flags, Vec<Section>) {
    let mut flags = Flags::empty();
    if root_opaque {
        flags |= Flags::ROOT_OPAQUE;
    }
    if assumes.is_empty() {
        return (flags | Flags::SELF_CONTAINED, Vec::new());
    }
    let bytes = assumes.bytes().to_vec();
    (flags, vec![Section { kind: format::SECTION_ASSUMES, must_understand: false, bytes }])
}

fn create(path: &Path) -> Result<File> {
    File::create(path).map_err(|e| Error::failed(path.display().to_string(), e))
}

impl Made {
    /// The digest that a tar goes by.
    pub(crate) fn diff_id(&self) -> Option<Digest> {
        self.sums.filter(|_| !self.marks).map(|sums| sums.diff_id)
    }
}
