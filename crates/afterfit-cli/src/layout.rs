//! `--dtype --format --shard-size --memory --answer`: what models are written as, wherever they are written.

use std::path::Path;

use afterfit::Answer;
use afterfit::checkpoint::{Format, Layout, number};
use anyhow::Result;

use crate::output::{Advice, Bytes, existing};
use crate::strengths::choice;

/// Options of every command that writes models of networks.
#[derive(clap::Args)]
pub(crate) struct LayoutArgs {
    /// Type of the averaged tensors: f64, f32, f16, bf16, f8-e4m3 or f8-e5m2 (default: as they came).
    #[arg(long, value_name = "TYPE", help_heading = "Outputs")]
    dtype: Option<String>,
    /// File format (default: OUT's ending, else DCP where the last input is one, else safetensors).
    #[arg(long, value_parser = choice(FORMATS), help_heading = "Outputs")]
    format: Option<Format>,
    /// Cut outputs into files of at most this size, such as 5GB.
    #[arg(long, value_name = "SIZE", help_heading = "Outputs")]
    shard_size: Option<Bytes>,
    /// Memory for buffers, such as 64MB (default: a 72nd of the model, from 0.5 to 64 MB).
    #[arg(long, value_name = "SIZE", help_heading = "Outputs")]
    memory: Option<Bytes>,
}

impl LayoutArgs {
    /// The layout of what goes to `output`, in the place of what is there if that is forced; `native` is the inputs' own format.
    pub(crate) fn of(&self, output: &Path, native: Format, force: bool) -> Result<Layout> {
        let parse = |name: &String| {
            number::parse(name).ok_or_else(|| {
                Advice::error(format!("--dtype {name} is not a type"), "f64, f32, f16, bf16, f8-e4m3 and f8-e5m2 are")
            })
        };
        let by_name = if says_format(output) { Format::of(output) } else { native };
        let format = self.format.unwrap_or(by_name);
        if self.shard_size.is_some() && !matches!(format, Format::Safetensors | Format::Distributed) {
            return Err(Advice::error("--shard-size is for safetensors and DCP", "leave out --format or --shard-size"));
        }
        Ok(Layout {
            format,
            dtype: self.dtype.as_ref().map(parse).transpose()?,
            shard_bytes: self.shard_size.map(|size| size.0),
            // Whoever names a .safetensors file gets one.
            single: self.shard_size.is_none()
                && format == Format::Safetensors
                && output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors")),
            memory: self.memory(),
            existing: existing(force),
        })
    }

    /// Refuses a name that says another format, or one that nobody knows. (`0.1` in a name is no ending.)
    pub(crate) fn require_known_ending(&self, output: &Path) -> Result<()> {
        let ending = output.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_lowercase();
        let says_something = ending.starts_with(|c: char| c.is_ascii_alphabetic()) && ending.len() <= 8;
        let is_folder = output.is_dir() || output.as_os_str().to_string_lossy().ends_with('/');
        if self.format.is_some() || !says_something || is_folder || ENDINGS.contains(&ending.as_str()) {
            return Ok(());
        }
        Err(Advice::error(
            format!("{}: .{ending} is not a format that is written here", output.display()),
            "name it .safetensors, .npz or .pt (.pth, .bin, .ckpt); --format says which, whatever its name; a folder's ends in /",
        ))
    }

    /// Bytes of buffers asked for.
    pub(crate) fn memory(&self) -> Option<u64> {
        self.memory.map(|size| size.0)
    }

    /// Whether a type, a format or shards were asked for.
    pub(crate) fn is_set(&self) -> bool {
        self.dtype.is_some() || self.format.is_some() || self.shard_size.is_some()
    }
}

/// Whether a name has an ending that says a format.
fn says_format(output: &Path) -> bool {
    let ending = output.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_lowercase();
    ENDINGS.contains(&ending.as_str())
}

/// Endings that say a format.
const ENDINGS: [&str; 7] = ["safetensors", "npz", "pt", "pth", "bin", "ckpt", "tar"];

/// A number in a file's name: all digits where they are few (0.99999 must not become 1), else four.
pub(crate) fn in_name(value: f64) -> String {
    let exact = in_name_exactly(value);
    if exact.len() <= 10 { exact } else { crate::output::short(value) }
}

/// A number in a file's name, with all its digits.
pub(crate) fn in_name_exactly(value: f64) -> String {
    if (1e-3..1e6).contains(&value) { value.to_string() } else { format!("{value:e}") }
}

pub(crate) const ANSWERS: &[(&str, &str, Answer)] = &[
    ("regularized", "The unspent mass goes to the last checkpoint", Answer::Regularized),
    ("normalized", "The weights are divided by the mass spent", Answer::Normalized),
];

const FORMATS: &[(&str, &str, Format)] = &[
    ("safetensors", "One safetensors file, or a folder of shards", Format::Safetensors),
    ("npz", "numpy's archive", Format::Npz),
    ("pt", "A state dictionary for torch.load", Format::Torch),
    ("dcp", "A folder for torch.distributed.checkpoint.load", Format::Distributed),
];
