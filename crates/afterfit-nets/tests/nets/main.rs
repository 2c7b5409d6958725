//! What the networks promise, on a CPU: PyTorch's numbers, exact resuming, dials and averages of what was trained.

mod command;
mod data;
mod parity;
mod path;

use std::path::Path;

use afterfit_nets::data::{Name, Taken};
use afterfit_nets::model::Precision;
use afterfit_nets::net::{Architecture, Kernels};
use afterfit_nets::run::{DialRange, Settings};
use afterfit_nets::train::Options;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;

/// Pictures that can be learned: each class has its own colors in the four quarters, under noise.
fn record(labels: &[u8], class: u8, random: &mut ChaCha12Rng) -> Vec<u8> {
    let mut bytes = labels.to_vec();
    for channel in 0..3_usize {
        for row in 0..32 {
            for column in 0..32 {
                let quarter = 2 * (row / 16) + column / 16;
                let bit = (class as usize + 1) >> (quarter % 4) & 1;
                let base = if bit == 1 { 150 } else { 80 } + 10 * channel as i32;
                bytes.push((base + random.random_range(-40..=40)).clamp(0, 255) as u8);
            }
        }
    }
    bytes
}

/// A folder like that of CIFAR-10, with `count` training images and half as many for testing.
pub(crate) fn small_cifar(folder: &Path, count: usize) {
    let mut random = ChaCha12Rng::seed_from_u64(7);
    std::fs::create_dir_all(folder).expect("a folder");
    let mut batch = |count: usize| -> Vec<u8> {
        (0..count).flat_map(|i| record(&[(i % 10) as u8], (i % 10) as u8, &mut random)).collect()
    };
    for i in 1..=5 {
        std::fs::write(folder.join(format!("data_batch_{i}.bin")), batch(count / 5)).expect("a batch");
    }
    std::fs::write(folder.join("test_batch.bin"), batch(count / 2)).expect("the test batch");
}

/// A tiny run.
pub(crate) fn tiny(epochs: u64, batch: i64) -> Settings {
    Settings {
        net: Architecture::ResNet18,
        kernels: Kernels::Torch,
        width: 2,
        data: Taken {
            name: Name::Cifar10,
            train_images: None,
            test_images: None,
            label_noise: 0.0,
            hold_out: 0,
            seed: 3,
        },
        epochs,
        batch,
        rate: 0.1,
        drops: vec![epochs / 2],
        weight_decay: 5e-4,
        momentum: 0.0,
        nesterov: false,
        seed: 3,
        precision: Precision::F32,
        checkpoints_from: 1,
        dial: Some(DialRange { from: 1e-3, to: 1.0, nodes: 8, start: 0 }),
    }
}

pub(crate) const QUIET: Options =
    Options { stop_after: None, evaluate_every: 0, save_every: 1, graphs: false, quiet: true };
