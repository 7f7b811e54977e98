//! A store in memory, for this module's tests; it can be told not to list.

use crate::store::{Result, Stat, Store, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::time::SystemTime;

#[derive(Debug, Default)]
pub(in crate::refs) struct Memory {
    pub(in crate::refs) objects: Mutex<BTreeMap<String, Bytes>>,
    pub(in crate::refs) no_list: bool,
}

fn not_found(key: &str) -> StoreError {
    let store = "memory:".to_owned();
    let key = key.to_owned();
    StoreError::NotFound { store, key }
}

#[async_trait]
impl Store for Memory {
    fn url(&self) -> &str {
        "memory:"
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        let found = self.objects.lock().unwrap().get(key).cloned();
        // So that racing writers interleave.
        tokio::task::yield_now().await;
        found.ok_or_else(|| not_found(key))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let all = self.get(key).await?;
        Ok(all.slice(range.start as usize..range.end as usize))
    }

    async fn stat(&self, key: &str) -> Result<Stat> {
        let size = self.get(key).await?.len() as u64;
        let modified = SystemTime::UNIX_EPOCH;
        Ok(Stat { size, modified })
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<()> {
        let mut objects = self.objects.lock().unwrap();
        if objects.contains_key(key) {
            let store = self.url().to_owned();
            let key = key.to_owned();
            return Err(StoreError::AlreadyExists { store, key });
        }
        objects.insert(key.to_owned(), body);
        Ok(())
    }

    async fn put(&self, key: &str, body: Bytes) -> Result<()> {
        self.objects.lock().unwrap().insert(key.to_owned(), body);
        Ok(())
    }

    async fn upload(&self, key: &str, file: &Path) -> Result<()> {
        self.create(key, std::fs::read(file).unwrap().into()).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        if self.no_list {
            let store = self.url().to_owned();
            let what = "list".to_owned();
            return Err(StoreError::Unsupported { store, what });
        }
        let objects = self.objects.lock().unwrap();
        Ok(objects.keys().filter(|k| k.starts_with(prefix)).cloned().collect())
    }

    async fn check_writable(&self) -> Result<()> {
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.objects.lock().unwrap().remove(key);
        Ok(())
    }
}
