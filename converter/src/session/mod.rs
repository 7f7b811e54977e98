//! One conversion: from a source's layers to layers that are ready to be published.
//!
//! Layers go bottom up. One whose chain id the store knows is taken as it is. Any other is looked for by its diff id, and
//! taken where everything holds that it assumes of the tree below: in the store, among what this conversion made, in
//! the work directory, where conversions that were interrupted or run beside this one keep theirs. What is found
//! nowhere is made, by one conversion at a time.
//!
//! Layer files wait in a stage: nothing is written to the store before all of the source was converted, so a refused
//! source leaves nothing behind. What is written then, and in which order, is `publish`'s.

use crate::below::Below;
use crate::build::{self, Input, Made, Settings};
use crate::collapse::{Collapsed, Collapser};
use crate::error::{Error, Result, held, store};
use crate::limits::{LISTED, check_listed};
use crate::options::Options;
use crate::progress::{Event, ReadProgress};
use crate::publish::Publisher;
use crate::push;
use crate::ready::{Ready, chain_ids, fresh, report, reused};
use crate::report::{ImageReport, Report};
use crate::source::{Blobs, Image, Images, LayerBlob, OpenBlob};
use crate::work::{Slot, Stage, Work};
use blobstore::collect::Lease;
use blobstore::layer::LayerId;
use blobstore::refs::{Digest, ImageName, ManifestDoc, Refs, blob_key, layer_key};
use blobstore::store::{FileStore, Store};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

mod find;

pub(crate) struct Session<'a> {
    refs: &'a Refs,
    options: &'a Options,
    settings: Settings,
    work: Work,
    /// Keeps the stage's directory until the end.
    _stage: Stage,
    /// The stage as a store: the layer files under the keys that they will have.
    staged: Arc<dyn Store>,
    /// The layers in the stage.
    here: Mutex<Vec<StagedLayer>>,
    /// What of the store this conversion uses or is about to name: nobody deletes it meanwhile.
    lease: Arc<Lease>,
}

/// A layer in the stage.
#[derive(Clone)]
struct StagedLayer {
    made: Made,
    /// Another conversion made it.
    adopted: bool,
}

impl<'a> Session<'a> {
    pub(crate) fn new(refs: &'a Refs, work: &Path, options: &'a Options) -> Result<Self> {
        let work = Work::open(work)?;
        let stage = work.stage()?;
        let threads = match options.jobs {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            jobs => jobs,
        };
        let path = stage.path().to_owned();
        let staged = Arc::new(FileStore::new(&path));
        let (level, chunk_size, first) = (options.level, options.chunk_size, options.first.clone());
        let settings = Settings { level, threads, chunk_size, first, stage: path };
        let lease = Arc::new(Lease::of_writer(refs.store().clone()));
        lease.kept();
        Ok(Self { refs, options, settings, work, _stage: stage, staged, here: Mutex::default(), lease })
    }

    /// Holds nothing any more: what was published has names.
    pub(crate) async fn release(&self) {
        if let Err(error) = self.lease.release().await {
            tracing::warn!(%error, "cannot take a lease back: it ends by itself");
        }
    }

    /// Converts and publishes what a source holds.
    pub(crate) async fn images(&self, images: Images) -> Result<Report> {
        let name = self.image_name(&images);
        if self.options.tag.is_some() && images.images.len() != 1 {
            return Err(Error::refused("a tag stands for one platform: choose it by --platform OS/ARCH"));
        }
        let mut converted = Vec::new();
        for image in &images.images {
            let layers = self.image(image, &images.blobs).await.inspect_err(|e| self.failed(e))?;
            let collapsed = self.collapse(image, &layers).await.inspect_err(|e| self.failed(e))?;
            converted.push((image, layers, collapsed));
        }
        let publisher = self.publisher();
        let mut report = Report { digest: Some(images.root.to_string()), ..Report::default() };
        self.tell_storing(converted.iter().flat_map(|(_, layers, _)| layers));
        publisher.hold(written(&images, &converted)).await?;
        publisher.documents(&images.documents).await?;
        for (image, layers, collapsed) in converted {
            report.images.push(publisher.image(image, layers, collapsed).await?);
        }
        if let Some(name) = name {
            self.lease.check().await.map_err(held)?;
            self.refs.put_image(&name, images.root).await.map_err(store)?;
            report.name = Some(name.to_string());
        }
        report.tag = self.options.tag.as_ref().map(ToString::to_string);
        self.forget(|_| true);
        if let Some(name) = &self.options.push {
            report.pushed = Some(push::push(self.refs, &self.lease, &images, name, &self.options.registries).await?);
        }
        Ok(report)
    }

    /// Converts and publishes a tar that is no image's; `bytes` is its length, where that is known.
    pub(crate) async fn tar(&self, blob: OpenBlob, name: &str, bytes: Option<u64>) -> Result<Report> {
        let input = Input::Tar { blob: self.with_progress(blob), keep_marks: self.options.keeps_marks() };
        self.single(input, name, bytes).await
    }

    /// Converts and publishes a directory.
    pub(crate) async fn directory(&self, path: PathBuf) -> Result<Report> {
        let name = path.display().to_string();
        self.single(Input::Directory(path), &name, None).await
    }

    /// Which layer a tar or a directory becomes is known when it is made: it is not kept for others.
    async fn single(&self, input: Input, name: &str, bytes: Option<u64>) -> Result<Report> {
        let started = Instant::now();
        self.tell(&Event::Started { layer: name, bytes });
        let (made, below) = self.build(input, Below::default(), Lay::Not).await?;
        let made = made.map_err(|e| e.in_layer(name))?;
        self.mountable(&made.entry.layer).await.map_err(|e| e.in_layer(name))?;
        let diff_id = made.diff_id();
        let report = report(&made, None, diff_id, &below, started);
        let layer = fresh(made, None, report);
        self.tell(&Event::Ready(&layer.report));
        self.tell_storing([&layer]);
        self.publisher().single(&layer, diff_id).await?;
        let tag = self.options.tag.as_ref().map(ToString::to_string);
        let image = ImageReport { layers: vec![layer.report], ..ImageReport::default() };
        Ok(Report { tag, images: vec![image], ..Report::default() })
    }

    fn publisher(&self) -> Publisher<'_> {
        let Options { again, tag, progress, .. } = self.options;
        let stage = &self.settings.stage;
        Publisher {
            refs: self.refs,
            lease: &self.lease,
            stage,
            again: *again,
            tag: tag.as_ref(),
            progress: progress.as_ref(),
        }
    }

    fn image_name(&self, images: &Images) -> Option<ImageName> {
        self.options.name.clone().or_else(|| own_name(images.name.as_deref()?))
    }

    /// Makes every layer of an image ready, without writing anything to the store.
    async fn image(&self, image: &Image, blobs: &Blobs) -> Result<Vec<Ready>> {
        let chain_ids = chain_ids(image);
        let mut ready: Vec<Ready> = Vec::new();
        if !self.options.again {
            for ((layer, chain_id), entry) in image.layers.iter().zip(&chain_ids).zip(self.known(&chain_ids).await?) {
                ready.push(reused(entry, layer, *chain_id));
            }
        }
        let rest = ready.len()..image.layers.len();
        if rest.is_empty() {
            return Ok(ready);
        }
        let mut below = self.load(ready.last().map(|_| chain_ids[rest.start - 1])).await?;
        for number in rest {
            let (layer, chain_id) = (&image.layers[number], chain_ids[number]);
            below.last = number + 1 == image.layers.len();
            let next = self.layer(layer, chain_id, blobs, below).await;
            let next = match next {
                Ok(next) => match check_listed(next.1.listed(), LISTED) {
                    Ok(()) => self.mountable(&next.0.entry.layer).await.map(|()| next),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            let next = next.map_err(|e| e.in_layer(&layer.digest.to_string()))?;
            self.tell(&Event::Ready(&next.0.report));
            ready.push(next.0);
            below = next.1;
        }
        Ok(ready)
    }

    /// Makes the collapsed stacks of an image, if that was asked for, without writing anything to the store.
    async fn collapse(&self, image: &Image, layers: &[Ready]) -> Result<Option<Collapsed>> {
        let Some(size) = self.options.collapse else { return Ok(None) };
        self.tell(&Event::Collapsing);
        let (refs, staged, settings, again) = (self.refs, &self.staged, &self.settings, self.options.again);
        let collapser = Collapser { refs, staged, settings, size, again };
        let collapsed = collapser.image(&chain_ids(image), layers).await.map_err(|e| self.no_room(e))?;
        for entry in &collapsed.layers {
            self.mountable(&entry.layer).await.map_err(|e| e.in_layer("made of several by --collapse"))?;
        }
        Ok(Some(collapsed))
    }

    /// That a layer is not revoked. What is made of the same bytes is the same layer again: to publish it would move a name to
    /// what nobody may mount.
    async fn mountable(&self, layer: &LayerId) -> Result<()> {
        match self.refs.revoked(layer).await.map_err(store)? {
            false => Ok(()),
            true => Err(Error::refused(format!(
                "it becomes layer {layer}, which is revoked, and nothing that has it would be mounted; change what is in it, \
                 or take the revocation back: lamina store unrevoke {layer} (why it was revoked: lamina store ls --revoked)"
            ))),
        }
    }

    /// Finds or makes a layer, and lays it over the tree below.
    async fn layer(
        &self,
        layer: &LayerBlob,
        chain_id: Digest,
        blobs: &Blobs,
        mut below: Below,
    ) -> Result<(Ready, Below)> {
        let started = Instant::now();
        if let Some(entry) = self.in_store(&layer.diff_id, &mut below).await? {
            return Ok((reused(entry, layer, chain_id), below));
        }
        if let Some(made) = self.in_stage(&layer.diff_id, &mut below).await? {
            let mut report = report(&made, Some(layer), Some(chain_id), &below, started);
            (report.reused, report.shared) = (true, true);
            return Ok((Ready { entry: made.entry, fresh: None, report }, below));
        }
        if self.options.again {
            return self.make(layer, chain_id, blobs, below, None).await;
        }
        let slot = self.slot(layer).await?;
        if let Some(made) = self.kept(slot.as_ref(), &mut below).await? {
            let mut report = report(&made, Some(layer), Some(chain_id), &below, started);
            (report.reused, report.resumed) = (true, true);
            return Ok((fresh(made, Some(layer), report), below));
        }
        // Who made it can have published it, and have taken what was kept away, since the store was asked.
        if let Some(entry) = self.in_store(&layer.diff_id, &mut below).await? {
            return Ok((reused(entry, layer, chain_id), below));
        }
        self.make(layer, chain_id, blobs, below, slot.as_deref()).await
    }

    /// Converts a layer, and keeps it for others.
    async fn make(
        &self,
        layer: &LayerBlob,
        chain_id: Digest,
        blobs: &Blobs,
        below: Below,
        slot: Option<&Slot>,
    ) -> Result<(Ready, Below)> {
        let started = Instant::now();
        let (mut made, mut below) = self.build_image_layer(layer, blobs, below, slot).await?;
        while made.as_ref().is_err_and(|error| blobs.has_elsewhere(&layer.digest, error)) {
            (made, below) = self.build_image_layer(layer, blobs, below, slot).await?;
        }
        let made = made?;
        self.take(made.clone(), false)?;
        if let Some(slot) = slot {
            slot.keep(&made, &self.settings.stage);
        }
        let report = report(&made, Some(layer), Some(chain_id), &below, started);
        Ok((fresh(made, Some(layer), report), below))
    }

    /// A blob that tells how much of it was read.
    fn with_progress(&self, blob: OpenBlob) -> OpenBlob {
        let stream = Box::new(ReadProgress::new(blob.stream, self.options.progress.clone()));
        OpenBlob { stream, ..blob }
    }

    async fn build_image_layer(
        &self,
        layer: &LayerBlob,
        blobs: &Blobs,
        below: Below,
        slot: Option<&Slot>,
    ) -> Result<(Result<Made>, Below)> {
        self.tell(&Event::Started { layer: &layer.digest.to_string(), bytes: Some(layer.size) });
        let mut blob = self.with_progress(blobs.blob(layer)?);
        if let Some(slot) = slot {
            blob.stream = Box::new(slot.signing(blob.stream));
        }
        self.build(Input::Layer(blob, layer.clone()), below, Lay::Over).await
    }

    /// Makes a layer and lays it over the tree below, which comes back as it was where that fails.
    async fn build(&self, input: Input, mut below: Below, lay: Lay) -> Result<(Result<Made>, Below)> {
        let (settings, staged, runtime) = (self.settings.clone(), self.staged.clone(), Handle::current());
        // All in one thread: the allocator gives what one has freed to no other.
        let work = move || {
            let made = build::build(input, &below, &settings, &runtime);
            let laid = made.and_then(|(made, metadata)| match lay {
                Lay::Not => Ok(made),
                Lay::Over => runtime.block_on(below.lay(&staged, &made.entry, &metadata)).map(|()| made),
            });
            (laid, below)
        };
        let (made, below) = spawn_blocking(work).await.map_err(thread)?;
        Ok((made.map_err(|e| self.no_room(e)), below))
    }

    /// Says what can be done where the work directory is full. What the layer took there is free again by now.
    fn no_room(&self, error: Error) -> Error {
        if !error.is_no_room() {
            return error;
        }
        let _ = std::fs::remove_file(self.settings.stage.join(build::PART));
        let (work, free) = (self.work.path().display(), self.work.free());
        let what = format!(
            "{work} is full: this layer's files and the layer made of them need more than the {free} bytes that are \
             free there; free some, or name a directory with more room in TMPDIR"
        );
        Error::failed(what, error)
    }

    /// Notes a layer that is in the stage. Their lists are kept until all are published, and of several images' layers there
    /// can be many.
    fn take(&self, made: Made, adopted: bool) -> Result<()> {
        let mut here = self.here();
        here.push(StagedLayer { made, adopted });
        let all: usize = here.iter().map(|here| here.made.assumes.bytes().len()).sum();
        match all > LISTED {
            false => Ok(()),
            true => Err(Error::refused(format!(
                "the layers of all of the source's images together take too much from the trees below them: the lists of it have \
                 more than {LISTED} bytes; convert fewer images at once"
            ))),
        }
    }

    fn here(&self) -> std::sync::MutexGuard<'_, Vec<StagedLayer>> {
        // A list that is only added to is whole at any time.
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: &Event<'_>) {
        if let Some(progress) = &self.options.progress {
            progress(event);
        }
    }

    fn tell_storing<'r>(&self, layers: impl IntoIterator<Item = &'r Ready>) {
        let sizes = layers.into_iter().filter(|layer| layer.fresh.is_some()).map(|layer| layer.entry.size);
        self.tell(&Event::Storing(sizes.sum()));
    }
}

/// Whether a layer that was made is laid over the tree below it: where another will be made over it.
#[derive(Debug, Clone, Copy)]
enum Lay {
    Not,
    Over,
}

/// The keys of everything that is about to be written, or named by it.
fn written(images: &Images, converted: &[(&Image, Vec<Ready>, Option<Collapsed>)]) -> Vec<String> {
    let documents = images.documents.iter().map(|document| blob_key(&Digest::of(document)));
    let mut keys: Vec<String> = documents.chain([blob_key(&images.root), ManifestDoc::key(&images.root)]).collect();
    for (image, layers, collapsed) in converted {
        let entries = layers.iter().map(|layer| &layer.entry);
        let entries = entries.chain(collapsed.iter().flat_map(|collapsed| &collapsed.layers));
        keys.extend(entries.map(|entry| layer_key(&entry.layer)));
        keys.extend([ManifestDoc::key(&image.manifest), blob_key(&image.manifest), blob_key(&image.config)]);
    }
    keys
}

fn thread(error: tokio::task::JoinError) -> Error {
    Error::failed("the conversion's thread", error)
}

/// The name that a source gives its image; none where it is by digest only.
fn own_name(text: &str) -> Option<ImageName> {
    match text.parse::<ImageName>() {
        Ok(name) => Some(name).filter(|name| name.tag().is_some()),
        Err(error) => {
            tracing::warn!(name = text, %error, "the source's own name of the image is no name: --name gives one");
            None
        }
    }
}
