//! A dial in a training loop of one's own. The loop below knows nothing of λ; the dial reads any λ afterwards.
//!
//! cargo run --release -p afterfit --example dial_loop

use afterfit::dial::Dial;
use afterfit::{Answer, Nodes, Optimizer, PathInfo, Rates};

/// Curvatures of a quadratic loss ½ Σ h_i (w_i − 1)².
const CURVATURES: [f64; 4] = [1.0, 0.3, 0.1, 0.03];

fn main() -> afterfit::Result<()> {
    let (steps, momentum) = (3000_u32, 0.9);
    let rate = |step: u32| 0.05 * (1.0 - f64::from(step) / f64::from(steps)); // any schedule

    let optimizer = Optimizer::HeavyBall { momentum, dampening: 0.0 };
    let path = PathInfo::new(optimizer, Rates::new());
    let mut weights = vec![0.0; CURVATURES.len()];
    let mut buffer = vec![0.0; weights.len()];
    let mut dial = Dial::new(vec![Nodes::new(0.02, 2.0, 16)?], &path, &weights)?;

    for step in 0..steps {
        dial.push(&weights, rate(step))?; // before the step: the weights, and the rate the step will use
        for ((w, b), h) in weights.iter_mut().zip(&mut buffer).zip(CURVATURES) {
            *b = momentum * *b + h * (*w - 1.0);
            *w -= rate(step) * *b;
        }
    }
    dial.finish(&weights)?;

    println!("    λ   weights                                         error at most   ridge, solved");
    for l2 in [0.02, 0.1, 0.5, 2.0] {
        let reading = dial.read(l2, Answer::Regularized)?;
        let ridge = CURVATURES.map(|h| h / (h + l2));
        println!("{l2:>5}   {:.5?}   {:>13.1e}   {ridge:.5?}", reading.weights, reading.error);
        // (What no step spent is the rest: the run was long enough for these λ.)
        let room = reading.error + 3.0 * reading.remaining;
        assert!(reading.weights.iter().zip(ridge).all(|(w, r)| (w - r).abs() <= room + 1e-9));
    }
    Ok(())
}
