//! Made-up numbers that another program can make up too, and what to compare of a result.

use serde::{Deserialize, Serialize};

/// Numbers between -1 and 1 in steps of 1/1000: number `i` is `((7919·i + salt) mod 2001)/1000 - 1`.
pub(super) fn made_up(length: usize, salt: usize) -> Vec<f32> {
    (0..length).map(|index| number(index, salt)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "below 2001")]
fn number(index: usize, salt: usize) -> f32 {
    ((index.wrapping_mul(7919).wrapping_add(salt)) % 2001) as f32 / 1000.0 - 1.0
}

/// Salts of the tensors of a convolution.
pub(super) const INPUT: usize = 0;
pub(super) const WEIGHTS: usize = 500;
pub(super) const BIAS: usize = 1000;
pub(super) const OUTPUT_GRADIENT: usize = 1500;

/// Salt of the direction on which results are projected.
const DIRECTION: usize = 250;

/// Two numbers that differ where two results do: with `dᵢ` numbers of the kind above,
/// `projection = Σ rᵢ·dᵢ / √n` and `size = √(Σ rᵢ² / n)`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// The projection.
    pub projection: f64,
    /// The root of the mean square.
    pub size: f64,
}

/// Relative difference that rounding of single precision can leave in a projection: sums of some
/// thousand products differ by about 10⁻⁵ of their size in another order, and by ten times that
/// with Winograd's transforms.
const LARGEST_DIFFERENCE: f64 = 1e-3;

/// The same where factors or results are rounded to bf16, each by at most 2⁻⁸ of itself: two
/// factors and the result of either side.
const LARGEST_DIFFERENCE_OF_BF16: f64 = 4.0 / 256.0;

/// What numbers are rounded to before they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    Single,
    Bf16,
}

impl Digest {
    #[expect(clippy::cast_precision_loss, reason = "tensors have fewer than 2⁵³ elements")]
    pub(super) fn of(result: &[f32]) -> Self {
        let (mut projection, mut square) = (0.0, 0.0);
        for (index, value) in result.iter().enumerate() {
            projection += f64::from(*value) * f64::from(number(index, DIRECTION));
            square += f64::from(*value).powi(2);
        }
        let n = result.len().max(1) as f64;
        Digest { projection: projection / n.sqrt(), size: (square / n).sqrt() }
    }

    /// Whether two results are the same but for rounding.
    pub(super) fn agrees_with(self, other: Self, rounding: Rounding) -> bool {
        let largest = self.size
            * match rounding {
                Rounding::Single => LARGEST_DIFFERENCE,
                Rounding::Bf16 => LARGEST_DIFFERENCE_OF_BF16,
            };
        (self.projection - other.projection).abs() <= largest
            && (self.size - other.size).abs() <= largest
    }
}
