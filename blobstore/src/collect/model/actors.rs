//! Who takes part: converters, nodes, collectors, administrators. They use what the programs use.

use super::super::Error;
use super::super::lease::{Lease, Terms};
use super::super::publish::Held;
use super::super::run::{Options, collect};
use super::world::Hands;
use crate::layer::LayerId;
use crate::refs::{
    Assume, Candidate, ChainLayer, Digest, ImageName, ManifestDoc, Platform, Refs, Stack, StackEntry, Tag, TagKind,
    blob_key, layer_key,
};
use crate::store::{Store, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

pub(super) const GRACE: Duration = Duration::from_secs(24 * 3600);
pub(super) const SETTLE: Duration = Duration::from_secs(10);
/// So that a node's lease outlasts a scene's jumps of the clock.
pub(super) const NODE_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// An image of layers, by number.
#[derive(Debug, Clone)]
pub(super) struct Image {
    pub(super) name: &'static str,
    pub(super) layers: Vec<u8>,
}

fn layer(n: u8) -> LayerId {
    LayerId::from_bytes([n; 32])
}

pub(super) fn key(n: u8) -> String {
    layer_key(&layer(n))
}

fn diff_id(n: u8) -> Digest {
    Digest::of(&[n])
}

impl Image {
    pub(super) fn image_name(&self) -> ImageName {
        self.name.parse().unwrap()
    }

    fn chain_ids(&self) -> Vec<Digest> {
        let mut chains: Vec<Digest> = Vec::new();
        for n in &self.layers {
            chains.push(Digest::chain(chains.last(), &diff_id(*n)));
        }
        chains
    }

    pub(super) fn top(&self) -> Digest {
        *self.chain_ids().last().unwrap()
    }

    fn chain_layers(&self) -> Vec<ChainLayer> {
        let entry = |n: u8| StackEntry { format: 1, ..StackEntry::bare(layer(n)) };
        let layers = self.layers.iter().map(|n| entry(*n));
        self.chain_ids().into_iter().zip(layers).map(|(chain_id, entry)| ChainLayer { chain_id, entry }).collect()
    }

    /// Its documents: config and manifest.
    fn documents(&self) -> [Bytes; 2] {
        let config = format!("{{\"layers\": {:?}}}", self.layers);
        let digest = Digest::of(config.as_bytes());
        let manifest = format!("{{\"config\": {{\"digest\": \"{digest}\"}}}}");
        [config.into(), manifest.into()]
    }
}

fn refs(hands: &Hands) -> Refs {
    Refs::new(Arc::new(hands.clone()))
}

/// A converter of an image that is told to end when so many of its requests were answered: it goes away from what it is at, and
/// gives its lease back.
pub(super) async fn converts_until(hands: Hands, who: &str, image: Image, requests: u32) {
    let (store, clock) = (Arc::new(hands.clone()), Arc::new(hands.clone()));
    let lease = Lease::new(store, clock, &format!("{who}/work"), Terms::WRITER);
    match hands.until(requests, converts_with(&hands, &lease, &image)).await {
        Some(done) => done.unwrap(),
        None => lease.release().await.unwrap(),
    }
}

/// A converter that finds out what of the image is there already, makes the rest, and publishes it all.
pub(super) async fn converts(hands: Hands, who: &str, image: Image) {
    let (store, clock) = (Arc::new(hands.clone()), Arc::new(hands.clone()));
    let lease = Lease::new(store, clock, &format!("{who}/work"), Terms::WRITER);
    let done = converts_with(&hands, &lease, &image).await;
    match done {
        // It was stopped for longer than its lease: it names nothing then.
        Err(Error::Expired { .. }) => {}
        done => done.unwrap(),
    }
}

async fn converts_with(hands: &Hands, lease: &Lease, image: &Image) -> Result<(), Error> {
    let refs = refs(hands);
    let mut held = Held::new(&refs, lease);
    let mut fresh = image.layers.clone();
    // As a session does: what a chain reference names is held first, and used if it is there then.
    if let Some(chain) = refs.chain(&image.top()).await? {
        let named: Vec<LayerId> = chain.stack.layers().iter().map(|entry| entry.layer).collect();
        let unusable = held.unusable(named.clone()).await?;
        fresh.retain(|n| !named.contains(&layer(*n)) || unusable.contains(&layer(*n)));
    }
    let documents = image.documents();
    let digests: Vec<Digest> = documents.iter().map(|document| Digest::of(document)).collect();
    let [config, manifest] = [digests[0], digests[1]];
    let layers = image.layers.iter().map(|n| key(*n));
    let keys = layers.chain(digests.iter().map(blob_key)).chain([ManifestDoc::key(&manifest)]);
    lease.hold(keys).await?;
    lease.settle().await?;
    for document in documents {
        refs.put_blob(document).await?;
    }
    for n in fresh {
        match hands.create(&key(n), Bytes::from_static(b"a layer")).await {
            Ok(()) | Err(StoreError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let entry = StackEntry { format: 1, ..StackEntry::bare(layer(n)) };
        let candidate = Candidate { entry, assumes: Vec::<Assume>::new() };
        refs.add_candidate(&diff_id(n), candidate).await?;
    }
    let chains = Held::new(&refs, lease).write_chains(&image.chain_layers(), false).await?;
    let diff_ids: Vec<Digest> = image.layers.iter().map(|n| diff_id(*n)).collect();
    let document = ManifestDoc::new(manifest, config, Platform::host(), chains, &diff_ids);
    lease.check().await?;
    refs.put_manifest(&document).await?;
    // Nobody is stopped for hours between these two.
    hands.hurries(true);
    let checked = lease.check().await;
    if checked.is_ok() {
        refs.put_image(&image.image_name(), manifest).await?;
    }
    hands.hurries(false);
    checked?;
    lease.release().await
}

/// A converter of a directory: one layer, and a tag for it.
pub(super) async fn tags(hands: Hands, who: &str, n: u8) {
    let (store, clock) = (Arc::new(hands.clone()), Arc::new(hands.clone()));
    let lease = Lease::new(store, clock, &format!("{who}/work"), Terms::WRITER);
    match tags_with(&hands, &lease, n).await {
        Err(Error::Expired { .. }) => {}
        done => done.unwrap(),
    }
}

async fn tags_with(hands: &Hands, lease: &Lease, n: u8) -> Result<(), Error> {
    let refs = refs(hands);
    lease.hold([key(n)]).await?;
    lease.settle().await?;
    match hands.create(&key(n), Bytes::from_static(b"a layer")).await {
        Ok(()) | Err(StoreError::AlreadyExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    hands.hurries(true);
    let checked = lease.check().await;
    if checked.is_ok() {
        refs.put_tag(&tag(n)).await?;
    }
    hands.hurries(false);
    checked?;
    lease.release().await
}

fn tag(n: u8) -> Tag {
    let stack = Stack::EMPTY.with(StackEntry { format: 1, ..StackEntry::bare(layer(n)) });
    let (name, version) = (format!("tool{n}"), "1".to_owned());
    Tag { kind: TagKind::Toolkit, name, version, stack, collapsed: None, made_over: None, environment: Vec::new() }
}

/// An administrator who removes a tag.
pub(super) async fn untags(hands: Hands, n: u8) {
    refs(&hands).remove_tag(&tag(n).tag_name()).await.unwrap();
}

/// What a node looks up.
#[derive(Debug, Clone)]
pub(super) enum By {
    Name,
    /// The chain id, as containerd sends it.
    Chain,
    /// The tag of its first layer.
    Tag,
}

/// A node that uses an image: it looks it up, mounts it, and holds it a moment later.
pub(super) async fn uses(hands: Hands, image: Image, by: By) {
    let refs = refs(&hands);
    hands.hurries(true);
    let stack = match by {
        By::Name => refs.resolve(&crate::refs::Name::Image(image.image_name())).await.ok(),
        By::Chain => refs.chain(&image.top()).await.unwrap().map(|chain| chain.stack),
        By::Tag => refs.tag(&tag(image.layers[0]).tag_name()).await.unwrap().map(|tag| tag.stack),
    };
    let layers = stack.unwrap_or_default().into_layers();
    // It opens them all: what is not there is unpacked as ever.
    for entry in &layers {
        if hands.stat(&layer_key(&entry.layer)).await.is_err() {
            return hands.relies_on(Vec::new());
        }
    }
    let keys: Vec<String> = layers.iter().map(|entry| layer_key(&entry.layer)).collect();
    let (store, clock) = (Arc::new(hands.clone()), Arc::new(hands.clone()));
    let lease = Lease::new(store, clock, "node/layers", Terms { ttl: NODE_TTL, writer: false });
    if !keys.is_empty() {
        lease.replace(keys.clone()).await.unwrap();
    }
    hands.relies_on(keys);
}

/// A collector, so many times, each when the clock says that the grace has passed since.
pub(super) async fn collects(hands: Hands, run: &'static str, times: usize) {
    for time in 0..times {
        if time > 0 {
            super::super::clock::Clock::sleep(&hands, GRACE).await;
        }
        let name = format!("{run}-{time}");
        match collect_once(&hands, &name).await {
            Ok(()) | Err(Error::Busy { .. } | Error::HeldUp(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) async fn collect_once(hands: &Hands, run: &str) -> Result<(), Error> {
    let clock = Arc::new(hands.clone());
    let options = Options { at_once: 1, run: run.to_owned(), clock, ..Options::new(true, GRACE, SETTLE) };
    collect(&refs(hands), &options, &|_| {}).await.map(drop)
}

/// An administrator.
pub(super) async fn removes(hands: Hands, image: Image) {
    refs(&hands).remove_image(&image.image_name()).await.unwrap();
}
