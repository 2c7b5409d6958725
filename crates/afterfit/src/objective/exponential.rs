//! eˣ and ln x as straight lines of arithmetic: loops over them become wide instructions wherever [`pulp`] finds those, and
//! the same bits come out on every machine (no fused multiply-adds, no calls).

use super::Element;

impl Element for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }

    /// Within 2 units in the last place; 0 below e⁻⁸⁷, e⁸⁸ above it.
    #[inline(always)]
    fn exponential(self) -> Self {
        // 1.5·2²³: adding it rounds to a whole number, which is then in the low bits.
        const ROUND: f32 = 12_582_912.0;
        const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        let x = if self > 88.0 { 88.0 } else { self };
        let tiny = x < -87.0;
        let x = if tiny { -87.0 } else { x };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = x - n * LN2[0] - n * LN2[1];
        let mut p = 1.0 / 5040.0;
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = p * r + c;
        }
        let e = p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
        if tiny { 0.0 } else { e }
    }
}

impl Element for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }

    /// Within 2 units in the last place; 0 below e⁻⁷⁰⁸, e⁷⁰⁹ above it.
    #[inline(always)]
    fn exponential(self) -> Self {
        const ROUND: f64 = 6_755_399_441_055_744.0;
        const LN2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
        let x = if self > 709.0 { 709.0 } else { self };
        let tiny = x < -708.0;
        let x = if tiny { -708.0 } else { x };
        let shifted = x * std::f64::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = x - n * LN2[0] - n * LN2[1];
        let mut p = 1.0 / 6_227_020_800.0;
        for c in [
            1.0 / 479_001_600.0,
            1.0 / 39_916_800.0,
            1.0 / 3_628_800.0,
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ] {
            p = p * r + c;
        }
        let e = p * f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0_f64.to_bits()));
        if tiny { 0.0 } else { e }
    }
}

const TWO_52: f64 = 4_503_599_627_370_496.0;

/// ln x of a positive, normal number, within 2 units in the last place of max(1, |ln x|).
#[inline(always)]
pub(super) fn logarithm(x: f64) -> f64 {
    let bits = x.to_bits();
    // x = 2ⁿ m with m from √½ to √2.
    let above = (bits & 0x000f_ffff_ffff_ffff) >= 0x0006_a09e_667f_3bcd;
    // The exponent in the low bits of 2⁵² is 2⁵² more than itself. (Integers become floats one by one on most machines.)
    let n = f64::from_bits((bits >> 52) | 0x4330_0000_0000_0000) - TWO_52 - if above { 1022.0 } else { 1023.0 };
    let m = f64::from_bits(
        (bits & 0x000f_ffff_ffff_ffff) | if above { 0x3fe0_0000_0000_0000 } else { 0x3ff0_0000_0000_0000 },
    );
    // ln m = 2 artanh s = 2(s + s³/3 + s⁵/5 + …)
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut p = 1.0 / 21.0;
    for c in [1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 0.2, 1.0 / 3.0, 1.0] {
        p = p * square + c;
    }
    // (Not a number stays not a number.)
    2.0 * s * p + n * std::f64::consts::LN_2 + x * 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_to_the_standard_library() {
        for i in -200_000..=200_000 {
            let x = f64::from(i) * 3.5e-3;
            let (found, expected) = (x.exponential(), x.exp());
            assert!((found - expected).abs() <= 4.0 * f64::EPSILON * expected, "e^{x}: {found} {expected}");
            let x = f64::from(i) as f32 * 4.3e-4;
            let (found, expected) = (x.exponential(), x.exp());
            assert!((found - expected).abs() <= 4.0 * f32::EPSILON * expected, "e^{x}: {found} {expected}");
        }
        for i in 1..100_000 {
            let x = 1.0 + f64::from(i) * f64::from(i) * 1e-6;
            for x in [x, 1.0 / x, x * 1e200] {
                assert!((logarithm(x) - x.ln()).abs() <= 4.0 * f64::EPSILON * x.ln().abs().max(1.0), "ln {x}");
            }
        }
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(f64::NEG_INFINITY.exponential(), 0.0);
        assert_eq!((-1000.0_f32).exponential(), 0.0);
        assert_eq!(0.0_f64.exponential(), 1.0);
        assert!(f64::INFINITY.exponential().is_finite() && f64::NAN.exponential().is_nan());
        assert!(f32::NAN.exponential().is_nan());
    }
}
