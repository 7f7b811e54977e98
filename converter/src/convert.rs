//! From a source to layers that are ready to be published.
//!
//! Layers go bottom up; one whose chain id the store knows is taken as it is, one whose diff id it knows is taken where
//! everything holds that it assumes of the tree below. Layer files wait in a stage: nothing is written to the store
//! before all of the source was converted, so a refused source leaves nothing behind. What is written then, and in
//! which order, is `publish`'s.

use crate::assume::holds;
use crate::below::{self, Below};
use crate::build::{self, Input, Made, Settings};
use crate::error::{Error, Result};
use crate::publish::{Fresh, Publisher, Ready, chain_ids, store};
use crate::push;
use crate::registry;
use crate::report::{ImageReport, LayerReport, Report};
use crate::source::{Blobs, Image, Images, LayerBlob, Platforms, Source, open_docker, open_layout, open_registry};
use crate::stage::Stage;
use blobstore::layer::{WRITER_GENERATION, format};
use blobstore::refs::{Candidate, Digest, ImageName, Refs, StackEntry, TagName};
use blobstore::store::{FileStore, Store};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;

/// Told of each layer when it is done.
pub type Progress = Arc<dyn Fn(&LayerReport) + Send + Sync>;

/// How to convert.
#[derive(Clone)]
pub struct Options {
    /// Which platforms of an image; this machine's.
    pub platforms: Platforms,
    /// The image name that is to stand for the image; else the one that a layout gives it, if that is a full name.
    pub name: Option<ImageName>,
    /// The tag that is to stand for the result.
    pub tag: Option<TagName>,
    /// The chunk size that is aimed at, in bytes: a multiple of 4096, 4 MiB at most.
    pub chunk_size: u32,
    /// zstd's compression level.
    pub level: i32,
    /// Threads that compress; 0 is one a processor.
    pub jobs: usize,
    /// Convert and write references even where the store has them.
    pub again: bool,
    /// Directory for what is on the way; needs room for the source's decompressed layers.
    pub work: PathBuf,
    /// Where an image is pushed to, beside its original: a name with a tag.
    pub push: Option<ImageName>,
    /// What is known of registries.
    pub registries: registry::Settings,
    /// Called when a layer is done.
    pub progress: Option<Progress>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            platforms: Platforms::default(),
            name: None,
            tag: None,
            chunk_size: crate::pack::CHUNK_SIZE,
            level: 3,
            jobs: 0,
            again: false,
            work: std::env::temp_dir(),
            push: None,
            registries: registry::Settings::default(),
            progress: None,
        }
    }
}

/// Converts a source into a store and writes its references.
pub async fn convert(refs: &Refs, source: &Source, options: &Options) -> Result<Report> {
    let chunk = options.chunk_size;
    if chunk == 0 || !chunk.is_multiple_of(4096) || chunk > 4 << 20 {
        return Err(Error::refused(format!("a chunk size of {chunk}: multiples of 4096 up to 4 MiB are possible")));
    }
    if options.push.is_some() && matches!(source, Source::Tar(_) | Source::Directory(_)) {
        return Err(Error::refused("only images are pushed: a tar or a directory has no original to stand beside"));
    }
    // A store that this build does not understand is said so before hours of work.
    refs.check_format().await.map_err(store)?;
    let session = Session::new(refs, options)?;
    match source {
        Source::Oci { directory, reference } => {
            let blobs = Blobs::Directory(directory.clone());
            session.images(open_layout(blobs, reference.as_deref(), &options.platforms)?).await
        }
        Source::OciArchive { file, reference } => {
            session.images(open_layout(Blobs::archive(file)?, reference.as_deref(), &options.platforms)?).await
        }
        Source::DockerArchive { file, reference } => {
            session.images(open_docker(Blobs::archive(file)?, reference.as_deref(), &options.platforms)?).await
        }
        Source::Registry(name) => session.images(from_registry(name, options).await?).await,
        Source::Tar(None) => session.single(Input::Tar(Box::new(io::stdin()), None), "standard input").await,
        Source::Tar(Some(path)) => {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|e| Error::failed(name.clone(), e))?;
            session.single(Input::Tar(Box::new(file), None), &name).await
        }
        Source::Directory(path) => session.single(Input::Directory(path.clone()), &path.display().to_string()).await,
    }
}

/// Asks a registry for an image's documents.
async fn from_registry(name: &ImageName, options: &Options) -> Result<Images> {
    let (name, settings) = (name.clone(), options.registries.clone());
    let (platforms, runtime) = (options.platforms.clone(), Handle::current());
    let open = move || open_registry(&name, &settings, &platforms, &runtime);
    tokio::task::spawn_blocking(open).await.map_err(|e| Error::failed("asking the registry", e))?
}

struct Session<'a> {
    refs: &'a Refs,
    options: &'a Options,
    settings: Settings,
    /// The stage as a store: the layer files under the keys that they will have.
    staged: Arc<dyn Store>,
    /// Keeps the stage's directory until the end.
    _stage: Stage,
}

impl<'a> Session<'a> {
    fn new(refs: &'a Refs, options: &'a Options) -> Result<Self> {
        let stage = Stage::new(&options.work)
            .map_err(|e| Error::failed(format!("a stage in {}", options.work.display()), e))?;
        let path = std::path::absolute(stage.path()).map_err(|e| Error::failed("the stage's path", e))?;
        let threads = match options.jobs {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            jobs => jobs,
        };
        let staged = Arc::new(FileStore::new(&path));
        let settings = Settings { level: options.level, threads, chunk_size: options.chunk_size, stage: path };
        Ok(Self { refs, options, settings, staged, _stage: stage })
    }

    fn publisher(&self) -> Publisher<'_> {
        let Options { again, tag, .. } = self.options;
        Publisher { refs: self.refs, stage: &self.settings.stage, again: *again, tag: tag.as_ref() }
    }

    async fn images(&self, images: Images) -> Result<Report> {
        let name = self.image_name(&images);
        if self.options.tag.is_some() && images.images.len() != 1 {
            return Err(Error::refused("a tag stands for one platform: choose it"));
        }
        let mut converted = Vec::new();
        for image in &images.images {
            let layers = self.image(image, &images.blobs).await?;
            converted.push((image, layers));
        }
        let publisher = self.publisher();
        let mut report = Report { digest: Some(images.root.to_string()), ..Report::default() };
        publisher.documents(&images.documents).await?;
        for (image, layers) in converted {
            report.images.push(publisher.image(image, layers).await?);
        }
        if let Some(name) = name {
            self.refs.put_image(&name, images.root).await.map_err(store)?;
            report.name = Some(name.to_string());
        }
        report.tag = self.options.tag.as_ref().map(ToString::to_string);
        if let Some(name) = &self.options.push {
            report.pushed = Some(push::push(self.refs, &images, name, &self.options.registries).await?);
        }
        Ok(report)
    }

    fn image_name(&self, images: &Images) -> Option<ImageName> {
        let own = || images.name.as_deref()?.parse().ok();
        self.options.name.clone().or_else(own).filter(|name| name.tag().is_some())
    }

    /// Makes every layer of an image ready, without writing anything to the store.
    async fn image(&self, image: &Image, blobs: &Blobs) -> Result<Vec<Ready>> {
        let chain_ids = chain_ids(image);
        let mut ready: Vec<Ready> = Vec::new();
        if !self.options.again {
            for (layer, chain_id) in image.layers.iter().zip(&chain_ids) {
                let Some(entry) = self.known_chain(chain_id).await? else { break };
                ready.push(self.reused(entry, layer, *chain_id));
            }
        }
        let rest = ready.len()..image.layers.len();
        if rest.is_empty() {
            return Ok(ready);
        }
        let mut below = self.load(ready.last().map(|_| chain_ids[rest.start - 1])).await?;
        for number in rest {
            let (layer, chain_id) = (&image.layers[number], chain_ids[number]);
            let named = |e: Error| e.in_layer(&layer.digest.to_string());
            let next = match self.candidate(&layer.diff_id, &mut below).await.map_err(named)? {
                Some(entry) => self.reused(entry, layer, chain_id),
                None => {
                    let started = Instant::now();
                    let input = Input::Tar(blobs.blob(layer).map_err(named)?, Some(layer.clone()));
                    let made;
                    (made, below) = self.build(input, below).await.map_err(named)?;
                    self.made(made, Some(layer), Some(chain_id), started)
                }
            };
            self.tell(&next.report);
            ready.push(next);
        }
        Ok(ready)
    }

    /// The top layer of a chain that the store knows.
    async fn known_chain(&self, chain_id: &Digest) -> Result<Option<StackEntry>> {
        match self.refs.chain(chain_id).await {
            Ok(chain) => Ok(chain.and_then(|chain| chain.stack.into_layers().pop())),
            Err(e) if e.is_not_converted() => Ok(None),
            Err(e) => Err(store(e)),
        }
    }

    /// What a chain shows.
    async fn load(&self, chain_id: Option<Digest>) -> Result<Below> {
        let mut below = Below::default();
        let Some(chain_id) = chain_id else { return Ok(below) };
        let chain = self.refs.chain(&chain_id).await.map_err(store)?;
        for entry in chain.iter().flat_map(|chain| &chain.stack) {
            below.load(self.refs.store(), entry).await?;
        }
        Ok(below)
    }

    /// A layer that was made from the same tar, by this generation of the writer, and is right over this tree; it is laid
    /// over it then.
    async fn candidate(&self, diff_id: &Digest, below: &mut Below) -> Result<Option<StackEntry>> {
        if self.options.again {
            return Ok(None);
        }
        let diff = match self.refs.diff(diff_id).await {
            Ok(diff) => diff,
            Err(e) if e.is_not_converted() => None,
            Err(e) => return Err(store(e)),
        };
        for candidate in diff.into_iter().flat_map(|diff| diff.candidates) {
            let current =
                candidate.entry.generation == WRITER_GENERATION && candidate.entry.format == u32::from(format::MAJOR);
            if !current || !candidate.assumes.iter().all(|assume| holds(assume, below)) {
                continue;
            }
            match below.load(self.refs.store(), &candidate.entry).await {
                Ok(()) => return Ok(Some(candidate.entry)),
                Err(error) => tracing::warn!(layer = %candidate.entry.layer, %error, "cannot use a layer again"),
            }
        }
        Ok(None)
    }

    /// Makes a layer and lays it over the tree below.
    async fn build(&self, input: Input, below: Below) -> Result<(Made, Below)> {
        let (settings, runtime) = (self.settings.clone(), Handle::current());
        let work = move || build::build(input, &below, &settings, &runtime).map(|made| (made, below));
        let done = tokio::task::spawn_blocking(work).await;
        let (made, mut below) = done.map_err(|e| Error::failed("the conversion's thread", e))??;
        let (body, tree) = below::open(&self.staged, &made.entry).await?;
        below.push(body, &tree, made.entry.root_opaque);
        Ok((made, below))
    }

    async fn single(&self, input: Input, name: &str) -> Result<Report> {
        let started = Instant::now();
        let (made, _) = self.build(input, Below::default()).await.map_err(|e| e.in_layer(name))?;
        let diff_id = build::diff_id(&made);
        let layer = self.made(made, None, diff_id, started);
        self.tell(&layer.report);
        self.publisher().single(&layer, diff_id).await?;
        let tag = self.options.tag.as_ref().map(ToString::to_string);
        let image = ImageReport { layers: vec![layer.report], ..ImageReport::default() };
        Ok(Report { tag, images: vec![image], ..Report::default() })
    }

    fn made(&self, made: Made, source: Option<&LayerBlob>, chain_id: Option<Digest>, started: Instant) -> Ready {
        let diff_id = build::diff_id(&made);
        let candidate =
            diff_id.map(|diff_id| (diff_id, Candidate { entry: made.entry.clone(), assumes: made.assumes }));
        let report = LayerReport {
            source: made.sums.map(|sums| sums.blob.to_string()),
            diff_id: diff_id.map(|id| id.to_string()),
            chain_id: chain_id.map(|id| id.to_string()),
            layer: made.entry.layer.to_string(),
            entry: Some(made.entry.clone()),
            reused: false,
            entries: made.entries,
            bytes_in: made.sums.map_or(made.summary.data_bytes, |sums| sums.blob_size),
            bytes_tar: made.sums.map_or(0, |sums| sums.tar_size),
            bytes_out: made.summary.file_len,
            chunks: made.summary.chunks,
            bytes_deduplicated: made.deduplicated,
            seconds: started.elapsed().as_secs_f64(),
            warnings: made.warnings,
        };
        Ready { entry: made.entry, fresh: Some(Fresh { candidate, source: source.cloned() }), report }
    }

    fn reused(&self, entry: StackEntry, layer: &LayerBlob, chain_id: Digest) -> Ready {
        let report = LayerReport {
            source: Some(layer.digest.to_string()),
            diff_id: Some(layer.diff_id.to_string()),
            chain_id: Some(chain_id.to_string()),
            layer: entry.layer.to_string(),
            entry: Some(entry.clone()),
            reused: true,
            bytes_in: layer.size,
            bytes_out: entry.size,
            ..LayerReport::default()
        };
        Ready { entry, fresh: None, report }
    }

    fn tell(&self, layer: &LayerReport) {
        if let Some(progress) = &self.options.progress {
            progress(layer);
        }
    }
}
