//! Which instructions this machine has, asked once, at run time. Knows no kernel.

use std::sync::LazyLock;

/// What a kernel may be written in; each level has all of the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// Whatever the compiler makes of plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512,
    /// AVX-512 with dot products of bfloat16.
    Avx512Bf16,
}

const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];
static BEST: LazyLock<Isa> = LazyLock::new(|| Isa::available().last().unwrap_or(Isa::Portable));

impl Isa {
    /// The highest level of this machine.
    pub(crate) fn best() -> Self {
        *BEST
    }

    /// Every level of this machine, ascending.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        ALL.into_iter().take_while(|isa| isa.is_available())
    }

    /// The level's name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512_vnni",
            Self::Avx512Bf16 => "avx512_bf16",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx512Bf16 => is_x86_feature_detected!("avx512bf16"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_is_the_last_of_the_available_ones() {
        let available: Vec<_> = Isa::available().collect();
        assert_eq!(available[0], Isa::Portable);
        assert_eq!(available.last(), Some(&Isa::best()));
        assert!(available.is_sorted());
    }
}
