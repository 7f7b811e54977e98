//! Which layers become one.

use blobstore::refs::StackEntry;
use std::ops::Range;

/// Groups of consecutive layers, bottom to top, from layer number `from` on: each as large as it can be while its layer
/// files add up to at most `size` bytes, and at least one layer. What a layer with an opaque root hides is left out.
pub(super) fn groups(layers: &[&StackEntry], from: usize, size: u64) -> Vec<Range<usize>> {
    let from = layers.iter().rposition(|layer| layer.root_opaque).unwrap_or(0).max(from);
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut sum = 0u64;
    for (number, layer) in layers.iter().enumerate().skip(from) {
        sum = sum.saturating_add(bytes(layer));
        match groups.last_mut().filter(|_| sum <= size) {
            Some(group) => group.end = number + 1,
            None => {
                groups.push(number..number + 1);
                sum = bytes(layer);
            }
        }
    }
    groups
}

/// Bytes of a layer's file; of one that says nothing of it, too many.
fn bytes(layer: &StackEntry) -> u64 {
    if layer.size == 0 { u64::MAX } else { layer.size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blobstore::layer::LayerId;

    fn plan(sizes: &[u64], from: usize, opaque: Option<usize>) -> Vec<(usize, usize)> {
        let entry = |(n, size): (usize, &u64)| StackEntry {
            size: *size,
            root_opaque: opaque == Some(n),
            ..StackEntry::bare(LayerId::from_bytes([n as u8; 32]))
        };
        let entries: Vec<_> = sizes.iter().enumerate().map(entry).collect();
        let groups = groups(&entries.iter().collect::<Vec<_>>(), from, 10);
        groups.into_iter().map(|group| (group.start, group.end)).collect()
    }

    #[test]
    fn groups_are_filled_from_the_bottom_up_to_the_size() {
        assert_eq!(plan(&[4, 4, 4, 4], 0, None), [(0, 2), (2, 4)]);
        assert_eq!(plan(&[5, 5, 1, 11, 1, 1], 0, None), [(0, 2), (2, 3), (3, 4), (4, 6)]);
        assert_eq!(plan(&[], 0, None), []);
        assert_eq!(plan(&[u64::MAX, u64::MAX, 1], 0, None), [(0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn what_is_kept_and_what_is_hidden_are_left_out() {
        assert_eq!(plan(&[1, 1, 1, 1], 2, None), [(2, 4)]);
        assert_eq!(plan(&[1, 1], 2, None), []);
        assert_eq!(plan(&[1, 1, 1, 1], 0, Some(2)), [(2, 4)]);
        assert_eq!(plan(&[1, 1, 1, 1], 1, Some(0)), [(1, 4)]);
        assert_eq!(plan(&[1, 0, 1], 0, None), [(0, 1), (1, 2), (2, 3)], "a layer of unknown size stays alone");
    }
}
