//! Collapsed stacks beside plain ones: when they are written, taken, and left alone.

use super::tests::{chain, entry, layer, refs, stack, store};
use super::*;

fn collapsed(name: &str, layers: &[u8], collapsed: &[u8]) -> Chain {
    Chain { collapsed: Some(stack(collapsed)), ..chain(name, layers) }
}

#[tokio::test]
async fn a_collapsed_stack_is_added_beside_the_plain_one_and_is_what_is_mounted() {
    let store = store();
    let refs = refs(&store);
    refs.create_chain(&chain("a", &[1, 2, 3])).await.unwrap();
    let id = Digest::of(b"a");
    assert_eq!(refs.add_collapsed(&[collapsed("a", &[1, 2, 3], &[9, 3])], false).await.unwrap().len(), 1);
    let stacks = refs.resolve_stacks(&Name::Digest(id)).await.unwrap();
    assert_eq!((&stacks.plain, stacks.collapsed.as_ref()), (&stack(&[1, 2, 3]), Some(&stack(&[9, 3]))));
    assert_eq!(stacks.collapsed_only().collect::<Vec<_>>(), [&entry(9)]);
    assert_eq!(refs.resolve(&Name::Digest(id)).await.unwrap(), stack(&[9, 3]));
    // One that is there stays, unless it is to be made again; so does one of another stack.
    for (other, again, stands) in [
        (collapsed("a", &[1, 2, 3], &[8]), false, &[9, 3][..]),
        (collapsed("a", &[1, 2, 4], &[8]), true, &[9, 3]),
        (collapsed("a", &[1, 2, 3], &[8]), true, &[8]),
    ] {
        let stand = refs.add_collapsed(&[other], again).await.unwrap();
        assert_eq!(stand, [collapsed("a", &[1, 2, 3], stands)]);
        assert_eq!(refs.chain(&id).await.unwrap().unwrap(), stand[0]);
    }
    assert_eq!(refs.add_collapsed(&[collapsed("b", &[1], &[8])], false).await.unwrap(), [], "no chain is made by it");
}

#[tokio::test]
async fn a_chain_written_again_keeps_its_collapsed_stack_where_its_layers_are_the_same() {
    let store = store();
    let refs = refs(&store);
    let layers = |ids: &[u8]| -> Vec<ChainLayer> {
        let layer = |n: &u8| ChainLayer { chain_id: Digest::of(&[ids.len() as u8, *n]), entry: entry(*n) };
        ids.iter().map(layer).collect()
    };
    let made = refs.write_chains(&layers(&[1, 2]), false).await.unwrap().remove(1);
    refs.add_collapsed(&[Chain { collapsed: Some(stack(&[9])), ..made.clone() }], false).await.unwrap();
    let again = refs.write_chains(&layers(&[1, 2]), true).await.unwrap();
    assert_eq!((again[0].collapsed.as_ref(), again[1].collapsed.as_ref()), (None, Some(&stack(&[9]))));
    let other = [layers(&[1, 2])[0].clone(), ChainLayer { entry: entry(3), ..layers(&[1, 2])[1].clone() }];
    assert_eq!(refs.write_chains(&other, true).await.unwrap()[1].collapsed, None);
}

#[tokio::test]
async fn a_collapsed_stack_that_is_revoked_or_of_a_later_version_counts_as_absent() {
    let store = store();
    let id = Digest::of(b"a");
    let later = vec![StackEntry { format: 2, ..entry(9) }].into();
    let bad = [Some(later), Some(Stack::EMPTY), Some(stack(&[8]))];
    let writer = refs(&store);
    writer.revoke(&layer(8), "made of a bad layer").await.unwrap();
    for bad in bad {
        writer.replace_chain(&Chain { collapsed: bad, ..chain("a", &[1, 2]) }).await.unwrap();
        let reader = refs(&store);
        assert_eq!(reader.resolve(&Name::Digest(id)).await.unwrap(), stack(&[1, 2]));
        assert_eq!(reader.chain(&id).await.unwrap().unwrap().collapsed, None);
    }
    // The collapsed stack has the files of the plain one.
    writer.replace_chain(&collapsed("a", &[1, 2], &[9])).await.unwrap();
    writer.revoke(&layer(2), "a secret in it").await.unwrap();
    let reader = refs(&store);
    assert!(matches!(reader.resolve(&Name::Digest(id)).await, Err(Error::Revoked { .. })));
    assert_eq!(reader.chain(&id).await.unwrap(), None);
}
