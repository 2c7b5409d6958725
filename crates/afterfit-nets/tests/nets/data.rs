//! Data sets in their official formats, noise, what is held out, and augmentation.

use afterfit_nets::augment::{Augmenter, Epoch};
use afterfit_nets::data::{Name, Taken};
use rand::SeedableRng;
use rand_chacha::ChaCha12Rng;
use tch::{Device, Kind, Tensor};

use crate::{record, small_cifar};

fn taken(name: Name) -> Taken {
    Taken { name, train_images: None, test_images: None, label_noise: 0.0, hold_out: 0, seed: 1 }
}

fn labels(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor).expect("labels")
}

#[test]
fn cifar_100_has_two_labels_a_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = ChaCha12Rng::seed_from_u64(1);
    let fine = [99_u8, 0, 42, 7];
    let records: Vec<Vec<u8>> = fine.iter().map(|&fine| record(&[fine / 5, fine], fine % 10, &mut random)).collect();
    std::fs::write(folder.path().join("train.bin"), records.concat()).expect("train");
    std::fs::write(folder.path().join("test.bin"), &records[2]).expect("test");
    let data = taken(Name::Cifar100).load(folder.path(), Device::Cpu).expect("data");
    assert_eq!(labels(&data.train.labels), [99, 0, 42, 7]);
    assert_eq!(labels(&data.test.labels), [42]);
    // Red, green and blue of pixel (5, 9) of image 1: planes in the file, colors of a pixel together here.
    let pixel = Vec::<u8>::try_from(data.train.pixels.get(1).get(5).get(9)).expect("a pixel");
    let at = |channel: usize| records[1][2 + channel * 1024 + 5 * 32 + 9];
    assert_eq!(pixel, [at(0), at(1), at(2)]);

    let mut cut = records.concat();
    cut.pop();
    std::fs::write(folder.path().join("train.bin"), &cut).expect("train");
    let error = taken(Name::Cifar100).load(folder.path(), Device::Cpu).expect_err("a cut file").to_string();
    assert!(error.contains("12295 bytes") && error.contains("3074"), "{error}");
    let mut wrong = records.concat();
    wrong[3074 + 1] = 100;
    std::fs::write(folder.path().join("train.bin"), &wrong).expect("train");
    let error = taken(Name::Cifar100).load(folder.path(), Device::Cpu).expect_err("a wrong label").to_string();
    assert!(error.contains("image 1 has the label 100") && error.contains("99"), "{error}");
}

#[test]
fn fashion_mnist_gets_a_margin() {
    let folder = tempfile::tempdir().expect("a folder");
    for (part, count) in [("train", 3_u8), ("t10k", 2)] {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28];
        images.extend((0..usize::from(count) * 784).map(|i| (i % 251) as u8));
        std::fs::write(folder.path().join(format!("{part}-images-idx3-ubyte")), images).expect("images");
        let mut labels = vec![0, 0, 8, 1, 0, 0, 0, count];
        labels.extend(0..count);
        std::fs::write(folder.path().join(format!("{part}-labels-idx1-ubyte")), labels).expect("labels");
    }
    let data = taken(Name::FashionMnist).load(folder.path(), Device::Cpu).expect("data");
    assert_eq!(data.train.pixels.size(), [3, 32, 32, 1]);
    assert_eq!(labels(&data.train.labels), [0, 1, 2]);
    let pixel = |row: i64, column: i64| data.train.pixels.get(1).int64_value(&[row, column, 0]);
    assert_eq!(pixel(1, 10), 0);
    assert_eq!(pixel(2, 2), 784 % 251);
    assert_eq!(pixel(29, 29), (2 * 784 - 1) % 251);
    assert_eq!(pixel(30, 10), 0);
}

#[test]
fn noise_and_holding_out() {
    let folder = tempfile::tempdir().expect("a folder");
    small_cifar(folder.path(), 1000);
    let clean = taken(Name::Cifar10).load(folder.path(), Device::Cpu).expect("data");
    assert_eq!((clean.wrong, clean.held_out.len()), (0, 0));
    let noisy = Taken { label_noise: 0.4, hold_out: 100, ..taken(Name::Cifar10) };
    let data = noisy.load(folder.path(), Device::Cpu).expect("data");
    assert_eq!((data.train.len(), data.held_out.len(), data.test.len()), (900, 100, 500));
    // A tenth of 400 random labels are right by chance.
    assert!((330..=390).contains(&data.wrong), "{} wrong labels", data.wrong);
    assert_eq!(labels(&data.test.labels), labels(&clean.test.labels));
    let again = noisy.load(folder.path(), Device::Cpu).expect("data");
    assert_eq!(labels(&again.train.labels), labels(&data.train.labels));
    let other = Taken { seed: 2, ..noisy }.load(folder.path(), Device::Cpu).expect("data");
    assert_ne!(labels(&other.train.labels), labels(&data.train.labels));

    let error = Taken { label_noise: 1.5, ..taken(Name::Cifar10) }.load(folder.path(), Device::Cpu);
    assert!(error.expect_err("too much noise").to_string().contains("1.5"));
    let error = Taken { hold_out: 1000, ..taken(Name::Cifar10) }.load(folder.path(), Device::Cpu);
    assert!(error.expect_err("nothing left").to_string().contains("1000 held-out images"));
}

#[test]
fn crops_and_flips_move_whole_pictures() {
    let folder = tempfile::tempdir().expect("a folder");
    small_cifar(folder.path(), 100);
    let data = taken(Name::Cifar10).load(folder.path(), Device::Cpu).expect("data");
    let epoch = Epoch::draw(100, 5, 0);
    assert_eq!(epoch, Epoch::draw(100, 5, 0));
    assert_ne!(epoch, Epoch::draw(100, 5, 1));
    assert_ne!(epoch, Epoch::draw(100, 6, 0));
    let (pixels, order) = Augmenter::new(&data.train).images(&epoch, 0, 100);
    let mut seen = labels(&order);
    let images: Vec<i64> = seen.clone();
    seen.sort_unstable();
    assert_eq!(seen, (0..100).collect::<Vec<_>>(), "every image once");
    // Each result is one of the 9 × 9 × 2 ways to cut a padded picture, and all kinds occur.
    let padded = data.train.pixels.constant_pad_nd([0, 0, 4, 4, 4, 4]);
    let (mut flips, mut shifts) = (0, std::collections::HashSet::new());
    for (at, &image) in images.iter().enumerate() {
        let found = (0..162).find(|way| {
            let (flip, down, right) = (way % 2, way / 2 % 9, way / 18);
            let cut = padded.get(image).narrow(0, down, 32).narrow(1, right, 32);
            let cut = if flip == 1 { cut.flip([1]) } else { cut };
            cut.eq_tensor(&pixels.get(at as i64)).all().int64_value(&[]) == 1
        });
        let way = found.expect("a crop of its picture");
        flips += way % 2;
        shifts.insert(way / 2);
    }
    assert!((25..=75).contains(&flips), "{flips} of 100 are flipped");
    assert!(shifts.len() > 40, "{} kinds of shifts", shifts.len());
    let values = data.train.normalized(&data.train.pixels, Kind::Float);
    assert_eq!(values.size(), [100, 3, 32, 32]);
    let expected =
        (f64::from(Vec::<u8>::try_from(data.train.pixels.get(7).get(3).get(4)).expect("a pixel")[1]) / 255.0 - 0.4822)
            / 0.2435;
    assert!((values.double_value(&[7, 1, 3, 4]) - expected).abs() < 1e-5);
}
