//! The instruction sets of this machine, detected once, at run time. Knows no kernel.

use std::sync::{LazyLock, OnceLock};

/// The instruction set of a kernel; each level includes those before it, but for AVX-VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Isa {
    /// Plain Rust, for the baseline of the target.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with the dot products of bytes of VNNI.
    AvxVnni,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512,
    /// AVX-512 with dot products of bfloat16.
    Avx512Bf16,
    /// AMX tiles, with products of int8 and of bfloat16.
    Amx,
}

const ALL: [Isa; 6] = [Isa::Portable, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];
static USED: OnceLock<Isa> = OnceLock::new();

impl Isa {
    /// The level of this process: the chosen one, else the fastest of this machine.
    pub(crate) fn used() -> Self {
        *USED.get_or_init(|| Self::available().filter(|isa| isa.is_worthwhile()).last().unwrap_or(Self::Portable))
    }

    /// Use another level in this process.
    ///
    /// # Errors
    ///
    /// The machine lacks it, or the process has computed with another: answers must not change in between.
    pub(crate) fn choose(name: &str) -> Result<(), String> {
        let Some(level) = Self::available().find(|isa| isa.name() == name) else {
            let available: Vec<_> = Self::available().map(Self::name).collect();
            return Err(format!("this processor lacks {name}: choose from {}", available.join(", ")));
        };
        let used = *USED.get_or_init(|| level);
        if used == level {
            Ok(())
        } else {
            Err(format!("this process uses {} already: choose before anything is computed", used.name()))
        }
    }

    /// Every level of this machine, ascending.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The level's name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx_vnni",
            Self::Avx512 => "avx512_vnni",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Amx => "amx",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            // Tests compute it in AVX-512's encoding: see `linear/dots/avx2.rs`.
            Self::AvxVnni if cfg!(test) => Self::Avx512.is_available(),
            Self::AvxVnni => Self::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            Self::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && Self::Avx512.is_available(),
            Self::Amx => Self::Avx512Bf16.is_available() && amx_is_permitted(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// Whether this level is faster than the one below. Intel's AVX-512 needs two cycles for a dot product of bfloat16,
    /// and one for the two equivalent multiplications in float32: 50 against 75 billion products a second and core of
    /// Sapphire Rapids.
    #[cfg(target_arch = "x86_64")]
    fn is_worthwhile(self) -> bool {
        self != Self::Avx512Bf16 || std::arch::x86_64::__cpuid(0).ebx != u32::from_le_bytes(*b"Genu")
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_worthwhile(self) -> bool {
        true
    }
}

/// Whether there are tiles, and Linux grants them to this process: programs must ask, as their state is large.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_is_permitted() -> bool {
    const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25; // of bfloat16, at all, of int8
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    static PERMITTED: LazyLock<bool> = LazyLock::new(|| {
        if std::arch::x86_64::__cpuid_count(7, 0).edx & TILES != TILES {
            return false;
        }
        let mut result = ARCH_PRCTL;
        // SAFETY: the call changes nothing but what the process may use; the kernel overwrites rcx and r11.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") TILE_DATA,
                out("rcx") _,
                out("r11") _,
                options(nostack)
            );
        }
        result == 0
    });
    *PERMITTED
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn amx_is_permitted() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_used_level_is_the_last_of_the_available_ones_that_are_worth_their_while() {
        let available: Vec<_> = Isa::available().collect();
        assert_eq!(available[0], Isa::Portable);
        assert_eq!(available.iter().rfind(|isa| isa.is_worthwhile()), Some(&Isa::used()));
        assert!(available.is_sorted());
    }
}
