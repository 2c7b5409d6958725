//! Numbers that somebody lends are read where they lie, in either order, and give the bits that a copy of them gives.

use std::sync::Arc;

use afterfit::learn::{ModelChoice, Settings, Validation, learn};
use afterfit::objective::{DataError, Dense, Features, Kernel, Order, Rows, Scores, Shift};
use afterfit::table::{Matrix, Table, Target};

use crate::common::*;

/// More rows than are gathered together, and not a multiple of them.
const ROWS: usize = 150;

/// The same table: its own numbers, lent ones by rows, lent ones by columns.
fn alike(d: usize, seed: u64) -> [Features<f64>; 3] {
    let by_row = vector(&mut rng(seed), ROWS * d);
    let by_column: Vec<f64> = (0..ROWS * d).map(|at| by_row[at % ROWS * d + at / ROWS]).collect();
    let lent = |order, values: Vec<f64>| Features::Dense(Dense::<f64>::lent(ROWS, d, order, Arc::new(values)).unwrap());
    [
        Features::Dense(Dense::new(ROWS, d, by_row.clone()).unwrap()),
        lent(Order::Rows, by_row),
        lent(Order::Columns, by_column),
    ]
}

/// Whatever is made of a table is the same of each of them.
fn assert_alike<R: PartialEq + std::fmt::Debug>(d: usize, of: impl Fn(&Features<f64>) -> R) {
    let [own, by_rows, by_columns] = alike(d, 7).map(|x| of(&x));
    assert_eq!(own, by_rows);
    assert_eq!(own, by_columns);
}

#[test]
fn nothing_is_copied_and_nothing_lent_is_written() {
    let values = Arc::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let x = Dense::<f64>::lent(3, 2, Order::Rows, values.clone()).unwrap();
    assert_eq!(x.row(1).as_ptr(), values[2..].as_ptr(), "a row is where the lender has it");
    for (order, row) in [(Order::Rows, [3.0, 4.0]), (Order::Columns, [2.0, 5.0])] {
        let x = Dense::<f64>::lent(3, 2, order, values.clone()).unwrap();
        assert_eq!(*x.row(1), row);
        let mut scaled = Features::Dense(x);
        let kept = scaled.clone();
        scaled.rescale(&[1.0, 0.0], &[2.0, 1.0]);
        let Features::Dense(scaled) = &scaled else { panic!("dense") };
        assert_eq!(*scaled.row(1), [2.0 * (row[0] - 1.0), row[1]]);
        assert_eq!(*values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let Features::Dense(kept) = kept else { panic!("dense") };
        assert_eq!(*kept.row(1), row);
    }
    let wrong = Dense::<f64>::lent(2, 2, Order::Columns, Arc::new(vec![0.0, f64::NAN, 0.0, 0.0]));
    assert!(matches!(wrong, Err(DataError::NotFinite { row: 1, column: 0, .. })));
    assert!(Dense::<f32>::lent(2, 2, Order::Rows, Arc::new(vec![0.0_f32; 3])).is_err());
}

#[test]
fn products_have_the_same_bits() {
    let d = 7;
    let weights = vector(&mut rng(8), 2 * d);
    let some: Vec<usize> = (0..ROWS).map(|i| i * 37 % ROWS).take(100).collect();
    let shares: Vec<f64> = vector(&mut rng(9), ROWS).iter().map(|v| v.abs()).collect();
    assert_alike(d, |x| x.clone());
    assert_alike(d, |x| x.times(&weights).unwrap());
    assert_alike(d, |x| x.pick(&some));
    assert_alike(d, |x| x.wide_rows(3..90));
    assert_alike(d, |x| x.weighted_squares(&shares, &weights[..d]));
    assert_alike(d, |x| Kernel::Rbf { gamma: 0.5 }.matrix(x, x).unwrap());
    for rows in [Rows::All, Rows::Span { start: 5, end: 80 }, Rows::Picked(&some)] {
        assert_alike(d, |x| x.means(rows));
        assert_alike(d, |x| x.gram(rows, &shares, &Shift::at_means(x, &shares)).unwrap());
        assert_alike(d, |x| {
            let mut out = vec![0.0; 2 * d];
            let sums = x.pull_back(rows, &weights, |_: Scores<'_, f64>| vec![1.0], &mut out);
            (out, sums)
        });
    }
}

#[test]
fn models_have_the_same_bits() {
    let target = |x: &Features<f64>| x.times(&vec![1.0; x.columns()]).unwrap();
    for (model, d) in [
        (ModelChoice::Linear, 7),
        (ModelChoice::Linear, ROWS + 20),
        (ModelChoice::Softmax, 7),
        (ModelChoice::Poisson, 7),
        (ModelChoice::Kernel(Kernel::Laplacian { gamma: 0.3 }), 7),
    ] {
        for standardize in [false, !matches!(model, ModelChoice::Kernel(_))] {
            assert_alike(d, |x| {
                let y: Vec<f64> = target(x)
                    .iter()
                    .map(|y| if model == ModelChoice::Linear { *y } else { f64::from(*y > 0.0) })
                    .collect();
                let settings = Settings {
                    validation: Validation::Folds(3),
                    standardize,
                    ..Settings::new(model, vec![0.01, 0.1, 1.0])
                };
                let table = Table::of(Matrix::Double(x.clone()), Target::Numeric(y));
                let learned = learn(table, &settings).unwrap();
                let losses: Vec<f64> = learned.rows.iter().map(|row| row.validation_loss).collect();
                (learned.model.weights, learned.model.bias, losses)
            });
        }
    }
}
