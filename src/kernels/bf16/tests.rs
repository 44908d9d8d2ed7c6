//! Rounding, and the paths by name.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::super::microkernel::Engine;
use super::*;

/// The neighbours of a number among the bf16.
fn neighbours(number: f32) -> [f32; 2] {
    let bits = number.to_bits() & 0xffff_0000;
    [f32::from_bits(bits), f32::from_bits(bits + 0x1_0000)]
}

proptest! {
    #[test]
    fn a_rounded_number_is_the_nearer_neighbour_and_even_in_the_middle(
        number in prop::num::f32::NORMAL,
    ) {
        // The neighbour of larger ones would be infinite.
        prop_assume!(number.abs() < 3e38);
        let [below, above] = neighbours(number);
        let distance = |candidate: f32| (f64::from(candidate) - f64::from(number)).abs();
        let is_even = |candidate: f32| candidate.to_bits() >> 16 & 1 == 0;
        let expected = match distance(below).total_cmp(&distance(above)) {
            Ordering::Less => below,
            Ordering::Equal if is_even(below) => below,
            _ => above,
        };
        prop_assert_eq!(round(number).to_bits(), expected.to_bits());
    }

    #[test]
    fn pairs_hold_what_rounding_gives(
        bits in prop::collection::vec(any::<u32>(), 1..80),
        others in prop::collection::vec(any::<u32>(), 80),
    ) {
        let [first, second] = [&bits, &others]
            .map(|bits| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<f32>>());
        let word = |number: f32| {
            let word = round(number).to_bits() >> 16;
            // All that are not a number count as one.
            if number.is_nan() { 0x7fc0 } else { word }
        };
        let is_word = |found: u32, number: f32| {
            let found_nan = f32::from_bits(found << 16).is_nan();
            if number.is_nan() { found_nan } else { found == word(number) }
        };
        for path in MixedPath::ALL.into_iter().filter(|path| path.is_available()) {
            let engine = Engine::of_pairs(path).expect("the path is available");
            let Some(pairing) = engine.and_then(Engine::pairing) else { continue };
            let mut pairs = vec![0.0; first.len()];
            pairing.pair(&first, Some(&second), &mut pairs);
            for (at, pair) in pairs.iter().enumerate() {
                prop_assert!(is_word(pair.to_bits() & 0xffff, first[at]));
                prop_assert!(is_word(pair.to_bits() >> 16, second[at]));
            }
            pairing.pair(&first, None, &mut pairs);
            prop_assert!(pairs.iter().all(|pair| pair.to_bits() >> 16 == 0));
            let mut halves = vec![0.0; first.len().div_ceil(2)];
            pairing.pair_neighbours(&first, &mut halves);
            for (at, number) in first.iter().enumerate() {
                let found = halves[at / 2].to_bits() >> (16 * (at % 2)) & 0xffff;
                prop_assert!(is_word(found, *number));
            }
        }
    }
}

#[test]
fn special_numbers_round_to_their_like() {
    assert!(round(f32::NAN).is_nan());
    let rounds_to = |number: f32, other: f32| round(number).to_bits() == other.to_bits();
    assert!(rounds_to(f32::NEG_INFINITY, f32::NEG_INFINITY));
    assert!(rounds_to(f32::MAX, f32::INFINITY));
    assert!(rounds_to(-f32::MIN_POSITIVE / 2.0, -0.0));
}

#[test]
fn a_path_is_read_as_it_is_written_and_others_are_refused() {
    for path in MixedPath::ALL {
        assert_eq!(path.word().parse(), Ok(path));
    }
    let refusal = Arithmetic::mixed(Some("fp8")).unwrap_err();
    assert!(refusal.to_string().starts_with("`fp8` is no bf16 path; possible are"), "{refusal}");
}

#[test]
fn a_path_that_the_processor_lacks_is_refused_with_those_it_has() {
    for path in MixedPath::ALL {
        let outcome = Arithmetic::mixed(Some(path.word()));
        if path.is_available() {
            assert_eq!(outcome, Ok(Some(Arithmetic::Mixed(path))));
            continue;
        }
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(&format!("`{}`; it has ", path.word())), "{text}");
        assert!(text.ends_with("portable"), "{text}");
    }
}

#[test]
fn without_a_name_the_portable_path_is_never_taken() {
    assert_ne!(Arithmetic::mixed(None), Ok(Some(Arithmetic::Mixed(MixedPath::Portable))));
}
