//! The one inner loop: rows of sums over a stretch of coordinates, all iterates of a block at a time.

/// Coordinates that are widened and centered together. Stretches are padded to multiples of it.
pub(crate) const BLOCK: usize = 16;
/// Rows whose sums stay in registers at a time.
pub(crate) const HELD: usize = 6;

/// What sums are made from.
pub(crate) trait Element: Copy + Into<f64> {}
impl Element for f32 {}
impl Element for f64 {}

/// `sums[n][i] += Σ_k weights[k][n] · (inputs[k][i] − center[i])`; returns the largest |input − center|.
///
/// A block of every input is widened and centered once; then six rows of two vectors stay in registers while all inputs pass
/// by. Each multiply-add is rounded once, in the order of the inputs: neither blocks nor the width of the machine's vectors
/// change a bit.
pub(crate) struct Accumulate<'a, T> {
    /// By input, `stride` apart; the last may end with its coordinates.
    pub(crate) inputs: &'a [T],
    pub(crate) stride: usize,
    /// How many inputs.
    pub(crate) count: usize,
    /// By group of [`HELD`] rows, then by input, then by row of the group.
    pub(crate) weights: &'a [Vec<f64>],
    /// Which input of the weights the inputs start with.
    pub(crate) first: usize,
    /// Where each row's sums begin.
    pub(crate) rows: &'a [usize],
    /// As long as the stretch, whole blocks.
    pub(crate) center: &'a [f64],
    pub(crate) sums: &'a mut [f64],
    /// Room for a block of every input.
    pub(crate) moved: &'a mut [[f64; BLOCK]],
}

impl<T: Element> pulp::WithSimd for Accumulate<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
        let Self { inputs, stride, count, weights, first, rows, center, sums, moved } = self;
        let mut reach = [0.0_f64; BLOCK];
        for (block, center) in center.as_chunks::<BLOCK>().0.iter().enumerate() {
            let at = block * BLOCK;
            for (k, moved) in moved[..count].iter_mut().enumerate() {
                let input = &inputs[k * stride + at..][..BLOCK];
                for (((moved, &value), center), reach) in moved.iter_mut().zip(input).zip(center).zip(&mut reach) {
                    *moved = value.into() - center;
                    // (Not f64::max, whose care for NaN keeps it out of the wide registers.)
                    let far = moved.abs();
                    *reach = if far > *reach { far } else { *reach };
                }
            }
            let moved = &moved[..count];
            for (rows, weights) in rows.chunks(HELD).zip(weights) {
                let weights = &weights[first * rows.len()..];
                match rows.len() {
                    1 => add_rows::<S, 1>(simd, moved, weights, sums, rows, at),
                    2 => add_rows::<S, 2>(simd, moved, weights, sums, rows, at),
                    3 => add_rows::<S, 3>(simd, moved, weights, sums, rows, at),
                    4 => add_rows::<S, 4>(simd, moved, weights, sums, rows, at),
                    5 => add_rows::<S, 5>(simd, moved, weights, sums, rows, at),
                    _ => add_rows::<S, HELD>(simd, moved, weights, sums, rows, at),
                }
            }
        }
        reach.into_iter().fold(0.0, f64::max)
    }
}

/// N rows of one block.
#[inline(always)]
fn add_rows<S: pulp::Simd, const N: usize>(
    simd: S,
    moved: &[[f64; BLOCK]],
    weights: &[f64],
    sums: &mut [f64],
    rows: &[usize],
    at: usize,
) {
    let width = 2 * S::F64_LANES;
    for start in (0..BLOCK).step_by(width) {
        // (Plain loops: closures would not be compiled for the wide registers.)
        let mut held = [[simd.splat_f64s(0.0); 2]; N];
        for (held, row) in held.iter_mut().zip(rows) {
            let (sums, _) = S::as_simd_f64s(&sums[row + at + start..][..width]);
            held.copy_from_slice(sums);
        }
        for (moved, weights) in moved.iter().zip(weights.as_chunks::<N>().0) {
            let (moved, _) = S::as_simd_f64s(&moved[start..][..width]);
            for (held, &weight) in held.iter_mut().zip(weights) {
                let weight = simd.splat_f64s(weight);
                held[0] = simd.mul_add_f64s(weight, moved[0], held[0]);
                held[1] = simd.mul_add_f64s(weight, moved[1], held[1]);
            }
        }
        for (held, row) in held.iter().zip(rows) {
            let (sums, _) = S::as_mut_simd_f64s(&mut sums[row + at + start..][..width]);
            sums.copy_from_slice(held);
        }
    }
}
