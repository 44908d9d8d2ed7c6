//! Rounding, and the paths by name.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::super::microkernel::Engine;
use super::super::{ConvolutionShape, ConvolutionSizes};
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

/// Says on standard error why a test shows nothing here.
fn skip(what: &str) {
    eprintln!("skipped: this processor lacks {what}");
}

#[test]
fn tiles_compute_what_vectors_do() {
    let Some(tiles) = Engine::of_emulated_tiles() else { return skip("AVX-512 BF16") };
    tiles_agree_with_vectors(tiles, "emulated tiles");
    match Engine::of_pairs(MixedPath::Amx) {
        Ok(Some(tiles)) => tiles_agree_with_vectors(tiles, "AMX"),
        _ => skip("AMX"),
    }
}

/// All passes of shapes whose panels have every number of rows, and depths that fill tiles and
/// that do not: both engines sum at most 4000 products below 1.
fn tiles_agree_with_vectors(tiles: Engine, name: &str) {
    let vectors = Engine::of_pairs(MixedPath::Avx512Bf16).expect("tiles come with these vectors");
    let sizes = ConvolutionSizes {
        batch: 3,
        channels: 6,
        height: 9,
        width: 11,
        filters: 10,
        kernel_height: 3,
        kernel_width: 3,
        stride: 1,
        padding: 1,
        groups: 2,
    };
    let variants = (1..=20).map(|filters| ConvolutionSizes { filters, groups: 1, ..sizes });
    let strided = ConvolutionSizes { stride: 2, height: 10, ..sizes };
    let deep = ConvolutionSizes { channels: 70, filters: 40, groups: 1, batch: 16, ..sizes };
    for sizes in [sizes, strided, deep].into_iter().chain(variants) {
        let shape = ConvolutionShape::new(sizes).expect("the sizes fit together");
        let numbers = |length: usize, salt: usize| -> Vec<f32> {
            (0..length).map(|i| ((7919 * i + salt) % 2001) as f32 / 1000.0 - 1.0).collect()
        };
        let (input, weights) = (numbers(shape.input_len(), 0), numbers(shape.weights_len(), 500));
        let (bias, gradient) = (numbers(sizes.filters, 1000), numbers(shape.output_len(), 1500));
        let [by_tiles, by_vectors] = [Some(tiles), vectors].map(|engine| {
            let mixed = Mixed::by(engine, &shape);
            let mut results = [&gradient, &input, &weights].map(|like| vec![f32::NAN; like.len()]);
            let [output, data, weight] = &mut results;
            mixed.forward(&input, &weights, Some(&bias), output);
            mixed.backward_data(&weights, &gradient, data);
            mixed.backward_weights(&input, &gradient, weight, None);
            results.concat()
        });
        for (tile, vector) in by_tiles.iter().zip(&by_vectors) {
            assert!((tile - vector).abs() <= 4000.0 * f32::EPSILON, "{name}, {sizes}");
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
