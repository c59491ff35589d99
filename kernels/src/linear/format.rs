//! How the numbers of a matrix are written down. Knows no kernel.

/// What weights are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Numbers of the same kind as the input's.
    Float,
    /// -127 to 127, with one float32 scale an output: made here.
    Int8(Int8Source),
    Ggml(GgmlType),
}

/// What int8 weights are made of. Those of GGUF's 4 bits stay in so many, and become 8 when they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Source {
    Elements,
    Q4_0,
    Q4_1,
}

impl Int8Source {
    pub(crate) fn blocks(self) -> Option<GgmlType> {
        match self {
            Self::Elements => None,
            Self::Q4_0 => Some(GgmlType::Q4_0),
            Self::Q4_1 => Some(GgmlType::Q4_1),
        }
    }
}

/// GGUF's integers, in groups of 32 features of one output, each to be multiplied with the scale of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgmlType {
    /// -128 to 127, with a float16 scale a group.
    Q8_0,
    /// -8 to 7, with a float16 scale a group.
    Q4_0,
    /// 0 to 15, with a float16 scale and a float16 minimum a group, which is added.
    Q4_1,
}

/// Features of a group.
pub(crate) const GROUP: usize = 32;

impl GgmlType {
    /// What is added to an integer for it to be stored without a sign.
    pub(crate) fn offset(self) -> i32 {
        match self {
            Self::Q8_0 => 128,
            Self::Q4_0 => 8,
            Self::Q4_1 => 0,
        }
    }

    pub(crate) fn bits(self) -> usize {
        match self {
            Self::Q8_0 => 8,
            Self::Q4_0 | Self::Q4_1 => 4,
        }
    }

    /// Bytes of a group's scale, and of its minimum.
    pub(crate) fn scale_bytes(self) -> (usize, usize) {
        match self {
            Self::Q8_0 | Self::Q4_0 => (2, 0),
            Self::Q4_1 => (2, 2),
        }
    }

    /// Bytes of a group as it lies in a GGUF: the scale, the minimum, the integers.
    pub(crate) fn block_bytes(self) -> usize {
        let (scale, min) = self.scale_bytes();
        scale + min + GROUP * self.bits() / 8
    }
}
