//! What an administrator does with this node's cache: `lamina cache`.
//!
//! Decode, call, map the error, reply; what a call means stands in the proto file. What is done stands in the rooms: `stat`,
//! `warm`, `pin`, `drop` (evict and collect), `verify`; `progress` is for those who wait for long work.

mod drop;
mod pin;
mod progress;
mod stat;
mod verify;
mod warm;

use crate::Error;
use crate::node::Node;
use crate::service::{Answer, to_status};
use blobstore::refs::{Name, Stack};
use control::v1;
use progress::{Messages, begin};
use std::sync::Arc;
use tonic::{Request, Response};

pub(crate) struct Administration(pub(crate) Arc<Node>);

/// A reference as it is called from now on (the beginning of a layer's id in full), and what it stands for.
async fn resolve(node: &Node, reference: &str) -> Result<(String, Stack), Error> {
    let name: Name = reference.parse().map_err(|e| Error::Invalid(format!("{e}")))?;
    let stack = node.resolve(&name, node.config.deadline).await?.best();
    let name = match (&name, stack.layers()) {
        (Name::LayerPrefix(_), [layer]) => Name::Layer(layer.layer),
        _ => name,
    };
    Ok((name.to_string(), stack))
}

#[tonic::async_trait]
impl control::Cache for Administration {
    type WarmStream = Messages;
    type PinStream = Messages;
    type VerifyStream = Messages;

    async fn stat(&self, _: Request<v1::CacheStatRequest>) -> Answer<v1::CacheStatReply> {
        Ok(Response::new(stat::report(&self.0).await.map_err(to_status)?))
    }

    async fn warm(&self, request: Request<v1::CacheWarmRequest>) -> Answer<Messages> {
        let (node, v1::CacheWarmRequest { reference, profile }) = (Arc::clone(&self.0), request.into_inner());
        let (reference, stack) = resolve(&node, &reference).await.map_err(to_status)?;
        Ok(begin(|caller| async move {
            let work = async {
                let layers = warm::open(&node, &stack).await?;
                match profile {
                    true => warm::warm_starts(&node, &reference, layers, &caller).await,
                    false => warm::warm(&node, layers, &caller).await,
                }
            };
            let warmed = caller.unless_gone(work).await?;
            let warmed = v1::CacheWarmed { reference, ..warmed };
            Ok(v1::CacheProgress { done: warmed.bytes, total: warmed.bytes, warmed: Some(warmed), verified: None })
        }))
    }

    async fn pin(&self, request: Request<v1::CachePinRequest>) -> Answer<Messages> {
        let (node, reference) = (Arc::clone(&self.0), request.into_inner().reference);
        let (reference, stack) = resolve(&node, &reference).await.map_err(to_status)?;
        Ok(begin(|caller| async move {
            let warmed = pin::pin(&node, reference, &stack, &caller).await?;
            Ok(v1::CacheProgress { done: warmed.bytes, total: warmed.bytes, warmed: Some(warmed), verified: None })
        }))
    }

    async fn unpin(&self, request: Request<v1::CacheUnpinRequest>) -> Answer<v1::CacheUnpinReply> {
        let (node, reference) = (Arc::clone(&self.0), request.into_inner().reference);
        Ok(Response::new(pin::unpin(&node, &reference).await.map_err(to_status)?))
    }

    async fn evict(&self, request: Request<v1::CacheEvictRequest>) -> Answer<v1::CacheEvictReply> {
        let (_, stack) = resolve(&self.0, &request.into_inner().reference).await.map_err(to_status)?;
        Ok(Response::new(drop::evict(&self.0, &stack).await.map_err(to_status)?))
    }

    async fn verify(&self, _: Request<v1::CacheVerifyRequest>) -> Answer<Messages> {
        let node = Arc::clone(&self.0);
        Ok(begin(|caller| async move {
            let verified = verify::verify(&node, &caller).await?;
            Ok(v1::CacheProgress { verified: Some(verified), ..v1::CacheProgress::default() })
        }))
    }

    async fn collect(&self, _: Request<v1::CacheCollectRequest>) -> Answer<v1::CacheCollectReply> {
        Ok(Response::new(drop::collect(&self.0).await.map_err(to_status)?))
    }
}
