//! The database's tables, and reading and changing them inside a transaction. What a change means is not known here.

use crate::error::{Context, Result};
use crate::record::Record;
use redb::{
    MultimapTableDefinition, ReadTransaction, ReadableMultimapTable, ReadableTable, ReadableTableMetadata,
    TableDefinition, WriteTransaction,
};

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const SNAPSHOTS: TableDefinition<&str, &[u8]> = TableDefinition::new("snapshots");
const CHILDREN: MultimapTableDefinition<&str, &str> = MultimapTableDefinition::new("children");
const LAYERS: TableDefinition<&str, u64> = TableDefinition::new("layers");
const DETACHED: TableDefinition<u64, ()> = TableDefinition::new("detached");

/// Reading, inside a change or outside.
pub(crate) trait Read {
    fn get(&self, name: &str) -> Result<Option<Record>>;
    fn layer_dir(&self, id: &str) -> Result<Option<u64>>;
}

/// What a change works on.
pub(crate) struct Tables<'t> {
    meta: redb::Table<'t, &'static str, u64>,
    snapshots: redb::Table<'t, &'static str, &'static [u8]>,
    children: redb::MultimapTable<'t, &'static str, &'static str>,
    layers: redb::Table<'t, &'static str, u64>,
    detached: redb::Table<'t, u64, ()>,
}

impl<'t> Tables<'t> {
    pub(crate) fn open(transaction: &'t WriteTransaction) -> Result<Self> {
        Ok(Self {
            meta: transaction.open_table(META).context(failed)?,
            snapshots: transaction.open_table(SNAPSHOTS).context(failed)?,
            children: transaction.open_multimap_table(CHILDREN).context(failed)?,
            layers: transaction.open_table(LAYERS).context(failed)?,
            detached: transaction.open_table(DETACHED).context(failed)?,
        })
    }

    /// Records a snapshot under a name that is free.
    pub(crate) fn insert(&mut self, name: &str, record: &Record) -> Result<()> {
        if !record.parent.is_empty() {
            self.children.insert(record.parent.as_str(), name).context(failed)?;
        }
        if let Some(dir) = record.dir {
            self.used(dir)?;
        }
        self.replace(name, record)
    }

    /// Writes a record anew, its parent and directory unchanged.
    pub(crate) fn replace(&mut self, name: &str, record: &Record) -> Result<()> {
        self.snapshots.insert(name, record.encode()?.as_slice()).context(failed)?;
        Ok(())
    }

    /// Forgets a snapshot.
    pub(crate) fn delete(&mut self, name: &str, record: &Record) -> Result<()> {
        if !record.parent.is_empty() {
            self.children.remove(record.parent.as_str(), name).context(failed)?;
        }
        self.snapshots.remove(name).context(failed)?;
        Ok(())
    }

    pub(crate) fn has_children(&self, name: &str) -> Result<bool> {
        Ok(!self.children.get(name).context(failed)?.is_empty())
    }

    /// Gives the layer `id` the directory number `dir`.
    pub(crate) fn assign_layer(&mut self, id: &str, dir: u64) -> Result<()> {
        self.layers.insert(id, dir).context(failed)?;
        self.used(dir)
    }

    /// Takes the directory away from the layers that `keep` refuses; they wait in `detached` from now on.
    pub(crate) fn retire_layers(&mut self, keep: impl Fn(&str) -> bool) -> Result<()> {
        let mut retired = Vec::new();
        for row in self.layers.iter().context(failed)? {
            let (id, dir) = row.context(failed)?;
            if !keep(id.value()) {
                retired.push((id.value().to_owned(), dir.value()));
            }
        }
        for (id, dir) in retired {
            self.layers.remove(id.as_str()).context(failed)?;
            self.detached.insert(dir, ()).context(failed)?;
        }
        Ok(())
    }

    /// A layer directory that no table knows waits for its end too.
    pub(crate) fn detach(&mut self, dir: u64) -> Result<()> {
        self.detached.insert(dir, ()).context(failed)?;
        Ok(())
    }

    /// The directory of a retired layer is gone.
    pub(crate) fn forget_detached(&mut self, dir: u64) -> Result<()> {
        self.detached.remove(dir).context(failed)?;
        Ok(())
    }

    /// Calls `each` with every snapshot, in the order of their names.
    pub(crate) fn scan(&self, each: impl FnMut(&str, Record) -> Result<()>) -> Result<()> {
        scan(&self.snapshots, each)
    }

    /// The highest number that a directory ever had; 0 = none.
    pub(crate) fn sequence(&self) -> Result<u64> {
        Ok(self.meta.get("sequence").context(failed)?.map_or(0, |value| value.value()))
    }

    /// The version of the database, which is `new` from now on if it has none.
    pub(crate) fn version(&mut self, new: u64) -> Result<u64> {
        let version = self.meta.get("version").context(failed)?.map(|value| value.value());
        if version.is_none() {
            self.meta.insert("version", new).context(failed)?;
        }
        Ok(version.unwrap_or(new))
    }

    fn used(&mut self, dir: u64) -> Result<()> {
        if dir > self.sequence()? {
            self.meta.insert("sequence", dir).context(failed)?;
        }
        Ok(())
    }
}

impl Read for Tables<'_> {
    fn get(&self, name: &str) -> Result<Option<Record>> {
        get(&self.snapshots, name)
    }

    fn layer_dir(&self, id: &str) -> Result<Option<u64>> {
        Ok(self.layers.get(id).context(failed)?.map(|dir| dir.value()))
    }
}

/// The last committed state, held as long as this lives.
pub(crate) struct Reader {
    snapshots: redb::ReadOnlyTable<&'static str, &'static [u8]>,
    layers: redb::ReadOnlyTable<&'static str, u64>,
    detached: redb::ReadOnlyTable<u64, ()>,
}

impl Reader {
    pub(crate) fn open(transaction: &ReadTransaction) -> Result<Self> {
        Ok(Self {
            snapshots: transaction.open_table(SNAPSHOTS).context(failed)?,
            layers: transaction.open_table(LAYERS).context(failed)?,
            detached: transaction.open_table(DETACHED).context(failed)?,
        })
    }

    /// Calls `each` with every snapshot, in the order of their names.
    pub(crate) fn scan(&self, each: impl FnMut(&str, Record) -> Result<()>) -> Result<()> {
        scan(&self.snapshots, each)
    }

    /// How many snapshots there are.
    pub(crate) fn count(&self) -> Result<u64> {
        self.snapshots.len().context(failed)
    }

    /// Every layer that has a directory: (id, number).
    pub(crate) fn layers(&self) -> Result<Vec<(String, u64)>> {
        let rows = self.layers.iter().context(failed)?;
        rows.map(|row| row.map(|(id, dir)| (id.value().to_owned(), dir.value())).context(failed)).collect()
    }

    /// The directories that wait for their end.
    pub(crate) fn detached(&self) -> Result<Vec<u64>> {
        let rows = self.detached.iter().context(failed)?;
        rows.map(|row| row.map(|(dir, _)| dir.value()).context(failed)).collect()
    }
}

impl Read for Reader {
    fn get(&self, name: &str) -> Result<Option<Record>> {
        get(&self.snapshots, name)
    }

    fn layer_dir(&self, id: &str) -> Result<Option<u64>> {
        Ok(self.layers.get(id).context(failed)?.map(|dir| dir.value()))
    }
}

fn get(table: &impl ReadableTable<&'static str, &'static [u8]>, name: &str) -> Result<Option<Record>> {
    let value = table.get(name).context(failed)?;
    value.map(|bytes| Record::decode(name, bytes.value())).transpose()
}

fn scan(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    mut each: impl FnMut(&str, Record) -> Result<()>,
) -> Result<()> {
    for row in table.iter().context(failed)? {
        let (name, bytes) = row.context(failed)?;
        each(name.value(), Record::decode(name.value(), bytes.value())?)?;
    }
    Ok(())
}

/// What is said of any failure of redb; its own words follow.
pub(crate) fn failed() -> String {
    "the snapshot database failed".into()
}
