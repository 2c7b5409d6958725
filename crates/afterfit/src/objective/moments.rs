//! First and second moments of a table: all that least squares needs to know of its rows.

use faer::linalg::matmul::triangular;
use faer::{Accum, Mat, MatRef};

use super::features::{Element, Features};
use super::{DataError, Quadratic, Rows};
use crate::threads::par;

/// The point that moments are taken around: the closer to the data's mean, the fewer digits a large mean costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Shift {
    /// The columns of X, and of Y.
    pub(super) fn parts(&self) -> (&[f64], &[f64]) {
        (&self.x, &self.y)
    }

    /// Zero.
    #[must_use]
    pub fn none<T: Element>(features: &Features<T>, y: &[f64]) -> Self {
        Self { x: vec![0.0; features.columns()], y: vec![0.0; y.len() / features.rows()] }
    }

    /// These points.
    #[must_use]
    pub fn at(x: Vec<f64>, y: Vec<f64>) -> Self {
        Self { x, y }
    }

    /// The means of the whole table. Dense tables only: a shifted sparse one would be dense.
    #[must_use]
    pub fn at_means<T: Element>(features: &Features<T>, y: &[f64]) -> Self {
        let (rows, outputs) = (features.rows() as f64, y.len() / features.rows());
        if outputs == 0 {
            return Self::at(features.means(Rows::All), Vec::new());
        }
        let mut means = vec![0.0; outputs];
        for row in y.chunks_exact(outputs) {
            means.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / rows);
        }
        Self { x: features.means(Rows::All), y: means }
    }
}

/// Sums over rows of x, y, xxᵀ, xyᵀ and ‖y‖², x and y measured from a [`Shift`], each row counted with its weight. Moments
/// of disjoint rows around the same point add up, and a fold's can be taken away.
#[derive(Debug, Clone)]
pub struct Moments {
    shift: Shift,
    /// The weight of all rows together: their number where they have none of their own.
    rows: f64,
    x: Vec<f64>,
    y: Vec<f64>,
    /// Only the lower triangle: adding rows to it costs no second pass to mirror it.
    xx: Mat<f64>,
    xy: Mat<f64>,
    yy: f64,
}

impl Moments {
    /// Of no rows at all.
    #[must_use]
    pub fn empty(shift: &Shift) -> Self {
        let (d, k) = (shift.x.len(), shift.y.len());
        let (x, y) = (vec![0.0; d], vec![0.0; k]);
        Self { shift: shift.clone(), rows: 0.0, x, y, xx: Mat::zeros(d, d), xy: Mat::zeros(d, k), yy: 0.0 }
    }

    /// One pass over `rows`. `y` holds the same number of targets for each row of the table, row by row; `weights` says
    /// how often each row of the table counts, once if `None`.
    pub fn of<T: Element>(
        features: &Features<T>,
        y: &[f64],
        weights: Option<&[f64]>,
        rows: Rows<'_>,
        shift: &Shift,
    ) -> Result<Self, DataError> {
        let mut moments = Self::empty(shift);
        moments.add(features, y, weights, rows)?;
        Ok(moments)
    }

    /// Adds further rows, of this table or of another with the same columns.
    pub fn add<T: Element>(
        &mut self,
        features: &Features<T>,
        y: &[f64],
        weights: Option<&[f64]>,
        rows: Rows<'_>,
    ) -> Result<(), DataError> {
        let (outputs, all) = (self.shift.y.len(), features.rows());
        for (name, unit, found, expected, with) in [
            ("the table", "columns", features.columns(), self.shift.x.len(), "the moments"),
            ("the target", "numbers", y.len(), all * outputs, "the rows"),
            ("the list of weights", "numbers", weights.map_or(all, <[f64]>::len), all, "the rows"),
        ] {
            if found != expected {
                return Err(DataError::Shape { name, unit, found, expected, with });
            }
        }
        rows.require(all)?;
        features.add_gram(rows, y, weights, &self.shift, self.xx.as_mut(), self.xy.as_mut());
        features.add_sums(rows, weights, &self.shift.x, &mut self.x);
        for row in rows.iter(0..rows.count(features.rows())) {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            self.rows += weight;
            for ((sum, value), shift) in self.y.iter_mut().zip(&y[row * outputs..]).zip(&self.shift.y) {
                *sum += weight * (value - shift);
                self.yy += weight * (value - shift) * (value - shift);
            }
        }
        Ok(())
    }

    /// The weight of all rows together: their number where they have none of their own.
    #[must_use]
    pub fn rows(&self) -> f64 {
        self.rows
    }

    /// Features.
    #[must_use]
    pub fn width(&self) -> usize {
        self.x.len()
    }

    /// Targets.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.y.len()
    }

    /// The moments of the rows of both, taken around the same point.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        self.plus(other, 1.0)
    }

    /// The moments of the rows that are in `self` but not in `part`.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        self.plus(part, -1.0)
    }

    /// The moments of the rows of both, whatever points each is taken around: they are moved to the mean of all rows, where what
    /// is added to squares is never negative, so that no digits cancel (Chan, Golub and LeVeque 1979, eq. 2.1).
    pub fn joined(&self, other: &Self) -> Result<Self, DataError> {
        for (name, unit, found, expected) in [
            ("other moments", "columns", other.x.len(), self.x.len()),
            ("other moments", "targets", other.y.len(), self.y.len()),
        ] {
            if found != expected {
                return Err(DataError::Shape { name, unit, found, expected, with: "these moments" });
            }
        }
        if self.rows == 0.0 || other.rows == 0.0 {
            return Ok(if self.rows == 0.0 { other.clone() } else { self.clone() });
        }
        let share = other.rows / (self.rows + other.rows);
        let mean = |own: &Self| own.means().into_iter().chain(own.target_means());
        let between: Vec<f64> = mean(self).zip(mean(other)).map(|(own, other)| own + share * (other - own)).collect();
        let (x, y) = between.split_at(self.x.len());
        let to = Shift::at(x.to_vec(), y.to_vec());
        Ok(self.moved(&to).with(&other.moved(&to)))
    }

    /// The same rows' moments around another point: `Σ(x−s')(x−s')ᵀ` is a polynomial in `s'−s` of those around s.
    #[must_use]
    pub fn moved(&self, to: &Shift) -> Self {
        let n = self.rows;
        let a: Vec<f64> = to.x.iter().zip(&self.shift.x).map(|(to, from)| to - from).collect();
        let b: Vec<f64> = to.y.iter().zip(&self.shift.y).map(|(to, from)| to - from).collect();
        let sums = |sums: &[f64], by: &[f64]| sums.iter().zip(by).map(|(sum, by)| sum - n * by).collect();
        let product = |sum: f64, u: f64, a: f64, v: f64, b: f64| sum - (a * v + b * u) + n * a * b;
        let d = self.x.len();
        let pair = |i: usize, j: usize| product(self.xx[(i, j)], self.x[i], a[i], self.x[j], a[j]);
        Self {
            shift: to.clone(),
            rows: n,
            x: sums(&self.x, &a),
            y: sums(&self.y, &b),
            xx: Mat::from_fn(d, d, |i, j| if i >= j { pair(i, j) } else { 0.0 }),
            xy: Mat::from_fn(d, b.len(), |i, j| product(self.xy[(i, j)], self.x[i], a[i], self.y[j], b[j])),
            yy: self.y.iter().zip(&b).fold(self.yy, |yy, (&y, &b)| product(yy, y, b, y, b)),
        }
    }

    /// The mean of every target over these rows.
    fn target_means(&self) -> Vec<f64> {
        self.y.iter().zip(&self.shift.y).map(|(sum, shift)| shift + sum / self.rows).collect()
    }

    /// All it holds, the lower triangle row by row: [`from_numbers`](Self::from_numbers) takes it back.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<f64> {
        let (d, k) = (self.x.len(), self.y.len());
        let mut numbers = vec![d as f64, k as f64, self.rows, self.yy];
        [&self.shift.x, &self.shift.y, &self.x, &self.y].iter().for_each(|part| numbers.extend_from_slice(part));
        (0..d).for_each(|i| numbers.extend((0..=i).map(|j| self.xx[(i, j)])));
        (0..d).for_each(|i| numbers.extend((0..k).map(|j| self.xy[(i, j)])));
        numbers
    }

    /// Moments from all they held.
    pub fn from_numbers(numbers: &[f64]) -> Result<Self, DataError> {
        let (found, size) = (numbers.len(), |at: usize| numbers.get(at).map_or(0, |size| *size as usize));
        let (d, k) = (size(0), size(1));
        // (Counts beyond all memory are no counts of what is there.)
        let triangle = d.saturating_add(1).saturating_mul(d) / 2;
        let expected = d.saturating_add(k).saturating_mul(2).saturating_add(4);
        let expected = expected.saturating_add(triangle).saturating_add(d.saturating_mul(k));
        if found != expected {
            let (name, unit, with) = ("the list of moments", "numbers", "the columns it names");
            return Err(DataError::Shape { name, unit, found, expected, with });
        }
        let mut rest = &numbers[4..];
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken
        };
        let shift = Shift::at(take(d).to_vec(), take(k).to_vec());
        let (x, y) = (take(d).to_vec(), take(k).to_vec());
        let (pairs, cross) = (take(d * (d + 1) / 2), take(d * k));
        Ok(Self {
            shift,
            rows: numbers[2],
            x,
            y,
            xx: Mat::from_fn(d, d, |i, j| if i >= j { pairs[i * (i + 1) / 2 + j] } else { 0.0 }),
            xy: Mat::from_fn(d, k, |i, j| cross[i * k + j]),
            yy: numbers[3],
        })
    }

    fn plus(&self, other: &Self, sign: f64) -> Self {
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + sign * b).collect();
        Self {
            shift: self.shift.clone(),
            rows: self.rows + sign * other.rows,
            x: sum(&self.x, &other.x),
            y: sum(&self.y, &other.y),
            xx: &self.xx + faer::Scale(sign) * &other.xx,
            xy: &self.xy + faer::Scale(sign) * &other.xy,
            yy: self.yy + sign * other.yy,
        }
    }

    /// The moments of the same rows with every feature divided by its spread over them, and the factors that did it:
    /// weights W of the scaled features are `scale · W` of these, with the same intercept.
    #[must_use]
    pub fn standardized(&self) -> (Self, Vec<f64>) {
        let scale: Vec<f64> = (0..self.x.len())
            .map(|i| {
                let (mean, square) = (self.x[i] / self.rows, self.xx[(i, i)] / self.rows);
                let spread = (square - mean * mean).max(0.0).sqrt();
                // A constant feature has nothing to scale, though its spread may come out as rounding.
                let rounding = (1e-7 * square.sqrt()).max(1e-12 * (mean + self.shift.x[i]).abs());
                if spread > rounding { 1.0 / spread } else { 1.0 }
            })
            .collect();
        let times = |values: &[f64]| values.iter().zip(&scale).map(|(value, scale)| value * scale).collect();
        let scaled = Self {
            shift: Shift { x: times(&self.shift.x), y: self.shift.y.clone() },
            rows: self.rows,
            x: times(&self.x),
            y: self.y.clone(),
            xx: Mat::from_fn(self.x.len(), self.x.len(), |i, j| scale[i] * self.xx[(i, j)] * scale[j]),
            xy: Mat::from_fn(self.x.len(), self.y.len(), |i, j| scale[i] * self.xy[(i, j)]),
            yy: self.yy,
        };
        (scaled, scale)
    }

    /// The mean of every feature over these rows.
    #[must_use]
    pub fn means(&self) -> Vec<f64> {
        self.x.iter().zip(&self.shift.x).map(|(sum, shift)| shift + sum / self.rows).collect()
    }

    /// Where the last features say which values of others were filled in (1 there, 0 elsewhere): the mean of the values of
    /// each of `gaps` that were not, less what was filled in, `values`.
    #[must_use]
    pub fn refill(&self, gaps: &[usize], values: &[f64]) -> Vec<f64> {
        let first = self.x.len() - gaps.len();
        let one = |(at, (&gap, value)): (usize, (&usize, &f64))| {
            let (away, filled) = (value - self.shift.x[gap], self.x[first + at]);
            (self.x[gap] - filled * away) / (self.rows - filled) - away
        };
        gaps.iter().zip(values).enumerate().map(one).collect()
    }

    /// The moments with `more` added to the values of each of `gaps` that were filled in; the features that say which drop
    /// out. Exact: `x + more · filled` is linear in the features there are.
    #[must_use]
    pub fn refilled(&self, gaps: &[usize], more: &[f64]) -> Self {
        if gaps.is_empty() {
            return self.clone();
        }
        let all = self.x.len();
        let d = all - gaps.len();
        let (mut x, mut xy) = (self.x.clone(), self.xy.clone());
        let mut xx = Mat::from_fn(all, all, |i, j| self.xx[(i.max(j), i.min(j))]);
        let changes = || gaps.iter().zip(more).zip(d..);
        for ((&gap, more), filled) in changes() {
            x[gap] += more * x[filled];
            (0..xy.ncols()).for_each(|j| xy[(gap, j)] += more * xy[(filled, j)]);
            (0..all).for_each(|j| xx[(gap, j)] += more * xx[(filled, j)]);
        }
        for ((&gap, more), filled) in changes() {
            (0..all).for_each(|i| xx[(i, gap)] += more * xx[(i, filled)]);
        }
        x.truncate(d);
        Self {
            shift: Shift { x: self.shift.x[..d].to_vec(), y: self.shift.y.clone() },
            rows: self.rows,
            x,
            y: self.y.clone(),
            xx: Mat::from_fn(d, d, |i, j| if i >= j { xx[(i, j)] } else { 0.0 }),
            xy: xy.get(..d, ..).to_owned(),
            yy: self.yy,
        }
    }

    /// `1/(2n) Σ‖Wᵀx − y‖² + ridge/2 ‖W‖²` up to a constant; with an intercept, of the centered data. Without one, the
    /// moments must be taken around zero.
    pub fn quadratic(&self, ridge: f64, intercept: bool) -> Result<Quadratic, DataError> {
        let (n, d) = (self.rows, self.x.len());
        let keep = if intercept { 1.0 } else { 0.0 };
        let hessian = Mat::from_fn(d, d, |i, j| {
            let centered = self.xx[(i.max(j), i.min(j))] / n - keep * (self.x[i] / n) * (self.x[j] / n);
            if i == j { centered + ridge } else { centered }
        });
        let linear =
            Mat::from_fn(d, self.y.len(), |i, j| self.xy[(i, j)] / n - keep * (self.x[i] / n) * (self.y[j] / n));
        Quadratic::new(hessian, linear)
    }

    /// The intercept that goes with W: `ȳ − Wᵀx̄`.
    #[must_use]
    pub fn intercept(&self, weights: &[f64]) -> Vec<f64> {
        let columns = weights.chunks_exact(self.x.len()).zip(&self.y).zip(&self.shift.y);
        let along = |column: &[f64], x: &[f64]| column.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        columns
            .map(|((column, y), shift)| shift - along(column, &self.shift.x) + (y - along(column, &self.x)) / self.rows)
            .collect()
    }

    /// `1/(2n) Σ‖Wᵀx + b − y‖²` over these rows.
    #[must_use]
    pub fn loss(&self, weights: &[f64], intercept: &[f64]) -> f64 {
        let (d, k) = (self.x.len(), self.y.len());
        let w = MatRef::from_column_major_slice(weights, d, k);
        let mut lower = Mat::<f64>::zeros(d, k);
        triangular::matmul(
            lower.as_mut(),
            triangular::BlockStructure::Rectangular,
            Accum::Replace,
            self.xx.as_ref(),
            triangular::BlockStructure::TriangularLower,
            w,
            triangular::BlockStructure::Rectangular,
            1.0,
            par(),
        );
        let mut sum = self.yy;
        for j in 0..k {
            let along = |x: &[f64]| (0..d).map(|i| w[(i, j)] * x[i]).sum::<f64>();
            // The intercept as seen from the shifted origin.
            let b = intercept[j] + along(&self.shift.x) - self.shift.y[j];
            // Every pair of the lower triangle stands for two, the diagonal for itself.
            let product = |i: usize| 2.0 * lower[(i, j)] - self.xx[(i, i)] * w[(i, j)];
            sum += (0..d).map(|i| w[(i, j)] * (product(i) - 2.0 * self.xy[(i, j)])).sum::<f64>();
            sum += 2.0 * b * (along(&self.x) - self.y[j]) + self.rows * b * b;
        }
        // Squares cannot sum to less than nothing, but rounding can. (A NaN stays one.)
        (if sum < 0.0 { 0.0 } else { sum }) / (2.0 * self.rows)
    }

    /// `1/(2n) Σ‖y − ȳ‖²`: the loss of predicting the mean. 1 − loss/this is R².
    #[must_use]
    pub fn spread(&self) -> f64 {
        let squares: f64 = self.y.iter().map(|y| y * y).sum();
        let rest = self.yy - squares / self.rows;
        (if rest < 0.0 { 0.0 } else { rest }) / (2.0 * self.rows)
    }
}
