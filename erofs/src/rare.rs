//! An ordered map for where there are millions of them, nearly all are empty, and most of the others equal: the extended
//! attributes of nodes. An empty one takes eight bytes, and so does a copy of another.

use std::borrow::Borrow;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A map that is read as the [`BTreeMap`] that it stands for. Copies share it until one of them is changed.
#[derive(Clone)]
pub struct RareMap<K, V>(Option<Arc<BTreeMap<K, V>>>);

impl<K, V> RareMap<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self(None)
    }
}

impl<K: Ord + Clone, V: Clone> RareMap<K, V> {
    /// As [`BTreeMap::insert`].
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        Arc::make_mut(self.0.get_or_insert_default()).insert(key, value)
    }

    /// As [`BTreeMap::remove`].
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let map = self.0.as_mut().filter(|map| map.contains_key(key))?;
        Arc::make_mut(map).remove(key)
    }

    /// As [`BTreeMap::retain`].
    pub fn retain(&mut self, keep: impl FnMut(&K, &mut V) -> bool) {
        if let Some(map) = &mut self.0 {
            Arc::make_mut(map).retain(keep);
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

impl<K: Hash + 'static, V: Hash + 'static> Hash for RareMap<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<K, V> From<BTreeMap<K, V>> for RareMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        Self((!map.is_empty()).then(|| Arc::new(map)))
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for RareMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        BTreeMap::from_iter(pairs).into()
    }
}

impl<K: Clone, V: Clone> IntoIterator for RareMap<K, V> {
    type Item = (K, V);
    type IntoIter = btree_map::IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.map(Arc::unwrap_or_clone).unwrap_or_default().into_iter()
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
        let copy = map.clone();
        assert_eq!(map.remove(&2), Some('b'));
        assert_eq!(copy.get(&2), Some(&'b'));
        assert_eq!(map, RareMap::new());
        assert_eq!(size_of::<RareMap<Vec<u8>, Vec<u8>>>(), 8);
    }
}
