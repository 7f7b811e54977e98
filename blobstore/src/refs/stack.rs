//! A stack: the layers of a file system, bottom to top, with what a reader needs to open each in one request.

use super::error::{Error, Result};
use super::layer_key;
use crate::layer::{LayerId, format};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// One layer of a stack, as a reference describes it. All but `layer` are hints that the layer's own index, which
/// `layer` verifies, confirms; 0 = not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackEntry {
    /// Id of the layer.
    pub layer: LayerId,
    /// Bytes of the layer file up to the end of its metadata: what to ask for in one request.
    #[serde(default)]
    pub head: u64,
    /// Bytes of the layer file.
    #[serde(default)]
    pub size: u64,
    /// Major version of the index. A stack with one that this build does not know counts as not converted.
    #[serde(default)]
    pub format: u32,
    /// Generation of the writer.
    #[serde(default)]
    pub generation: u32,
    /// Nothing below this layer shows through.
    #[serde(default)]
    pub root_opaque: bool,
}

impl StackEntry {
    /// A layer of which nothing but its id is known.
    pub fn bare(layer: LayerId) -> Self {
        Self { layer, head: 0, size: 0, format: 0, generation: 0, root_opaque: false }
    }
}

/// Layers bottom to top. A layer whose root is opaque is always the bottom: what lies under it is not part of the stack.
/// Each layer is there once, at its highest place: overlayfs refuses one twice, and a lower occurrence shows nothing that
/// the higher one does not decide.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<StackEntry>", into = "Vec<StackEntry>")]
pub struct Stack(Vec<StackEntry>);

impl Stack {
    /// No layer at all.
    pub const EMPTY: Self = Self(Vec::new());

    /// The layers, bottom to top.
    pub fn layers(&self) -> &[StackEntry] {
        &self.0
    }

    /// The layers, bottom to top.
    pub fn into_layers(self) -> Vec<StackEntry> {
        self.0
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no layer.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same, unless a layer's index has a version that this build does not know: [`Error::Unsupported`].
    pub(super) fn understood(self) -> Result<Self> {
        match self.0.iter().find(|entry| entry.format > u32::from(format::MAJOR)) {
            None => Ok(self),
            Some(entry) => Err(Error::Unsupported {
                key: layer_key(&entry.layer),
                what: format!("its index has version {} (known: {})", entry.format, format::MAJOR),
            }),
        }
    }

    /// This stack with `top` on it.
    pub fn with(&self, top: StackEntry) -> Self {
        let mut layers = self.0.clone();
        layers.push(top);
        Self::from(layers)
    }

    /// This stack with all of `upper` on it.
    pub fn under(&self, upper: &Stack) -> Self {
        let mut layers = self.0.clone();
        layers.extend_from_slice(&upper.0);
        Self::from(layers)
    }
}

impl From<Vec<StackEntry>> for Stack {
    fn from(mut layers: Vec<StackEntry>) -> Self {
        if let Some(bottom) = layers.iter().rposition(|l| l.root_opaque) {
            layers.drain(..bottom);
        }
        let mut seen = HashSet::new();
        let mut top_first: Vec<_> = layers.into_iter().rev().filter(|l| seen.insert(l.layer)).collect();
        top_first.reverse();
        Self(top_first)
    }
}

impl From<Stack> for Vec<StackEntry> {
    fn from(stack: Stack) -> Self {
        stack.0
    }
}

impl<'a> IntoIterator for &'a Stack {
    type Item = &'a StackEntry;
    type IntoIter = std::slice::Iter<'a, StackEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_twice_in_a_stack_counts_at_its_highest_place() {
        let entry = |n: u8| StackEntry::bare(LayerId::from_bytes([n; 32]));
        let stack = Stack::EMPTY.with(entry(1)).with(entry(2)).with(entry(1));
        assert_eq!(stack.layers(), [entry(2), entry(1)]);
        let stack = stack.under(&Stack::EMPTY.with(entry(2)));
        assert_eq!(stack.layers(), [entry(1), entry(2)]);
    }

    #[test]
    fn a_stack_ends_at_its_topmost_opaque_root() {
        let entry = |n: u8, root_opaque| StackEntry { root_opaque, ..StackEntry::bare(LayerId::from_bytes([n; 32])) };
        let stack = Stack::EMPTY.with(entry(1, true)).with(entry(2, false));
        assert_eq!(stack.len(), 2);
        let stack = stack.with(entry(3, true)).with(entry(4, false));
        assert_eq!(stack.layers(), [entry(3, true), entry(4, false)]);
        let read: Stack =
            serde_json::from_value(serde_json::json!([entry(1, false), entry(2, true), entry(3, false)])).unwrap();
        assert_eq!(read.layers(), [entry(2, true), entry(3, false)]);
    }
}
