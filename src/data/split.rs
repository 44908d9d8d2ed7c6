//! Which training examples are held out for validation.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Seed of the one permutation that decides what is held out.
///
/// It is a constant and no part of a run's configuration: every run on a data
/// set holds out the same examples whatever its own seed, so that validation
/// losses of different runs can be compared. The value spells "validati" in
/// ASCII.
const VALIDATION_SPLIT_SEED: u64 = 0x7661_6c69_6461_7469;

/// The example numbers of a training set, parted in two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// What remains to train on, ascending.
    pub training: Vec<usize>,
    /// What is held out, ascending.
    pub validation: Vec<usize>,
}

/// Parts the examples `0..n_examples`: the first `n_validation` of a fixed
/// random permutation are held out (all of them if there are no more).
///
/// The same numbers always give the same split, and a larger validation set
/// contains every smaller one.
pub(super) fn split(n_examples: usize, n_validation: usize) -> Split {
    let mut held_out = vec![false; n_examples];
    for example_idx in permutation_start(n_examples, n_validation) {
        held_out[example_idx] = true;
    }
    let (validation, training) = (0..n_examples).partition(|&example_idx| held_out[example_idx]);
    Split { training, validation }
}

/// The first `length` places of the permutation, by the shuffle of Fisher and
/// Yates: the n-th draw depends on `n_examples` and on the draws before it.
fn permutation_start(n_examples: usize, length: usize) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(VALIDATION_SPLIT_SEED);
    let mut order: Vec<usize> = (0..n_examples).collect();
    let length = length.min(n_examples);
    for place in 0..length {
        let partner = place + below(&mut rng, n_examples - place);
        order.swap(place, partner);
    }
    order.truncate(length);
    order
}

/// A number in `0..bound`: ⌊r·bound / 2⁶⁴⌋ of a random 64-bit r. No number is
/// favoured by more than bound/2⁶⁴, 3·10⁻¹⁵ for 60,000 examples.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    let product = u128::from(rng.next_u64()) * bound as u128;
    usize::try_from(product >> 64).expect("the quotient is below a bound that is a usize")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_example_is_on_exactly_one_side(
            n_examples in 0_usize..500,
            n_validation in 0_usize..500,
        ) {
            let Split { training, validation } = split(n_examples, n_validation);

            let mut all = [training, validation.clone()].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..n_examples).collect::<Vec<_>>());
            prop_assert_eq!(validation.len(), n_validation.min(n_examples));
        }

        #[test]
        fn both_sides_keep_the_order_of_the_data(
            n_examples in 0_usize..500,
            n_validation in 0_usize..500,
        ) {
            let Split { training, validation } = split(n_examples, n_validation);

            prop_assert!(training.is_sorted());
            prop_assert!(validation.is_sorted());
        }

        #[test]
        fn the_split_is_the_same_for_every_call(
            n_examples in 0_usize..500,
            n_validation in 0_usize..500,
        ) {
            prop_assert_eq!(split(n_examples, n_validation), split(n_examples, n_validation));
        }

        #[test]
        fn a_larger_validation_set_contains_the_smaller(
            n_examples in 0_usize..500,
            smaller in 0_usize..250,
            added in 0_usize..250,
        ) {
            let small = split(n_examples, smaller).validation;
            let large = split(n_examples, smaller + added).validation;

            prop_assert!(small.iter().all(|example_idx| large.contains(example_idx)));
        }
    }

    #[test]
    fn with_nothing_held_out_the_training_set_is_complete() {
        let split = split(60_000, 0);

        assert_eq!(split.training, (0..60_000).collect::<Vec<_>>());
        assert!(split.validation.is_empty());
    }

    #[test]
    fn held_out_examples_are_spread_over_the_whole_set() {
        let validation = split(60_000, 5_000).validation;

        for tenth in 0..10 {
            let in_this_tenth =
                validation.iter().filter(|&&example_idx| example_idx / 6_000 == tenth).count();
            // Hypergeometric: mean 500, standard deviation 20.3; five of them.
            assert!((398..=602).contains(&in_this_tenth), "{tenth}: {in_this_tenth}");
        }
    }

    #[test]
    fn the_permutation_is_that_of_every_earlier_version() {
        assert_eq!(permutation_start(60_000, 6), GOLDEN_START);
    }

    /// If these change, validation losses of older runs are no longer
    /// comparable: the change log must say so.
    const GOLDEN_START: [usize; 6] = [27_746, 7_949, 20_854, 22_992, 48_884, 39_251];
}
