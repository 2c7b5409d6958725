//! A dial for momentum whose schedule nobody declared, exact all the same: two sums for each node instead of one.
//!
//! [`crate::dial::Dial`] guesses what an iterate deserves from the rate of its own step, and its certificate says what the guess
//! costs. [`CausalDial`] carries on what the momentum buffer carries on ([`crate::sums::CausalAverage`]) and needs no guess: at a
//! node its reading is exact at every step, whatever the rates were. It costs twice the memory, is not blocked, and is not saved.

use afterfit_core::certificate::certificates;
use afterfit_core::error::require_rate;
use afterfit_core::{Nodes, Optimizer, PathInfo, Rates};

use crate::dial::{PushError, Reading};
use crate::error::Result;
use crate::sums::CausalAverage;

/// Two sums a node, around `w_0`. Memory: four vectors of the model's size for each node.
#[derive(Debug, Clone)]
pub struct CausalDial {
    nodes: Nodes,
    path: PathInfo,
    averages: Vec<CausalAverage>,
    center: Vec<f64>,
    reach: f64,
}

impl CausalDial {
    /// A dial over strengths λ for a path with the optimizer of `info`: sgd, heavy ball, or Adam without a decay of its own.
    pub fn new(nodes: Nodes, info: &PathInfo, center: &[f64]) -> Result<Self> {
        match info.optimizer {
            Optimizer::Sgd | Optimizer::HeavyBall { .. } | Optimizer::Adam { weight_decay: 0.0, .. } => {}
            other => return Err(PushError::NotCausal { optimizer: other.to_string() }.into()),
        }
        let path = PathInfo { rates: Rates::new(), momenta: None, gains: None, ..info.clone() };
        path.validate()?;
        let averages = nodes.values().iter().map(|&l2| CausalAverage::new(center, l2)).collect();
        Ok(Self { nodes, path, averages, center: center.to_vec(), reach: 0.0 })
    }

    /// Takes in `w_k` and `η_k`, the rate of the step that leaves it.
    pub fn push(&mut self, weights: &[f64], rate: f64) -> Result<()> {
        require_rate(rate)?;
        self.check(weights)?;
        let (step, momentum) = (self.path.steps(), self.path.optimizer.momentum());
        let row = self.path.optimizer.row(step, rate, momentum);
        self.averages.iter_mut().try_for_each(|average| average.push(weights, row.rate, row.gain, momentum))?;
        self.path.rates.push(rate);
        Ok(())
    }

    /// Takes in `w_K`, where training stopped.
    pub fn finish(&mut self, weights: &[f64]) -> Result<()> {
        self.check(weights)?;
        self.averages.iter_mut().try_for_each(|average| average.finish(weights))?;
        Ok(())
    }

    fn check(&mut self, weights: &[f64]) -> Result<()> {
        let (found, expected) = (weights.len(), self.center.len());
        if found != expected {
            return Err(PushError::Width { found, expected }.into());
        }
        if let Some(position) = weights.iter().position(|value| !value.is_finite()) {
            let (step, value) = (self.path.steps(), weights[position]);
            return Err(PushError::NotFinite { step, value, position }.into());
        }
        let farthest = weights.iter().zip(&self.center).map(|(w, c)| (w - c).abs());
        self.reach = farthest.fold(self.reach, f64::max);
        Ok(())
    }

    /// The regularized answer at any λ of the range.
    pub fn read(&self, l2: f64) -> Result<Reading> {
        if self.path.steps() == 0 {
            return Err(PushError::Empty.into());
        }
        // What all nodes hold is exact: only what lies between them is off.
        let certificate = certificates(&self.nodes, &self.path, &[l2])?[0];
        let mut moved = vec![0.0; self.center.len()];
        for (coefficient, average) in self.nodes.coefficients(l2).into_iter().zip(&self.averages) {
            for ((moved, value), c) in moved.iter_mut().zip(average.regularized()).zip(&self.center) {
                *moved += coefficient * (value - c);
            }
        }
        // (The unspent mass is interpolated with the rest: the last iterate is off by what the masses are.)
        let remaining = self.path.remaining(l2)?;
        let nodes: Result<Vec<f64>, _> = self.nodes.values().iter().map(|&node| self.path.remaining(node)).collect();
        let between: f64 = self.nodes.coefficients(l2).iter().zip(nodes?).map(|(l, left)| l * left).sum();
        let certificate = certificate + (remaining - between).abs();
        let weights = self.center.iter().zip(&moved).map(|(c, moved)| c + moved).collect();
        let error = (certificate + 1e-14) * self.reach;
        Ok(Reading { weights, certificate, error, remaining, status: self.path.status() })
    }
}
