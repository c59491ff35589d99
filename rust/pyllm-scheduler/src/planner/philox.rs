//! Randomness as a counter: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//! Holds no state, so a token's number does not depend on earlier draws.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
const LARGEST_BELOW_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// The uniform number in (0, 1) that chooses the token at `position` of the output of sample `sample`.
///
/// It is ((x0 >> 8) + 0.5) / 2^24 of Philox with the key `seed` (low half first) and the counter (position, sample, 0,
/// 0), rounded to float32. The one value that would round to 1 is the largest float32 below it.
pub fn uniform(seed: u64, position: u32, sample: u32) -> f32 {
    let key = [seed as u32, (seed >> 32) as u32];
    let [word, ..] = philox4x32(key, [position, sample, 0, 0]);
    open_unit_interval(word)
}

fn open_unit_interval(word: u32) -> f32 {
    let value = (f64::from(word >> 8) + 0.5) / f64::from(1 << 24);
    (value as f32).min(LARGEST_BELOW_ONE)
}

fn philox4x32(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(KEY_INCREMENTS[0]), key[1].wrapping_add(KEY_INCREMENTS[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors that Random123 publishes for philox4x32 with 10 rounds.
    #[test]
    fn philox_gives_the_published_answers() {
        let zeros = philox4x32([0; 2], [0; 4]);
        assert_eq!(zeros, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox4x32([u32::MAX; 2], [u32::MAX; 4]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox4x32([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn uniforms_lie_strictly_between_zero_and_one() {
        for word in [0, 255, 256, 1 << 31, u32::MAX - 256, u32::MAX] {
            let value = open_unit_interval(word);
            assert!(value > 0.0 && value < 1.0, "{value} of {word}");
        }
    }

    #[test]
    fn seed_position_and_sample_each_change_the_uniform() {
        let base = uniform(1, 0, 0);
        for other in [uniform(2, 0, 0), uniform(1 << 32 | 1, 0, 0), uniform(1, 1, 0), uniform(1, 0, 1)] {
            assert!((base - other).abs() > 0.0);
        }
    }
}
