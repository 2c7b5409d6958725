//! Averages of paths of which some iterates were kept. (What the weights themselves promise is tested in afterfit-core.)

use afterfit::run::{Method, RateSchedule, averages};
use afterfit::stride::STRIDE_LIMIT;
use afterfit::weighting::Window;
use afterfit::{Answer, Standing, Stride, Weighting};

use crate::common::*;

#[test]
fn comparators_count_kept_iterates_and_strides_are_approximations() {
    let mut rng = rng(22);
    let objective = quadratic(&mut rng, &[0.5, 1.0], 1);
    let mut path = run(&objective, Method::Descent, RateSchedule::Constant(0.1), 40, None);
    let kept: Vec<Vec<f64>> = iterates(&mut Kept::every(&mut path, 10));
    let mut strided = Kept::every(&mut path, 10);
    let mut average =
        |weighting| averages(&mut strided, &[weighting], Answer::Normalized, Stride::Linear).unwrap().remove(0);
    let tail = average(Weighting::Mean(Window::Last(2)));
    let mean: Vec<f64> = kept[3].iter().zip(&kept[4]).map(|(a, b)| 0.5 * (a + b)).collect();
    assert!(distance(&tail.weights, &mean) < 1e-15, "the last two checkpoints, not the last two steps");
    assert_eq!(average(Weighting::L2(0.1)).status.standing, Standing::Approximation);
    assert_eq!(tail.status.standing, Standing::Heuristic);
    let whole = averages(&mut path, &[Weighting::L2(0.1)], Answer::Normalized, Stride::Linear).unwrap();
    assert_eq!(whole[0].status.standing, Standing::Exact);
}

#[test]
fn linear_stride_beats_left_and_a_wide_gap_is_flagged() {
    let mut rng = rng(21);
    let objective = quadratic(&mut rng, &log_spectrum(6, 1e-2, 1.0), 1);
    let mut path = run(&objective, Method::Descent, RateSchedule::Constant(0.1), 2000, None);
    let mut stored = Kept::every(&mut path, 20);
    let direct = |l2| objective.solve(l2, &[0.0; 6], None).unwrap();
    let error = |stored: &mut Kept, l2, rule| {
        let found = averages(stored, &[Weighting::L2(l2)], Answer::Regularized, rule).unwrap();
        (relative(&found[0].weights, &direct(l2)), found[0].first_gap)
    };
    // λΣη over the first gap: 0.04 at λ=0.02 (resolved), 9 at λ=4.5 (lost).
    let (linear, gap) = error(&mut stored, 0.02, Stride::Linear);
    let (left, _) = error(&mut stored, 0.02, Stride::Left);
    assert!(gap < STRIDE_LIMIT && linear < 0.02 && left > 2.0 * linear, "{linear} {left} {gap}");
    let (lost, gap) = error(&mut stored, 4.5, Stride::Linear);
    assert!(gap > STRIDE_LIMIT && lost > 0.1, "{lost} {gap}");
}
