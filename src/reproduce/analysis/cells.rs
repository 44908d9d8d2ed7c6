//! A grid of configurations with the updates that each takes to the target.

use super::Part;

/// One configuration over its seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// g.
    pub groups: u32,
    /// μ.
    pub explicit_momentum: f64,
    /// η.
    pub learning_rate: f64,
    /// Updates to the target of each seed, infinite where it is not reached.
    pub of_seeds: Vec<f64>,
}

impl Cell {
    /// K: geometric mean over the seeds, infinite where one of them never gets there.
    #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
    pub fn updates(&self) -> f64 {
        let logs: f64 = self.of_seeds.iter().map(|updates| updates.ln()).sum();
        (logs / self.of_seeds.len() as f64).exp()
    }

    /// Fewest and most updates of a seed.
    pub fn range(&self) -> (f64, f64) {
        let least = self.of_seeds.iter().copied().fold(f64::INFINITY, f64::min);
        (least, self.of_seeds.iter().copied().fold(0.0, f64::max))
    }
}

/// The configurations of a part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cells(Vec<Cell>);

impl Cells {
    /// All configurations of the runs that have a target, in their order.
    pub fn of(part: &Part<'_>) -> Self {
        let mut cells: Vec<Cell> = Vec::new();
        for run in &part.runs {
            let Some(target) = run.target_loss else { continue };
            let updates = run.updates_to(target).unwrap_or(f64::INFINITY);
            let is_same = |cell: &&mut Cell| {
                cell.groups == run.groups
                    && same(cell.explicit_momentum, run.explicit_momentum)
                    && same(cell.learning_rate, run.learning_rate)
            };
            match cells.iter_mut().find(is_same) {
                Some(cell) => cell.of_seeds.push(updates),
                None => cells.push(Cell {
                    groups: run.groups,
                    explicit_momentum: run.explicit_momentum,
                    learning_rate: run.learning_rate,
                    of_seeds: vec![updates],
                }),
            }
        }
        Cells(cells)
    }

    /// The configurations for which a condition holds.
    pub fn only(&self, condition: impl Fn(&Cell) -> bool) -> Self {
        Cells(self.0.iter().filter(|cell| condition(cell)).cloned().collect())
    }

    /// Those with a number of groups.
    pub fn with_groups(&self, groups: u32) -> Self {
        self.only(|cell| cell.groups == groups)
    }

    /// The one that needs fewest updates; of several the first, and one that never gets there
    /// where none does.
    pub fn best(&self) -> Option<&Cell> {
        self.0.iter().min_by(|one, other| one.updates().total_cmp(&other.updates()))
    }

    /// The learning rates, ascending.
    pub fn learning_rates(&self) -> Vec<f64> {
        let mut rates: Vec<f64> = self.0.iter().map(|cell| cell.learning_rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        rates
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.0.iter()
    }
}

/// Whether two settings of a grid are the same one.
pub fn same(one: f64, other: f64) -> bool {
    one.total_cmp(&other).is_eq()
}

/// The largest explicit momentum of the grid, which stands for "left alone".
pub fn largest_momentum(cells: &Cells) -> Option<f64> {
    cells.iter().map(|cell| cell.explicit_momentum).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Curve;
    use crate::reproduce::Observation;

    /// A run whose loss falls from 1 along a straight line and reaches 0.5 at `updates`.
    fn run(groups: u32, explicit_momentum: f64, seed: u64, updates: f64) -> Observation {
        let at: Vec<f64> = (0..=40).map(|i| f64::from(i) * updates / 20.0).collect();
        let values = at.iter().map(|at| 1.0 - 0.5 * at / updates).collect();
        let loss = Curve { updates: at.clone(), times_s: at, values };
        Observation {
            runs: "part".to_owned(),
            groups,
            explicit_momentum,
            seed,
            loss,
            target_loss: Some(0.5),
            ..Observation::of_report("part", &serde_json::Value::Null)
        }
    }

    fn cells(runs: &[Observation]) -> Cells {
        Cells::of(&Part { name: "part", runs: runs.iter().collect() })
    }

    #[test]
    fn the_updates_of_a_configuration_are_the_geometric_mean_over_its_seeds() {
        let found = cells(&[run(2, 0.3, 1, 100.0), run(2, 0.3, 2, 400.0)]);
        let cell = found.best().expect("one configuration");
        assert!((cell.updates() - 200.0).abs() < 1e-6, "{cell:?}");
        assert!((cell.range().0 - 100.0).abs() < 1e-6 && (cell.range().1 - 400.0).abs() < 1e-6);
    }

    #[test]
    fn a_configuration_of_which_one_seed_never_arrives_never_arrives() {
        let mut lost = run(2, 0.3, 2, 100.0);
        lost.loss.values.iter_mut().for_each(|loss| *loss += 0.7);
        let found = cells(&[run(2, 0.3, 1, 100.0), lost, run(2, 0.6, 1, 300.0)]);
        assert!(found.iter().next().expect("the first").updates().is_infinite());
        let best = found.best().expect("the second arrives");
        assert!(same(best.explicit_momentum, 0.6));
    }

    #[test]
    fn settings_of_other_groups_are_other_configurations() {
        let found = cells(&[run(1, 0.9, 1, 100.0), run(4, 0.9, 1, 200.0), run(4, 0.0, 1, 150.0)]);
        assert_eq!(found.iter().count(), 3);
        let best = found.with_groups(4).best().map(|cell| cell.explicit_momentum);
        assert_eq!(best, Some(0.0));
        assert_eq!(largest_momentum(&found), Some(0.9));
    }
}
