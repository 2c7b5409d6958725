//! Weights for any linear method: quasi-hyperbolic momentum, schedule-free steps, one's own.
//!
//! State `s_{k+1} = F_k s_k + B_k g_k`, iterate `w_k − c = C_k s_k`, started at `s_0 = 0`. Backwards from `p_K = 1`,
//! `ψ = C_K`: `p_i = −λ ψ B_i`, then `ψ ← p_i C_i + ψ F_i`; all divided by their sum. On a quadratic the average then
//! satisfies `(H+λ)(ŵ − w_λ) = p_K ∇L(w_K)`.

use crate::error::{OutOfRange, require, require_l2};
use crate::rates::MOST_STEPS;

/// A method whose state moves linearly with the gradients, by step.
pub trait LinearMethod {
    /// Numbers of the state for each weight.
    fn states(&self) -> usize;
    /// `F_k`, row by row: `states × states`.
    fn transition(&self, step: u64) -> Vec<f64>;
    /// `B_k`: what a gradient adds to each number of the state.
    fn input(&self, step: u64) -> Vec<f64>;
    /// `C_k`: the iterate as a combination of the state.
    fn output(&self, step: u64) -> Vec<f64>;
}

/// The weights of `w_0 … w_K`, which sum to 1 and need not be positive.
pub fn adjoint(method: &dyn LinearMethod, l2: f64, steps: u64) -> Result<Vec<f64>, OutOfRange> {
    require_l2(l2)?;
    let count = method.states();
    require(count >= 1, "numbers of a method's state", count as f64, "at least 1")?;
    require(steps <= MOST_STEPS, "number of steps", steps as f64, format!("at most {MOST_STEPS}"))?;
    let sized = |list: Vec<f64>, name, needed: usize| {
        require(list.len() == needed, name, list.len() as f64, format!("{needed} numbers long"))?;
        Ok(list)
    };
    let output = |step| sized(method.output(step), "length of a method's output", count);
    let mut weights = vec![0.0; steps as usize + 1];
    weights[steps as usize] = 1.0;
    let mut psi = output(steps)?;
    for step in (0..steps).rev() {
        let at = step as usize;
        let input = sized(method.input(step), "length of a method's input", count)?;
        let carried: f64 = psi.iter().zip(input).map(|(psi, b)| psi * b).sum();
        weights[at] = -l2 * carried;
        let transition = sized(method.transition(step), "length of a method's transition", count * count)?;
        let output = output(step)?;
        psi = (0..count)
            .map(|j| weights[at] * output[j] + (0..count).map(|i| psi[i] * transition[i * count + j]).sum::<f64>())
            .collect();
        // They grow like 1/R: rescaled before they overflow.
        let largest = psi.iter().fold(0.0_f64, |top, value| top.max(value.abs()));
        if largest > 1e100 {
            psi.iter_mut().chain(&mut weights[at..]).for_each(|value| *value /= largest);
        }
    }
    let total: f64 = weights.iter().sum();
    require(total.is_finite() && total != 0.0, "sum of the weights", total, "finite and not 0")?;
    weights.iter_mut().for_each(|weight| *weight /= total);
    Ok(weights)
}
