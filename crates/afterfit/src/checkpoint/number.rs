//! Element types: how they widen to what the sums use, how sums are rounded back.

use std::sync::OnceLock;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use safetensors::Dtype;

pub use crate::files::number::{is_averaged, name, parse, size};

/// Widens 16- and 8-bit floats, which all fit f32 without rounding.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], to: &mut [f32]) {
    match dtype {
        Dtype::F16 => bytemuck::cast_slice::<u8, u16>(bytes).reinterpret_cast::<f16>().convert_to_f32_slice(to),
        Dtype::BF16 => {
            for (to, &bits) in to.iter_mut().zip(bytemuck::cast_slice::<u8, u16>(bytes)) {
                *to = f32::from_bits(u32::from(bits) << 16);
            }
        }
        Dtype::F8_E4M3 => bytes.iter().zip(to).for_each(|(&bits, to)| *to = E4M3.values[bits as usize]),
        Dtype::F8_E5M2 => bytes.iter().zip(to).for_each(|(&bits, to)| *to = E5M2.values[bits as usize]),
        other => unreachable!("{other:?} is not a narrow float"),
    }
}

/// Rounds to the nearest number of the type, ties to even, appending its bytes. A number beyond the type's range
/// becomes infinite (NaN in the 8-bit type that has no infinity), which callers look for.
pub(crate) fn narrow(dtype: Dtype, from: &[f64], to: &mut Vec<u8>) {
    to.clear();
    let count = from.len();
    match dtype {
        Dtype::F64 => to.extend_from_slice(bytemuck::cast_slice(from)),
        Dtype::F32 => {
            to.resize(4 * count, 0);
            for (to, &value) in to.as_chunks_mut().0.iter_mut().zip(from) {
                *to = (value as f32).to_le_bytes();
            }
        }
        // By way of an f32 rounded to odd, so that no number is rounded twice.
        Dtype::F16 | Dtype::BF16 => {
            to.resize(2 * count, 0);
            let mut odd = [0.0_f32; 256];
            let mut bits = [0_u16; 256];
            for (from, to) in from.chunks(256).zip(to.chunks_mut(512)) {
                for (odd, &value) in odd.iter_mut().zip(from) {
                    *odd = round_to_odd(value);
                }
                let bits = &mut bits[..from.len()];
                if dtype == Dtype::F16 {
                    bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&odd[..from.len()]);
                } else {
                    bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(&odd[..from.len()]);
                }
                to.copy_from_slice(bytemuck::cast_slice(bits));
            }
        }
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => {
            // 16 bits, rounded to odd, still tell which 8-bit float is nearest: a table has the answer for each.
            static CODES: [OnceLock<Vec<u8>>; 2] = [OnceLock::new(), OnceLock::new()];
            let eight = if dtype == Dtype::F8_E4M3 { &E4M3 } else { &E5M2 };
            let codes = CODES[usize::from(dtype == Dtype::F8_E5M2)].get_or_init(|| {
                (0..=u16::MAX).map(|top| eight.encode(f64::from(f32::from_bits(u32::from(top) << 16)))).collect()
            });
            to.extend(from.iter().map(|&value| {
                let bits = round_to_odd(value).to_bits();
                let top = bits >> 16 | u32::from(bits & 0xffff != 0);
                codes[top as usize]
            }));
        }
        other => unreachable!("{other:?} is not averaged"),
    }
}

/// The first element of rounded bytes that is not finite.
pub(crate) fn first_overflow(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    /// (The first look takes all of them, many at a time; a second one finds the place.)
    fn first<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
        let elements = bytes.as_chunks().0;
        let any = elements.iter().fold(false, |any, &element| any | bad(element));
        any.then(|| elements.iter().position(|&element| bad(element)))?
    }
    match dtype {
        Dtype::F64 => first(bytes, |bits| !f64::from_le_bytes(bits).is_finite()),
        Dtype::F32 => first(bytes, |bits| !f32::from_le_bytes(bits).is_finite()),
        Dtype::F16 => first(bytes, |bits| u16::from_le_bytes(bits) & 0x7c00 == 0x7c00),
        Dtype::BF16 => first(bytes, |bits| u16::from_le_bytes(bits) & 0x7f80 == 0x7f80),
        Dtype::F8_E4M3 => first(bytes, |[bits]| bits & 0x7f == 0x7f),
        Dtype::F8_E5M2 => first(bytes, |[bits]| bits & 0x7c == 0x7c),
        other => unreachable!("{other:?} is not averaged"),
    }
}

/// The f32 toward zero, with its last bit set when anything was cut off: rounding it again to fewer bits then gives
/// what rounding the f64 itself would.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let away = u32::from(back.abs() > value.abs());
    let inexact = u32::from(back != value && !value.is_nan());
    f32::from_bits((bits - away) | inexact)
}

/// An 8-bit float: all its values, from which it is also encoded.
struct Eight {
    values: [f32; 256],
    /// Bits of the largest finite number.
    largest: usize,
    /// What lies beyond it: infinity, or NaN in a type without.
    beyond: u8,
}

static E4M3: Eight = Eight::new(4, 3);
static E5M2: Eight = Eight::new(5, 2);

impl Eight {
    const fn new(exponent_bits: u32, fraction_bits: u32) -> Self {
        let bias = (1 << (exponent_bits - 1)) - 1;
        let mut values = [0.0_f32; 256];
        let mut code = 0;
        // E4M3 gives the patterns of its top exponent to numbers, all but one; E5M2 is as IEEE has it.
        let (largest, beyond) = if exponent_bits == 4 { (0x7e, 0x7f) } else { (0x7b, 0x7c) };
        while code < 256 {
            let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
            let exponent = (code as u32 & 0x7f) >> fraction_bits;
            let fraction = code as u32 & ((1 << fraction_bits) - 1);
            let (significand, power) = if exponent == 0 {
                (fraction, 1 - bias - fraction_bits as i32)
            } else {
                (fraction | 1 << fraction_bits, exponent as i32 - bias - fraction_bits as i32)
            };
            let scale = f32::from_bits(((power + 127) as u32) << 23);
            values[code] = if code & 0x7f <= largest {
                sign * significand as f32 * scale
            } else if exponent_bits == 5 && fraction == 0 {
                sign * f32::INFINITY
            } else {
                f32::NAN
            };
            code += 1;
        }
        Self { values, largest, beyond }
    }

    fn encode(&self, value: f64) -> u8 {
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let size = value.abs();
        if size.is_nan() {
            return 0x7f | sign;
        }
        let number = |code: usize| f64::from(self.values[code]);
        // Codes of positive numbers rise with the numbers. Ties go to the even code.
        let above = self.values[..=self.largest].partition_point(|&known| f64::from(known) < size);
        let code = if above > self.largest {
            // One more number would have stood half a step on; from there (inclusive: its code is even) it is beyond.
            let half_step = 0.5 * (number(self.largest) - number(self.largest - 1));
            let limit = number(self.largest) + half_step;
            // E4M3's largest has an even code, so a tie falls back to it; E5M2's is odd, so a tie overflows.
            if size < limit || (size == limit && self.largest.is_multiple_of(2)) {
                self.largest
            } else {
                return self.beyond | sign;
            }
        } else if above == 0 {
            0
        } else {
            let (low, high) = (size - number(above - 1), number(above) - size);
            if low < high || (low == high && above % 2 == 1) { above - 1 } else { above }
        };
        code as u8 | sign
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn eight_bit_floats_round_trip_and_round_to_even() {
        for eight in [&E4M3, &E5M2] {
            for code in 0..=255_u8 {
                let value = eight.values[code as usize];
                if value.is_finite() {
                    assert_eq!(eight.encode(f64::from(value)), code, "{value}");
                }
            }
        }
        assert_eq!(E4M3.values[0x7e], 448.0);
        assert_eq!(E5M2.values[0x7b], 57344.0);
        assert_eq!((E4M3.encode(464.0), E4M3.encode(464.1), E4M3.encode(-1e9)), (0x7e, 0x7f, 0xff));
        assert_eq!((E5M2.encode(61439.9), E5M2.encode(61440.0)), (0x7b, 0x7c));
        // Halfway between 1 and 1.125: to the even 1.
        assert_eq!(E4M3.encode(1.0625), E4M3.encode(1.0));
        assert_eq!(E4M3.encode(1.0626), E4M3.encode(1.125));
        assert_eq!(E4M3.encode(1e-9), 0);
        // The table answers as the search does, near every tie.
        for (dtype, eight) in [(Dtype::F8_E4M3, &E4M3), (Dtype::F8_E5M2, &E5M2)] {
            let near = (0..eight.largest).flat_map(|code| {
                let middle = 0.5 * (f64::from(eight.values[code]) + f64::from(eight.values[code + 1]));
                [middle, middle.next_up(), middle.next_down(), -middle, -middle.next_up(), 1.01 * middle, 1e9 * middle]
            });
            let values: Vec<f64> = near.collect();
            let mut bytes = Vec::new();
            narrow(dtype, &values, &mut bytes);
            for (value, code) in values.iter().zip(bytes) {
                assert_eq!(code, eight.encode(*value), "{dtype:?} {value}");
            }
        }
    }

    #[test]
    fn sixteen_bit_floats_are_rounded_once() {
        // Just above halfway between two f16: rounding to f32 first would lose the bit that decides.
        let step = 2.0_f64.powi(-10);
        let value = 1.0 + 0.5 * step + 2.0_f64.powi(-40);
        let mut bytes = Vec::new();
        narrow(Dtype::F16, &[value, -value, 65519.9, 65520.0, 2.0_f64.powi(-25), 0.1], &mut bytes);
        let bits: Vec<u16> = bytes.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let expected = [1.0 + step, -1.0 - step].map(|value| f16::from_f64(value).to_bits());
        assert_eq!(bits[..2], expected);
        assert_eq!((f16::from_bits(bits[2]), f16::from_bits(bits[3])), (f16::MAX, f16::INFINITY));
        assert_eq!((bits[4], f16::from_bits(bits[5])), (0, f16::from_f64(0.1)));
        narrow(Dtype::BF16, &[1.0 + 2.0_f64.powi(-8) + 2.0_f64.powi(-50)], &mut bytes);
        assert_eq!(bytes, bf16::from_f64(1.0 + 2.0_f64.powi(-7)).to_le_bytes());
    }

    #[test]
    fn every_narrow_pattern_survives() {
        for dtype in [Dtype::F16, Dtype::BF16] {
            let codes: Vec<u16> = (0..=u16::MAX).collect();
            let mut wide = vec![0.0; codes.len()];
            widen(dtype, bytemuck::cast_slice(&codes), &mut wide);
            let values: Vec<f64> = wide.iter().copied().map(f64::from).collect();
            let mut back = Vec::new();
            narrow(dtype, &values, &mut back);
            for (code, (value, back)) in codes.iter().zip(values.iter().zip(back.chunks(2))) {
                if !value.is_nan() {
                    assert_eq!(back, code.to_le_bytes(), "{dtype:?} {value}");
                }
            }
        }
    }
}
