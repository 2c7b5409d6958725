//! Flips and padded crops, on the device, a whole epoch at a time.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use tch::{Kind, Tensor};

use crate::data::{Images, SIDE};

/// Black pixels around an image before a 32 × 32 window is cut from it.
const PADDING: i64 = 4;

/// The number of the pass that refreshes batch norms: no epoch of training has it, and neither has the noise of labels.
pub const REFRESHING: u64 = u64::MAX;

/// Which images an epoch shows, in what order, shifted and flipped how. Depends on the seed and the epoch alone: a resumed
/// run and one on another device see the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    order: Vec<i64>,
    down: Vec<i64>,
    right: Vec<i64>,
    flipped: Vec<bool>,
}

impl Epoch {
    /// Draws an epoch of `count` images.
    #[must_use]
    pub fn draw(count: i64, seed: u64, epoch: u64) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        random.set_stream(epoch);
        let mut order: Vec<i64> = (0..count).collect();
        order.shuffle(&mut random);
        let mut shifts = || -> Vec<i64> { (0..count).map(|_| random.random_range(0..=2 * PADDING)).collect() };
        let (down, right) = (shifts(), shifts());
        Self { order, down, right, flipped: (0..count).map(|_| random.random()).collect() }
    }
}

/// Training images with a black margin, ready to be cut. Memory: 5 kB an image.
#[derive(Debug)]
pub struct Augmenter {
    padded: Tensor,
}

impl Augmenter {
    /// Pads the images once.
    #[must_use]
    pub fn new(images: &Images) -> Self {
        Self { padded: images.pixels.constant_pad_nd([0, 0, PADDING, PADDING, PADDING, PADDING]) }
    }

    /// The images of an epoch from number `start` on, as bytes (by image, row, column, color), and their positions.
    pub fn images(&self, epoch: &Epoch, start: i64, count: i64) -> (Tensor, Tensor) {
        let device = self.padded.device();
        let range = start as usize..(start + count) as usize;
        let put = |values: &[i64]| Tensor::from_slice(&values[range.clone()]).to_device(device);
        let order = put(&epoch.order);
        let along = Tensor::arange(SIDE, (Kind::Int64, device)).unsqueeze(0);
        let flipped = Tensor::from_slice(&epoch.flipped[range.clone()]).to_device(device).unsqueeze(1);
        let mirrored: Tensor = (SIDE - 1) - &along;
        let rows = put(&epoch.down).unsqueeze(1) + &along;
        let columns = put(&epoch.right).unsqueeze(1) + mirrored.where_self(&flipped, &along);
        let at = [Some(order.view([-1, 1, 1])), Some(rows.unsqueeze(2)), Some(columns.unsqueeze(1))];
        (self.padded.index(&at), order)
    }
}
