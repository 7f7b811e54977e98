//! An ordered map for where there are millions of them and nearly all are empty: the attributes of a node, the names in
//! one that is no directory. An empty one takes eight bytes.

use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::Deref;

/// A map that is read as the [`BTreeMap`] that it stands for.
#[derive(Clone)]
#[allow(clippy::box_collection, reason = "the box is there to be left out")]
pub struct RareMap<K, V>(Option<Box<BTreeMap<K, V>>>);

impl<K: Ord, V> RareMap<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self(None)
    }

    /// As [`BTreeMap::insert`].
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.get_or_insert_default().insert(key, value)
    }

    /// As [`BTreeMap::remove`].
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.as_mut()?.remove(key)
    }

    /// As [`BTreeMap::retain`].
    pub fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        if let Some(map) = &mut self.0 {
            map.retain(keep);
        }
    }

    /// As [`BTreeMap::clear`].
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

impl<K, V> Default for RareMap<K, V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: 'static, V: 'static> RareMap<K, V> {
    const EMPTY: &'static BTreeMap<K, V> = &BTreeMap::new();
}

impl<K: 'static, V: 'static> Deref for RareMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        self.0.as_deref().unwrap_or(Self::EMPTY)
    }
}

impl<K: fmt::Debug + 'static, V: fmt::Debug + 'static> fmt::Debug for RareMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<K: PartialEq + 'static, V: PartialEq + 'static> PartialEq for RareMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<K: Eq + 'static, V: Eq + 'static> Eq for RareMap<K, V> {}

impl<K, V> From<BTreeMap<K, V>> for RareMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        Self((!map.is_empty()).then(|| Box::new(map)))
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for RareMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        BTreeMap::from_iter(pairs).into()
    }
}

impl<K, V> IntoIterator for RareMap<K, V> {
    type Item = (K, V);
    type IntoIter = btree_map::IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.map(|map| *map).unwrap_or_default().into_iter()
    }
}

impl<'a, K: 'static, V: 'static> IntoIterator for &'a RareMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = btree_map::Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_map_that_it_stands_for() {
        let mut map = RareMap::default();
        assert!(map.is_empty() && map.remove(&1).is_none());
        assert_eq!((map.insert(2, 'b'), map.insert(1, 'a'), map.insert(1, 'c')), (None, None, Some('a')));
        assert_eq!(map, [(1, 'c'), (2, 'b')].into_iter().collect());
        map.retain(|key, _| *key == 2);
        assert_eq!(map.clone().into_iter().collect::<Vec<_>>(), [(2, 'b')]);
        assert_eq!(map.remove(&2), Some('b'));
        assert_eq!(map, RareMap::new());
        assert_eq!(size_of::<RareMap<Vec<u8>, Vec<u8>>>(), 8);
    }
}
