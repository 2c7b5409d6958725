//! The averaging algorithm: [`Average`] is all of it.

use afterfit_core::error::{OutOfRange, require};
use afterfit_core::{Decay, Mass};

/// A running λ-weighted average of a path. Memory: three vectors of the model's size.
///
/// After [`push`](Self::push)ing `w_0 … w_k` with their decays, [`regularized`](Self::regularized) is the explicitly
/// regularized iterate ŵ_k and [`normalized`](Self::normalized) the paper's w̃_k.
#[derive(Debug, Clone)]
pub struct Average {
    center: Vec<f64>,
    sum: Vec<f64>,
    last: Vec<f64>,
    spent: f64,
    mass: Mass,
}

impl Average {
    /// Starts an average around the center `c = w_0`.
    #[must_use]
    pub fn new(center: &[f64]) -> Self {
        Self {
            center: center.to_vec(),
            sum: vec![0.0; center.len()],
            last: center.to_vec(),
            spent: 0.0,
            mass: Mass::WHOLE,
        }
    }

    /// Takes in `w_k`. (`S_k + R_k w_k = S_{k−1} + R_{k−1} w_k`, so both answers can be read before or after.)
    pub fn push(&mut self, weights: &[f64], decay: Decay) -> Result<(), OutOfRange> {
        require_width(weights, &self.center)?;
        let p = self.mass.take(decay);
        for ((sum, &w), &c) in self.sum.iter_mut().zip(weights).zip(&self.center) {
            *sum += p * (w - c);
        }
        self.spent += p;
        self.last.copy_from_slice(weights);
        Ok(())
    }

    /// Takes in `w_K`, which has no outgoing step and therefore no weight of its own: it only receives what is left.
    pub fn finish(&mut self, weights: &[f64]) -> Result<(), OutOfRange> {
        require_width(weights, &self.center)?;
        self.last.copy_from_slice(weights);
        Ok(())
    }

    /// `c + S_c + R (w_k − c)`.
    #[must_use]
    pub fn regularized(&self) -> Vec<f64> {
        self.combine(|c, sum, w| c + (sum + self.mass.left() * (w - c)))
    }

    /// `c + S_c / P`, and `c` while nothing is spent.
    #[must_use]
    pub fn normalized(&self) -> Vec<f64> {
        let scale = if self.spent > 0.0 { 1.0 / self.spent } else { 0.0 };
        self.combine(|c, sum, _| c + sum * scale)
    }

    /// `R`: mass not handed out yet.
    #[must_use]
    pub fn remaining(&self) -> f64 {
        self.mass.left()
    }

    /// `P`: mass handed out so far, summed from its parts.
    #[must_use]
    pub fn spent(&self) -> f64 {
        self.spent
    }

    fn combine(&self, value: impl Fn(f64, f64, f64) -> f64) -> Vec<f64> {
        let parts = self.center.iter().zip(&self.sum).zip(&self.last);
        parts.map(|((&c, &sum), &w)| value(c, sum, w)).collect()
    }
}

/// [`Average`] with a decay for each row of the weights: the weights of the average are then matrices, diagonal in the
/// path's basis (Theorem 1*, or a preconditioner that commutes with the Hessian).
#[derive(Debug, Clone)]
pub struct CoordinateAverage {
    l2: f64,
    rows: Vec<RowMass>,
    center: Vec<f64>,
    sum: Vec<f64>,
    last: Vec<f64>,
}

#[derive(Debug, Clone)]
struct RowMass {
    factor: f64,
    spent: f64,
    mass: Mass,
}

impl CoordinateAverage {
    /// Starts an average of strength `l2`; row i of the weights moved at rate × `factors[i]`.
    #[must_use]
    pub fn new(center: &[f64], l2: f64, factors: &[f64]) -> Self {
        let rows = factors.iter().map(|&factor| RowMass { factor, spent: 0.0, mass: Mass::WHOLE });
        Self { l2, rows: rows.collect(), center: center.to_vec(), sum: vec![0.0; center.len()], last: center.to_vec() }
    }

    /// Takes in `w_k`, whose outgoing step has rate `rate`.
    pub fn push(&mut self, weights: &[f64], rate: f64) -> Result<(), OutOfRange> {
        require_width(weights, &self.center)?;
        let shares: Vec<f64> = self
            .rows
            .iter_mut()
            .map(|row| {
                let p = row.mass.take(Decay::of(self.l2 * rate * row.factor));
                row.spent += p;
                p
            })
            .collect();
        let moved = weights.iter().zip(&self.center).map(|(&w, &c)| w - c);
        for ((sum, moved), p) in self.sum.iter_mut().zip(moved).zip(shares.iter().cycle()) {
            *sum += p * moved;
        }
        self.last.copy_from_slice(weights);
        Ok(())
    }

    /// Takes in `w_K`.
    pub fn finish(&mut self, weights: &[f64]) -> Result<(), OutOfRange> {
        require_width(weights, &self.center)?;
        self.last.copy_from_slice(weights);
        Ok(())
    }

    /// `c + S_c + R (w_k − c)`, coordinate by coordinate.
    #[must_use]
    pub fn regularized(&self) -> Vec<f64> {
        self.combine(|row, c, sum, w| c + (sum + row.mass.left() * (w - c)))
    }

    /// `c + S_c / P`, coordinate by coordinate.
    #[must_use]
    pub fn normalized(&self) -> Vec<f64> {
        self.combine(|row, c, sum, _| if row.spent > 0.0 { c + sum / row.spent } else { c })
    }

    fn combine(&self, value: impl Fn(&RowMass, f64, f64, f64) -> f64) -> Vec<f64> {
        let parts = self.center.iter().zip(&self.sum).zip(&self.last);
        parts.zip(self.rows.iter().cycle()).map(|(((&c, &sum), &w), row)| value(row, c, sum, w)).collect()
    }
}

/// Momentum under a schedule that is not known beforehand, exactly: what [`Average`] needs the rates to come for, this keeps a
/// second sum for. Memory: four vectors of the model's size.
///
/// (`z = λG(S + R(w−c))` is the pull at this step; V carries it on as the buffer carries gradients.)
#[derive(Debug, Clone)]
pub struct CausalAverage {
    l2: f64,
    center: Vec<f64>,
    sum: Vec<f64>,
    carried: Vec<f64>,
    last: Vec<f64>,
    remaining: f64,
    ahead: f64,
}

impl CausalAverage {
    /// Starts an average of strength `l2` around the center `c = w_0`.
    #[must_use]
    pub fn new(center: &[f64], l2: f64) -> Self {
        let zeros = vec![0.0; center.len()];
        Self {
            l2,
            center: center.to_vec(),
            sum: zeros.clone(),
            carried: zeros,
            last: center.to_vec(),
            remaining: 1.0,
            ahead: 0.0,
        }
    }

    /// Takes in `w_k`, whose outgoing step has this rate and gain; `next_momentum` is the momentum of the step after it.
    pub fn push(&mut self, weights: &[f64], rate: f64, gain: f64, next_momentum: f64) -> Result<(), OutOfRange> {
        require_width(weights, &self.center)?;
        let pull = self.l2 * gain;
        let scale = 1.0 / (1.0 + rate * (pull + self.ahead));
        let vectors = self.sum.iter_mut().zip(&mut self.carried).zip(weights).zip(&self.center);
        for (((sum, carried), &w), &c) in vectors {
            let z = pull * (*sum + self.remaining * (w - c));
            *sum = (*sum + rate * (z + *carried)) * scale;
            *carried = next_momentum * (*carried + z) * scale;
        }
        self.remaining *= scale;
        self.ahead = next_momentum * (self.ahead + pull) * scale;
        self.last.copy_from_slice(weights);
        Ok(())
    }

    /// Takes in `w_K`.
    pub fn finish(&mut self, weights: &[f64]) -> Result<(), OutOfRange> {
        require_width(weights, &self.center)?;
        self.last.copy_from_slice(weights);
        Ok(())
    }

    /// `c + S_c + R (w_k − c)`.
    #[must_use]
    pub fn regularized(&self) -> Vec<f64> {
        let parts = self.center.iter().zip(&self.sum).zip(&self.last);
        parts.map(|((&c, &sum), &w)| c + (sum + self.remaining * (w - c))).collect()
    }
}

fn require_width(weights: &[f64], center: &[f64]) -> Result<(), OutOfRange> {
    let (found, needed) = (weights.len(), center.len());
    require(found == needed, "number of weights", found as f64, format!("{needed}, those of the center"))
}
