//! Weights that are codes: numbers that mean nothing without a scale, so that their averages mean nothing, either.

use std::collections::HashSet;

use safetensors::Dtype;

use super::Tensor;

/// Packed weights of quantized modules, which torch saves as an object.
pub(super) const PACKED: &str = "packed weights of a quantized module, which cannot be averaged: average the checkpoints \
                                 from before quantization, then quantize the average";

/// Why a tensor of codes is refused; `how` says what made them.
pub(super) fn coded(how: &str) -> String {
    format!(
        "quantized ({how}): averages of codes mean nothing. Average the checkpoints from before quantization, then \
         quantize the average"
    )
}

/// Endings of names beside a tensor of codes, and who writes them. (`weight` + these, or in place of `weight`.)
const BESIDE: [(&str, &str); 7] = [
    (".absmax", "bitsandbytes, 4 bits"),
    (".quant_map", "bitsandbytes, 4 bits"),
    ("SCB", "bitsandbytes, 8 bits"),
    ("weight_scale", "compressed-tensors, 8 bits with scales"),
    ("weight_scale_inv", "8 bits with scales"),
    ("scales", "codes with scales"),
    ("scale", "codes with scales"),
];
/// Names that only codes have.
const CODES: [(&str, &str); 4] = [
    ("qweight", "GPTQ or AWQ"),
    ("weight_packed", "compressed-tensors, packed"),
    ("W_q", "HQQ"),
    ("_packed_params", "torch.quantize"),
];

/// The first tensor that holds codes, and why it is taken to.
pub(super) fn find<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Option<(&'a str, String)> {
    let tensors: Vec<&Tensor> = tensors.collect();
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let is_byte = |tensor: &Tensor| {
        matches!(tensor.dtype, Dtype::I8 | Dtype::U8 | Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E4M3FNUZ)
    };
    let is_integer =
        |tensor: &Tensor| matches!(tensor.dtype, Dtype::I8 | Dtype::U8 | Dtype::I32 | Dtype::I64 | Dtype::I16);
    tensors.iter().find_map(|tensor| {
        let name = tensor.name.as_str();
        let own = name.rsplit('.').next().unwrap_or(name);
        if is_integer(tensor)
            && let Some((_, how)) = CODES.iter().find(|(code, _)| *code == own)
        {
            return Some((name, coded(how)));
        }
        if !is_byte(tensor) || own != "weight" && !own.ends_with("_weight") && !own.ends_with("_proj") {
            return None;
        }
        let stem = name.strip_suffix(own).unwrap_or_default();
        let found = BESIDE.iter().find(|(end, _)| match end.strip_prefix('.') {
            Some(_) => names.contains(format!("{name}{end}").as_str()),
            None => {
                names.contains(format!("{stem}{end}").as_str())
                    || names.contains(format!("{name}_{}", end.trim_start_matches("weight_")).as_str())
            }
        });
        found.map(|(_, how)| (name, coded(how)))
    })
}
