//! Formats that are not read here: what a file or folder is, and the one line that turns it into something that is.

use std::io::Read;
use std::path::Path;

use crate::files::text::quoted_if_needed;

/// What a folder holds that is not read, if it is known: itself, or the folders of a run in it.
pub(super) fn of_folder(folder: &Path) -> Option<String> {
    look(folder, 2)
}

/// The same, in folders at most this many below. (Links may lead back.)
fn look(folder: &Path, depth: usize) -> Option<String> {
    let listed = std::fs::read_dir(folder).ok()?.take(10_000).flatten();
    let mut entries: Vec<String> = listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    entries.sort();
    let has = |name: &str| entries.iter().any(|entry| entry == name);
    let any = |test: fn(&str) -> bool| entries.iter().find(|entry| test(entry));
    if any(|name| name.ends_with("_model_states.pt")).is_some()
        && any(|name| name.starts_with("zero_pp_rank_")).is_some()
        || any(|name| name.ends_with("_optim_states.pt")).is_some()
    {
        // (The script lies beside the folder of a step.)
        return Some(format!("a DeepSpeed ZeRO checkpoint, whose weights are spread over its ranks. {}", zero(folder)));
    }
    if has("_CHECKPOINT_METADATA") || has("_METADATA") || has("manifest.ocdbt") {
        // (A manager of checkpoints puts the arrays one folder below.)
        let inner = folder.join("default");
        let inner = if inner.join("_METADATA").is_file() { inner } else { folder.into() };
        let line = python(
            "import sys, os, jax, numpy as np, orbax.checkpoint as o; t = o.PyTreeCheckpointer().restore(os.path.abspath(sys.argv[1])); \
             np.savez(sys.argv[2], **{'.'.join(str(getattr(k, 'key', getattr(k, 'idx', k))) for k in p): np.asarray(v) for p, v in \
             jax.tree_util.tree_flatten_with_path(t)[0]})",
            &inner,
            folder,
            "npz",
        );
        return Some(format!("an orbax checkpoint, which is not read. Convert it: {line}"));
    }
    if let Some(reason) = entries.iter().find_map(|name| of_name(&folder.join(name))) {
        return Some(reason);
    }
    // (flax calls its files `checkpoint_10`.)
    let bare = entries.iter().filter(|name| !name.contains('.')).map(|name| folder.join(name));
    if let Some(reason) = bare.filter(|path| path.is_file()).take(3).find_map(|path| of_start(&path, &start_of(&path)?))
    {
        return Some(reason);
    }
    // One of the checkpoints of a run tells for all.
    let steps = entries.iter().filter(|name| depth > 0 && !name.starts_with('.')).map(|name| folder.join(name));
    steps.filter(|path| path.is_dir()).take(3).find_map(|path| {
        look(&path, depth - 1).map(|reason| if depth == 2 { format!("{}: {reason}", path.display()) } else { reason })
    })
}

/// A file's first bytes.
fn start_of(path: &Path) -> Option<Vec<u8>> {
    let mut start = Vec::new();
    super::open_plain(path).ok()?.take(16).read_to_end(&mut start).ok()?;
    Some(start)
}

/// A path as a shell takes it, whatever is in its name: lines are there to be pasted.
fn word(path: &Path) -> String {
    quoted_if_needed(&path.to_string_lossy())
}

/// A line that converts `from` into a file beside `to`. (The code is within double quotes, and has none, nor anything that a shell would
/// look at in them: paths are arguments. `-P` keeps Python from importing what lies in the current folder, which may be the stranger's.)
fn python(code: &str, from: &Path, to: &Path, ending: &str) -> String {
    let mut to = to.as_os_str().to_owned();
    to.push(format!(".{ending}"));
    format!("python -P -c \"{code}\" {} {}", word(from), word(to.as_ref()))
}

/// How DeepSpeed's own script makes a checkpoint of one. (The installed one: the copy beside a run is code from whoever sent that.)
fn zero(folder: &Path) -> String {
    let above = folder.parent().unwrap_or(folder);
    let step = Path::new(folder.file_name().unwrap_or_default());
    format!(
        "Gather them, step by step: python -P -m deepspeed.utils.zero_to_fp32 {} {} -t {}, then average OUT",
        word(above),
        word(&Path::new("OUT").join(step)),
        word(step)
    )
}

/// Why weights that are placeholders are refused.
pub(super) const PLACEHOLDER: &str = "its weights are empty placeholders: DeepSpeed ZeRO-3 keeps the numbers in its \
                                      ranks' own files. Gather them, step by step: python -P -m deepspeed.utils.zero_to_fp32 \
                                      RUN OUT/STEP -t STEP, then average OUT";

/// What a file is that is not read, by its name.
pub(super) fn of_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let ends = |ending: &str| name.ends_with(ending);
    if ends(".msgpack") {
        return Some(msgpack(path));
    }
    if ends(".keras") {
        return Some(keras(path));
    }
    if ends(".h5") || ends(".hdf5") {
        return Some(hdf5(path));
    }
    if ends(".gguf") {
        return Some(gguf());
    }
    if ends(".onnx") {
        let line = python(
            "import sys, onnx, numpy as np; np.savez(sys.argv[2], **{t.name: onnx.numpy_helper.to_array(t) for t in \
             onnx.load(sys.argv[1]).graph.initializer})",
            path,
            path,
            "npz",
        );
        return Some(format!(
            "an ONNX model, which is not read. Average the framework's own checkpoints and export the average, or convert \
             its weights: {line}"
        ));
    }
    let data = name.rsplit_once(".data-").filter(|(_, shard)| shard.contains("-of-")).map(|(stem, _)| stem);
    if let Some(stem) = data.or_else(|| name.strip_suffix(".index")) {
        let prefix = path.with_file_name(stem);
        let line = python(
            "import sys, tensorflow as tf, numpy as np; r = tf.train.load_checkpoint(sys.argv[1]); np.savez(sys.argv[2], **{k: \
             r.get_tensor(k) for k, d in r.get_variable_to_dtype_map().items() if d.is_floating or d.is_integer})",
            &prefix,
            &prefix,
            "npz",
        );
        return Some(format!("a part of a TensorFlow checkpoint, which is not read. Convert it: {line}"));
    }
    None
}

/// What a file is that is not read, by its first bytes.
pub(super) fn of_start(path: &Path, start: &[u8]) -> Option<String> {
    match start {
        [0x89, b'H', b'D', b'F', ..] => Some(hdf5(path)),
        [b'G', b'G', b'U', b'F', ..] => Some(gguf()),
        // A map of few entries whose first key is text. (A pickle begins with 0x80.)
        [0x81..=0x8f, 0xa1..=0xbf | 0xd9, ..] => Some(msgpack(path)),
        _ => of_name(path),
    }
}

/// What flax serializes, its counters and empty branches among the arrays.
fn msgpack(path: &Path) -> String {
    let line = python(
        "import sys, numpy as np; from flax.serialization import msgpack_restore as r; from flax.traverse_util import \
         flatten_dict as f; from safetensors.numpy import save_file; save_file({k: np.asarray(v) for k, v in \
         f(r(open(sys.argv[1], 'rb').read()), sep='.').items() if v is not None}, sys.argv[2])",
        path,
        path,
        "safetensors",
    );
    format!("a flax msgpack file, which is not read. Convert it: {line}")
}

/// Keras' own archive, which holds its weights as HDF5.
pub(super) fn keras(path: &Path) -> String {
    let line = python(
        "import sys, keras, numpy as np; np.savez(sys.argv[2], **{w.path: np.asarray(w) for w in \
         keras.models.load_model(sys.argv[1], compile=False).weights})",
        path,
        path,
        "npz",
    );
    format!("a Keras model, which is not read. Convert its weights: {line}")
}

fn hdf5(path: &Path) -> String {
    let line = python(
        "import sys, h5py, numpy as np; d = {}; h5py.File(sys.argv[1]).visititems(lambda k, v: d.update({k: v[()]}) if \
         isinstance(v, h5py.Dataset) else None); np.savez(sys.argv[2], **d)",
        path,
        path,
        "npz",
    );
    format!("an HDF5 file (Keras weights, say), which is not read. Convert it: {line}")
}

fn gguf() -> String {
    "a gguf file, whose weights are quantized as a rule, which is not read. Average the checkpoints it was made from, then \
     convert the average (llama.cpp's convert_hf_to_gguf.py)"
        .into()
}
