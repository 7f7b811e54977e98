//! Layer files: that each is the layer its name says, by its index, or by every byte.

use super::Check;
use crate::collect;
use crate::layer::{LayerError, LayerId, read_index, verify_object};
use crate::refs::layer_of;
use crate::store::{Listed, Store};

impl Check<'_> {
    pub(super) async fn layers(&mut self, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<(), collect::Error> {
        let store = self.refs.store().clone();
        let objects = store.scan("layers/").await?;
        let (total, mut done) = (objects.iter().map(|object| object.stat.size).sum(), 0);
        for object in objects {
            match layer_of(&object.key) {
                Some(id) => match looked_at(&*store, &object, &id, self.options.deep).await {
                    Ok(()) => drop(self.good.insert(id)),
                    // Deleted since it was listed.
                    Err(LayerError::Store(crate::store::StoreError::NotFound { .. })) => {}
                    Err(LayerError::Store(error)) => return Err(error.into()),
                    Err(LayerError::Unsupported(what)) => {
                        self.good.insert(id);
                        self.report.note(&object.key, what, false);
                    }
                    // What can be done about it is known when all names have been looked at.
                    Err(error) => self.bad.push((object.key.clone(), crate::causes(&error))),
                },
                None => self.report.note(&object.key, "its name is no layer's", false),
            }
            self.report.layers.objects += 1;
            self.report.layers.bytes += object.stat.size;
            done += object.stat.size;
            progress(done, total);
        }
        Ok(())
    }
}

async fn looked_at(store: &dyn Store, object: &Listed, id: &LayerId, deep: bool) -> Result<(), LayerError> {
    if deep {
        return verify_object(store, &object.key, Some(id)).await.map(drop);
    }
    let index = read_index(store, &object.key, Some(id)).await?;
    match object.stat.size < index.file_len() {
        true => Err(LayerError::corrupt(format!("{} bytes of a layer of {}", object.stat.size, index.file_len()))),
        false => Ok(()),
    }
}
