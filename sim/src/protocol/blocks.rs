//! Parts of the parameters that travel, and are updated, by themselves.

use std::ops::Range;

use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use crate::parameters::{Axis, Connections};
use crate::rng::{Seed, Stream, stream_at};

/// One of the parts into which the parameters are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Block {
    /// Counted from 0.
    pub number: u32,
    /// The cut that it is of.
    pub of: Cut,
}

/// A way to cut the parameters into parts that do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Parts that follow each other in the vector `[conv phase | FC phase]`; sizes differ by at most
    /// one entry.
    Even {
        /// How many, at least 1.
        blocks: u32,
    },
    /// Keys of whole layers, as equal as they can be made: the largest layers first, each to the key
    /// with the fewest entries by then. Where there are fewer layers than keys, the largest are cut
    /// evenly until there are as many parts; one alone, or parameters without layers, are cut as by
    /// [`Cut::Even`].
    Layers {
        /// How many, at least 1.
        keys: u32,
    },
    /// Parts that are networks: every hidden unit belongs to one of them, drawn anew every round.
    Subnets {
        /// How many, at least 1.
        subnets: u32,
        /// Counted from 0.
        round: u64,
    },
}

impl Cut {
    /// Number of parts.
    pub fn blocks(self) -> u32 {
        match self {
            Cut::Even { blocks } => blocks,
            Cut::Layers { keys } => keys,
            Cut::Subnets { subnets, .. } => subnets,
        }
    }
}

/// Entries of the two parts of a parameter vector, as ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Of the conv phase.
    pub conv: Vec<Range<usize>>,
    /// Of the FC phase.
    pub fc: Vec<Range<usize>>,
}

/// What has to be known of a model to cut it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cutter {
    conv: usize,
    total: usize,
    connections: Vec<Connections>,
    seed: Seed,
}

impl Cutter {
    /// A cutter for a model of which only the lengths of the two parts are known: every entry is a
    /// unit of its own.
    pub fn of_lengths(conv: usize, fc: usize) -> Self {
        Self::new(conv, fc, Vec::new(), Seed(0))
    }

    /// A cutter for a model whose tensors connect units; which units go together is drawn under a
    /// seed. Without tensors every entry is a unit of its own.
    pub fn new(conv: usize, fc: usize, mut connections: Vec<Connections>, seed: Seed) -> Self {
        let total = conv + fc;
        if connections.is_empty() && total > 0 {
            let to = Some(Axis { layer: 0, units: total, stride: 1 });
            connections.push(Connections { range: 0..total, to, from: None });
        }
        Cutter { conv, total, connections, seed }
    }

    /// The entries of a block.
    pub fn entries(&self, block: Block) -> Entries {
        let ranges: Vec<Range<usize>> = match block.of {
            Cut::Even { blocks } => {
                let end = |number: u32| {
                    let product = self.total as u128 * u128::from(number) / u128::from(blocks);
                    usize::try_from(product).expect("a part is no longer than the whole")
                };
                std::iter::once(end(block.number)..end(block.number + 1)).collect()
            }
            Cut::Layers { keys } => {
                let layers = self.layers();
                let sizes: Vec<u64> = layers.iter().map(|layer| layer.len() as u64).collect();
                let pieces = keys_of(&sizes, keys).swap_remove(block.number as usize);
                let offset = |entry: u64| usize::try_from(entry).expect("a model fits in memory");
                let mut own: Vec<Range<usize>> = pieces
                    .into_iter()
                    .map(|Piece { layer, entries }| {
                        let start = layers[layer].start;
                        start + offset(entries.start)..start + offset(entries.end)
                    })
                    .collect();
                own.sort_unstable_by_key(|range| range.start);
                own
            }
            Cut::Subnets { subnets, round } => self.of_subnet(block.number, subnets, round),
        };
        let within = |from: usize, to: usize| {
            let cut = ranges.iter().map(move |range| range.start.max(from)..range.end.min(to));
            let filled = cut.filter(|range| range.start < range.end);
            filled.map(move |range| range.start - from..range.end - from).collect()
        };
        Entries { conv: within(0, self.conv), fc: within(self.conv, self.total) }
    }

    /// The entries of every layer: tensors that follow each other and lead to the same units.
    fn layers(&self) -> Vec<Range<usize>> {
        let leads_to = |tensor: &Connections| tensor.to.map(|axis| axis.layer);
        let together = |a: &Connections, b: &Connections| leads_to(a) == leads_to(b);
        let layers = self.connections.chunk_by(together);
        layers.map(|own| own[0].range.start..own[own.len() - 1].range.end).collect()
    }

    /// An entry belongs to a subnet if all hidden units that it connects do; one that connects none,
    /// such as the bias of an output, belongs to the subnets in turn. Entries between units of
    /// different subnets belong to none.
    fn of_subnet(&self, number: u32, subnets: u32, round: u64) -> Vec<Range<usize>> {
        let layers =
            self.connections.iter().flat_map(|tensor| tensor.to.iter().chain(&tensor.from));
        let n_layers = layers.clone().map(|axis| axis.layer + 1).max().unwrap_or(0);
        let mut owners: Vec<Vec<u32>> = vec![Vec::new(); n_layers as usize];
        for axis in layers {
            let own = &mut owners[axis.layer as usize];
            if own.is_empty() {
                *own = self.owners(axis.layer, axis.units, subnets, round);
            }
        }
        let turn = round % u64::from(subnets) == u64::from(number);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for tensor in &self.connections {
            for entry in 0..tensor.range.len() {
                let axes = [&tensor.to, &tensor.from].into_iter().flatten();
                let own = |axis: &Axis| owners[axis.layer as usize][axis.unit_of(entry)] == number;
                let connects = tensor.to.is_some() || tensor.from.is_some();
                let belongs = if connects { axes.into_iter().all(own) } else { turn };
                let at = tensor.range.start + entry;
                match ranges.last_mut() {
                    _ if !belongs => {}
                    Some(last) if last.end == at => last.end += 1,
                    _ => ranges.push(at..at + 1),
                }
            }
        }
        ranges
    }

    /// The subnet of every unit of a layer: equally many for each, up to one.
    fn owners(&self, layer: u32, units: usize, subnets: u32, round: u64) -> Vec<u32> {
        let mut owners: Vec<u32> = (0..subnets).cycle().take(units).collect();
        let mut generator = stream_at(self.seed, Stream::Subnets { layer }, round);
        owners.shuffle(&mut generator);
        owners
    }
}

/// A part of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Counted from 0.
    pub layer: usize,
    /// Entries, or bytes, from the beginning of the layer.
    pub entries: Range<u64>,
}

/// The pieces of every key, for layers of given sizes: see [`Cut::Layers`].
pub fn keys_of(layers: &[u64], keys: u32) -> Vec<Vec<Piece>> {
    let mut parts = vec![1_u64; layers.len()];
    for _ in layers.len()..keys as usize {
        // The largest part of all, the first of equals: size / parts, compared without division.
        let larger = |a: &usize, b: &usize| {
            let product =
                |own: usize, other: usize| u128::from(layers[own]) * u128::from(parts[other]);
            product(*a, *b).cmp(&product(*b, *a)).then(b.cmp(a))
        };
        if let Some(largest) = (0..layers.len()).max_by(larger) {
            parts[largest] += 1;
        }
    }
    let end = |layer: usize, part: u64| {
        let product = u128::from(layers[layer]) * u128::from(part) / u128::from(parts[layer]);
        u64::try_from(product).expect("a part is no longer than the whole")
    };
    let pieces: Vec<Piece> = (0..layers.len())
        .flat_map(|layer| (0..parts[layer]).map(move |part| (layer, part)))
        .map(|(layer, part)| Piece { layer, entries: end(layer, part)..end(layer, part + 1) })
        .collect();
    let sizes: Vec<u64> =
        pieces.iter().map(|piece| piece.entries.end - piece.entries.start).collect();
    let mut own: Vec<Vec<Piece>> = vec![Vec::new(); keys as usize];
    if pieces.len() <= keys as usize {
        for (key, piece) in own.iter_mut().zip(pieces) {
            key.push(piece);
        }
        return own;
    }
    for (piece, key) in pieces.into_iter().zip(placed(&sizes, keys)) {
        own[key].push(piece);
    }
    own
}

/// The place of every item: the largest first, each where the least is by then.
///
/// Source: Graham, "Bounds on multiprocessing timing anomalies", 1969: the fullest place has at most
/// 4/3 of what the best possible one has.
pub fn placed(sizes: &[u64], places: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|item| (std::cmp::Reverse(sizes[*item]), *item));
    let mut held = vec![0_u64; places.max(1) as usize];
    let mut place_of = vec![0; sizes.len()];
    for item in order {
        let emptiest = (0..held.len()).min_by_key(|place| held[*place]).unwrap_or(0);
        held[emptiest] += sizes[item];
        place_of[item] = emptiest;
    }
    place_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two inputs, a hidden layer, two outputs: weights [input, hidden], biases, weights
    /// [hidden, output], biases.
    fn network(hidden: usize) -> Cutter {
        let to_hidden = |stride| Some(Axis { layer: 0, units: hidden, stride });
        let ends = [2 * hidden, 3 * hidden, 5 * hidden, 5 * hidden + 2];
        let connections = vec![
            Connections { range: 0..ends[0], to: to_hidden(1), from: None },
            Connections { range: ends[0]..ends[1], to: to_hidden(1), from: None },
            Connections { range: ends[1]..ends[2], to: None, from: to_hidden(2) },
            Connections { range: ends[2]..ends[3], to: None, from: None },
        ];
        Cutter::new(ends[1], ends[3] - ends[1], connections, Seed(5))
    }

    fn count(entries: &Entries) -> usize {
        entries.conv.iter().chain(&entries.fc).map(Range::len).sum()
    }

    proptest! {
        #[test]
        fn even_blocks_cover_every_entry_once_and_differ_by_one_at_most(
            conv in 0_usize..50, fc in 0_usize..50, blocks in 1_u32..20,
        ) {
            let cutter = Cutter::of_lengths(conv, fc);
            let of = Cut::Even { blocks };
            let all: Vec<Entries> =
                (0..blocks).map(|number| cutter.entries(Block { number, of })).collect();
            let flat: Vec<usize> = all
                .iter()
                .flat_map(|own| {
                    let fc = own.fc.iter().map(|range| range.start + conv..range.end + conv);
                    own.conv.iter().cloned().chain(fc)
                })
                .flatten()
                .collect();
            prop_assert_eq!(flat, (0..conv + fc).collect::<Vec<_>>());
            let sizes: Vec<usize> = all.iter().map(count).collect();
            prop_assert!(sizes.iter().max() <= sizes.iter().min().map(|least| least + 1).as_ref());
        }

        /// Whole layers where there are enough of them, and the fullest key within Graham's bound.
        #[test]
        fn keys_of_layers_cover_every_entry_once_and_none_is_much_fuller_than_it_must_be(
            layers in prop::collection::vec(1_u64..1000, 1..12), keys in 1_u32..9,
        ) {
            let own = keys_of(&layers, keys);
            prop_assert_eq!(own.len(), keys as usize);
            let mut pieces: Vec<&Piece> = own.iter().flatten().collect();
            pieces.sort_by_key(|piece| (piece.layer, piece.entries.start));
            let mut at = vec![0; layers.len()];
            for piece in &pieces {
                prop_assert_eq!(std::mem::replace(&mut at[piece.layer], piece.entries.end), piece.entries.start);
            }
            prop_assert_eq!(&at, &layers);
            let size = |key: &Vec<Piece>| -> u64 {
                key.iter().map(|piece| piece.entries.end - piece.entries.start).sum()
            };
            let fullest = own.iter().map(size).max().expect("a key");
            let total: u64 = layers.iter().sum();
            if layers.len() >= keys as usize {
                prop_assert_eq!(pieces.len(), layers.len());
                let largest = *layers.iter().max().expect("a layer");
                // No key can have less than the mean, nor the fullest less than the largest layer.
                let least = largest.max(total.div_ceil(u64::from(keys)));
                prop_assert!(fullest <= least + largest, "{fullest} {least}");
            } else {
                prop_assert_eq!(pieces.len(), keys as usize);
            }
        }

        /// Without layers keys are equal cuts.
        #[test]
        fn one_layer_is_cut_evenly(conv in 0_usize..50, fc in 1_usize..50, keys in 1_u32..20) {
            let cutter = Cutter::of_lengths(conv, fc);
            for number in 0..keys {
                let by = |of| cutter.entries(Block { number, of });
                prop_assert_eq!(by(Cut::Layers { keys }), by(Cut::Even { blocks: keys }));
            }
        }

        /// With one hidden layer no weight lies between two hidden units, so all are shared out.
        #[test]
        fn subnets_of_one_hidden_layer_share_out_every_entry_without_overlap(
            hidden in 1_usize..12, subnets in 1_u32..5, round in 0_u64..20,
        ) {
            let cutter = network(hidden);
            let of = Cut::Subnets { subnets, round };
            let mut held = vec![0; 5 * hidden + 2];
            for number in 0..subnets {
                let own = cutter.entries(Block { number, of });
                let fc = own.fc.iter().map(|range| range.start + 3 * hidden..range.end + 3 * hidden);
                for entry in own.conv.iter().cloned().chain(fc).flatten() {
                    held[entry] += 1;
                }
            }
            prop_assert_eq!(held, vec![1; 5 * hidden + 2]);
        }
    }

    #[test]
    fn a_key_of_a_network_is_a_layer_with_its_biases() {
        let cutter = network(4);
        let of = Cut::Layers { keys: 2 };
        let own = [0, 1].map(|number| cutter.entries(Block { number, of }));
        let (one, other) = (0..12, 0..10);
        assert_eq!((own[0].conv.clone(), own[0].fc.clone()), (vec![one], vec![]));
        assert_eq!((own[1].conv.clone(), own[1].fc.clone()), (vec![], vec![other]));
    }

    #[test]
    fn one_subnet_is_the_whole_network() {
        let block = Block { number: 0, of: Cut::Subnets { subnets: 1, round: 3 } };
        assert_eq!(count(&network(7).entries(block)), 37);
    }

    #[test]
    fn units_go_together_otherwise_in_the_next_round() {
        let own = |round| {
            let of = Cut::Subnets { subnets: 2, round };
            network(10).entries(Block { number: 0, of })
        };
        assert_eq!(own(1), own(1));
        assert_ne!(own(1), own(3));
    }

    #[test]
    fn a_weight_between_units_of_two_subnets_belongs_to_neither() {
        let axis = |layer, stride| Some(Axis { layer, units: 4, stride });
        let tensor = Connections { range: 0..16, to: axis(1, 1), from: axis(0, 4) };
        let cutter = Cutter::new(16, 0, vec![tensor], Seed(1));
        let of = Cut::Subnets { subnets: 2, round: 0 };
        let sizes = [0, 1].map(|number| count(&cutter.entries(Block { number, of })));
        assert_eq!(sizes, [4, 4], "two units of each layer");
    }
}
