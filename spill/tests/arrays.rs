//! The allocator as a program's own.

use spill::{LARGE, MEMORY, Spill, stored};

#[global_allocator]
static ALLOCATOR: Spill = Spill;

fn array(bytes: usize, seed: u64) -> Vec<u64> {
    (0..bytes as u64 / 8).map(|at| at ^ seed).collect()
}

#[track_caller]
fn assert_is(array: &[u64], seed: u64) {
    assert!((0..).zip(array).all(|(at, number)| *number == at ^ seed));
}

#[test]
fn arrays_beyond_the_budget_are_in_files_and_keep_their_contents() {
    let directory = tempfile::tempdir_in(std::env::temp_dir()).unwrap();
    let within = array(MEMORY, 1);
    assert_eq!(stored(), 0, "no directory is named yet");
    spill::to(directory.path()).unwrap();
    assert!(spill::to(&directory.path().join("none")).is_err());
    let mut large = array(MEMORY, 2);
    assert!(stored() >= MEMORY);
    assert_is(&large, 2);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "they have no names");

    // Growing by little, in several threads at once.
    std::thread::scope(|scope| {
        for seed in 3..6 {
            scope.spawn(move || {
                let mut grown = Vec::new();
                (0..2 * LARGE as u64).for_each(|at| grown.push(at ^ seed));
                assert_is(&grown, seed);
            });
        }
    });
    let zeros = vec![0u8; 3 * LARGE];
    assert!(zeros.iter().all(|byte| *byte == 0));

    // Smaller, in its file, and then too small for one.
    let before = stored();
    large.truncate(LARGE / 4);
    large.shrink_to_fit();
    assert!(stored() < before - MEMORY / 2 && stored() >= 5 * LARGE);
    large.truncate(1000);
    large.shrink_to_fit();
    assert_is(&large, 2);
    large.extend((1000..LARGE as u64).map(|at| at ^ 2));
    assert_is(&large, 2);
    assert_is(&within, 1);
    drop((large, zeros));
    assert_eq!(stored(), 0);
}
