//! Which tensor of an output goes into which file of its folder.

use std::collections::BTreeMap;
use std::path::Path;

use super::output::{Format, Layout};
use super::series::Series;
use super::{ModelPart, number};

/// A file of an output: its name, its tensors, and how many bytes of their names are the part's and not the file's.
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) tensors: Vec<usize>,
    pub(super) prefix: usize,
    /// The index that lists it, where there is one.
    index: Option<String>,
}

impl Series {
    pub(super) fn shards_of(&self, layout: &Layout) -> Vec<Shard> {
        let mut shards = if layout.format == Format::Safetensors && self.writes_folders(layout) {
            let whole = [ModelPart { folder: String::new(), prefix: String::new(), files: Vec::new(), index: None }];
            let parts = if self.parts.is_empty() { &whole[..] } else { &self.parts };
            let mut first = 0;
            let mut shards = Vec::new();
            for part in parts {
                shards.extend(self.shards_of_part(part, first, layout));
                first += part.files.len();
            }
            shards
        } else {
            vec![Shard { name: String::new(), tensors: (0..self.tensors.len()).collect(), prefix: 0, index: None }]
        };
        for shard in &mut shards {
            // Wide types first, as safetensors' own writer has them: every tensor is then aligned.
            let width = |at: &usize| std::cmp::Reverse(number::size(self.output_dtype(*at, layout)));
            shard.tensors.sort_by_key(width);
        }
        shards
    }

    /// The files of a part, whose own are counted from `first` on.
    fn shards_of_part(&self, part: &ModelPart, first: usize, layout: &Layout) -> Vec<Shard> {
        let files = first..first + part.files.len();
        let is_in = |at: &usize| part.files.is_empty() || files.contains(&self.file_of[*at]);
        let all = (0..self.tensors.len()).filter(is_in);
        let safetensors = |name: &str| {
            let endings = super::folder::ENDINGS.iter().rev();
            let stem =
                endings.filter_map(|ending| name.strip_suffix(ending)).min_by_key(|stem| stem.len()).unwrap_or(name);
            stem.strip_prefix("pytorch_").unwrap_or(stem).to_owned()
        };
        let groups: Vec<(String, Vec<usize>)> = match layout.shard_bytes {
            None => {
                let files = part.files.iter().enumerate();
                let named = files.map(|(i, name)| {
                    let tensors = all.clone().filter(|&at| self.file_of[at] == first + i).collect();
                    (format!("{}.safetensors", safetensors(name)), tensors)
                });
                named.collect()
            }
            Some(limit) => {
                let mut groups: Vec<(Vec<usize>, u64)> = Vec::new();
                for at in all {
                    let bytes = self.output_bytes(at, layout);
                    match groups.last_mut() {
                        Some((group, size)) if *size + bytes <= limit => {
                            group.push(at);
                            *size += bytes;
                        }
                        _ => groups.push((vec![at], bytes)),
                    }
                }
                let stem = part.files.first().map_or_else(|| "model".into(), |name| safetensors(name));
                // (model-00001-of-00002 → model)
                let stem =
                    stem.split_once("-of-").and_then(|(stem, _)| stem.rsplit_once('-')).map_or(&*stem, |(s, _)| s);
                let count = groups.len();
                let name = |i: usize| match count {
                    1 => format!("{stem}.safetensors"),
                    _ => format!("{stem}-{:05}-of-{count:05}.safetensors", i + 1),
                };
                groups.into_iter().enumerate().map(|(i, (tensors, _))| (name(i), tensors)).collect()
            }
        };
        let kept =
            part.index.clone().filter(|name| layout.shard_bytes.is_none() && name.ends_with(".safetensors.index.json"));
        let index = (groups.len() > 1).then(|| {
            let stem =
                groups[0].0.rsplit_once("-of-").and_then(|(stem, _)| stem.rsplit_once('-')).map_or("model", |(s, _)| s);
            part.path_of(&kept.unwrap_or_else(|| format!("{stem}.safetensors.index.json")))
        });
        groups
            .into_iter()
            .map(|(name, tensors)| Shard {
                name: part.path_of(&name),
                tensors,
                prefix: part.prefix.len(),
                index: index.clone(),
            })
            .collect()
    }

    pub(super) fn write_indexes(&self, folder: &Path, shards: &[Shard], layout: &Layout) -> std::io::Result<()> {
        let mut indexes: BTreeMap<&str, (BTreeMap<&str, &str>, u64)> = BTreeMap::new();
        for shard in shards {
            let Some(index) = &shard.index else { continue };
            let (map, total) = indexes.entry(index).or_default();
            let name = shard.name.rsplit('/').next().unwrap_or(&shard.name);
            for &at in &shard.tensors {
                map.insert(&self.tensors[at].name[shard.prefix..], name);
                *total += self.output_bytes(at, layout);
            }
        }
        for (name, (map, total)) in indexes {
            let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
            let mut text = serde_json::to_string_pretty(&index)?;
            text.push('\n');
            std::fs::write(folder.join(name), text)?;
        }
        Ok(())
    }
}
