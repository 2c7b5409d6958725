//! Element types: their names and sizes, and which are averaged.

use safetensors::Dtype;

/// Whether tensors of this type are averaged. Others are copied.
#[must_use]
pub fn is_averaged(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// Bytes of one element; `None` for types that pack several into a byte.
#[must_use]
pub fn size(dtype: Dtype) -> Option<u64> {
    dtype.bitsize().is_multiple_of(8).then_some(dtype.bitsize() as u64 / 8)
}

/// The type of this name, as users and file formats write it.
#[must_use]
pub fn parse(name: &str) -> Option<Dtype> {
    Some(match name {
        "f64" | "float64" | "double" | "F64" => Dtype::F64,
        "f32" | "float32" | "float" | "F32" => Dtype::F32,
        "f16" | "float16" | "half" | "F16" => Dtype::F16,
        "bf16" | "bfloat16" | "BF16" => Dtype::BF16,
        "f8-e4m3" | "float8_e4m3fn" | "F8_E4M3" => Dtype::F8_E4M3,
        "f8-e5m2" | "float8_e5m2" | "F8_E5M2" => Dtype::F8_E5M2,
        _ => return None,
    })
}

/// A type's name as users write it.
#[must_use]
pub fn name(dtype: Dtype) -> String {
    match dtype {
        Dtype::F8_E4M3 => "f8-e4m3".into(),
        Dtype::F8_E5M2 => "f8-e5m2".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}
