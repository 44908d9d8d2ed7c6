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
