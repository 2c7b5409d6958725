//! Every ridge model of one gradient descent run, compared with solving for each of them.
//!
//! cargo run --release -p afterfit --example ridge_path

use afterfit::objective::{Dense, Features, LeastSquares};
use afterfit::run::{Batches, LivePath, Method, RateSchedule, Trainer, averages};
use afterfit::{Answer, Stride, Weighting};

fn main() -> afterfit::Result<()> {
    // Six rows, two features.
    let rows = vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0, -1.0, 0.5, 0.3, -2.0];
    let features = Features::Dense(Dense::new(6, 2, rows)?);
    let loss = LeastSquares::new(features, vec![1.0, 2.0, 3.0, 4.0, 0.2, -3.5], 1, 0.0, false)?;

    // One ordinary run …
    let trainer = Trainer::new(Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.2));
    let mut path = LivePath::new(&loss, trainer, Batches::Full, 2000, None)?;

    // … and every strength of it.
    let strengths = [0.001, 0.01, 0.1, 1.0, 10.0];
    let models = averages(&mut path, &strengths.map(Weighting::L2), Answer::Regularized, Stride::Linear)?;

    let quadratic = loss.gram()?;
    println!("     λ    average of the run        solved directly");
    for (l2, model) in strengths.iter().zip(&models) {
        let direct = quadratic.solve(*l2, &[0.0, 0.0], None)?;
        println!("{l2:>6}    {:>9.6?}    {direct:>9.6?}", model.weights);
        assert!(model.weights.iter().zip(&direct).all(|(a, b)| (a - b).abs() < 1e-12));
    }
    Ok(())
}
