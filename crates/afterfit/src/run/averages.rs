//! Averages of a path that is being made: many weightings in one visit.

use afterfit_core::error::{require, require_l2};
use afterfit_core::{Answer, Decay, Optimizer, OutOfRange, Status, Stride, Weighting};

use super::{Iterate, Path, RunError};
use crate::error::Result;
use crate::sums::{Average, Bank, CoordinateAverage};

/// What averaging a path with one weighting gave.
#[derive(Debug, Clone)]
pub struct Averaged {
    /// The averaged weights, in the path's own layout.
    pub weights: Vec<f64>,
    /// Exact, approximation or heuristic, on this path as it was kept.
    pub status: Status,
    /// For λ: the mass left at the end, `R_{K−1}`; 0 for a complete average.
    pub remaining: f64,
    /// For λ on a strided path: [`afterfit_core::stride::Kept::first_gap`]; 0 otherwise.
    pub first_gap: f64,
    /// Mass of the steps before the first kept iterate.
    pub before: f64,
    /// Mass of the steps after the last kept iterate.
    pub after: f64,
}

/// Averages a path with many weightings in one visit. Iterates that were not kept are stood in for as `stride` says.
///
/// Memory: [`Bank`]'s, and one weight per kept iterate and weighting.
pub fn averages(
    path: &mut dyn Path,
    weightings: &[Weighting],
    answer: Answer,
    stride: Stride,
) -> Result<Vec<Averaged>> {
    if weightings.is_empty() {
        return Ok(Vec::new());
    }
    let info = path.info();
    info.validate()?;
    let kept = path.kept();
    let mut shares = Vec::with_capacity(weightings.len());
    let mut averaged = Vec::with_capacity(weightings.len());
    // (All but λ and schedules count the iterates they are given, not the steps between.)
    let positions: Vec<u64> = (0..kept.len() as u64).collect();
    for weighting in weightings {
        let by_steps = matches!(weighting, Weighting::L2(_) | Weighting::Schedule { .. });
        let kept = if by_steps { &kept } else { &positions };
        let given = weighting.weights(kept, Some(info), answer, stride)?;
        shares.push(given.weights);
        let remaining = match weighting {
            // (Of the slowest coordinate, where they differ.)
            Weighting::L2(l2) => info.remaining(*l2)?,
            _ => 0.0,
        };
        averaged.push(Averaged {
            weights: Vec::new(),
            status: given.status,
            remaining,
            first_gap: given.first_gap,
            before: given.before,
            after: given.after,
        });
    }
    if info.optimizer == Optimizer::Coordinatewise {
        coordinate_averages(path, weightings, answer, &mut averaged)?;
        return Ok(averaged);
    }
    let center = path.center().to_vec();
    let mut bank = Bank::new(&center, weightings.len());
    let mut position = 0;
    let (mut column, scales) = (vec![0.0; weightings.len()], vec![1.0; weightings.len()]);
    path.for_each(&mut |Iterate { weights, step, .. }| {
        for (share, row) in column.iter_mut().zip(&shares) {
            *share = row[position];
        }
        position += 1;
        if bank.push(weights, &column, &scales) { Ok(()) } else { Err(RunError::NotFiniteIterate { step }.into()) }
    })?;
    bank.flush();
    for (j, averaged) in averaged.iter_mut().enumerate() {
        let moved = bank.flushed_sum(j);
        averaged.weights = center.iter().zip(&moved).map(|(c, moved)| c + moved).collect();
    }
    Ok(averaged)
}

/// Takes k, w̃_k and ŵ_k.
pub type TraceVisitor<'a> = dyn FnMut(u64, &[f64], &[f64]) -> Result<()> + 'a;

/// Visits the whole path of averages of one λ: `visit(k, w̃_k, ŵ_k)` for every iterate; at the last one, which has no
/// rate, w̃ is that of the one before. For figures; costs two vectors a step.
pub fn trace(path: &mut dyn Path, l2: f64, visit: &mut TraceVisitor<'_>) -> Result<()> {
    let mut running = Running::new(path, &Weighting::L2(l2))?;
    path.for_each(&mut |iterate| {
        running.push(&iterate)?;
        visit(iterate.step, &running.answer(Answer::Normalized), &running.answer(Answer::Regularized))
    })
}

/// Averages with a mass per coordinate: no scalar weight per iterate exists, so each λ runs on its own.
fn coordinate_averages(
    path: &mut dyn Path,
    weightings: &[Weighting],
    answer: Answer,
    averaged: &mut [Averaged],
) -> Result<()> {
    let running: Result<Vec<Running>> = weightings.iter().map(|weighting| Running::new(path, weighting)).collect();
    let mut running = running?;
    path.for_each(&mut |iterate| {
        running.iter_mut().try_for_each(|average| average.push(&iterate))?;
        Ok(())
    })?;
    for (averaged, running) in averaged.iter_mut().zip(&running) {
        averaged.weights = running.answer(answer);
    }
    Ok(())
}

/// One λ's average of a path that kept every iterate, scalar or by coordinate as the path demands.
enum Running {
    Scalar { average: Average, decays: std::vec::IntoIter<Decay> },
    Coordinate(CoordinateAverage),
}

impl Running {
    fn new(path: &dyn Path, weighting: &Weighting) -> Result<Self> {
        let info = path.info();
        info.validate()?;
        let &Weighting::L2(l2) = weighting else {
            return Err(RunError::NotAnL2.into());
        };
        require_l2(l2)?;
        let (needed, kept) = (info.steps() + 1, path.kept().len() as u64);
        require(kept == needed, "number of kept iterates", kept as f64, format!("{needed}, every one"))?;
        Ok(match info.factors.as_ref().filter(|_| info.optimizer == Optimizer::Coordinatewise) {
            Some(factors) => Self::Coordinate(CoordinateAverage::new(path.center(), l2, factors)),
            None => {
                let decays: Vec<Decay> = info.decays(l2).collect();
                Self::Scalar { average: Average::new(path.center()), decays: decays.into_iter() }
            }
        })
    }

    fn push(&mut self, &Iterate { weights, rate, .. }: &Iterate<'_>) -> Result<(), OutOfRange> {
        match (self, rate) {
            (Self::Scalar { average, decays }, Some(_)) => match decays.next() {
                Some(decay) => average.push(weights, decay),
                None => average.finish(weights),
            },
            (Self::Scalar { average, .. }, None) => average.finish(weights),
            (Self::Coordinate(average), Some(rate)) => average.push(weights, rate),
            (Self::Coordinate(average), None) => average.finish(weights),
        }
    }

    fn answer(&self, answer: Answer) -> Vec<f64> {
        match (self, answer) {
            (Self::Scalar { average, .. }, Answer::Regularized) => average.regularized(),
            (Self::Scalar { average, .. }, Answer::Normalized) => average.normalized(),
            (Self::Coordinate(average), Answer::Regularized) => average.regularized(),
            (Self::Coordinate(average), Answer::Normalized) => average.normalized(),
        }
    }
}
