//! AMX: eight tile registers of 16 rows of 64 bytes, two of which are multiplied into a third. Knows no kernel.
//!
//! Rust has no stable intrinsics for tiles. The compiler never uses them, so each keeps its contents from one `asm!` to
//! the next.

use std::arch::asm;

/// The operand of `ldtilecfg`: the sizes of the eight tiles.
#[repr(C, align(64))]
pub(crate) struct Configuration {
    palette: u8,
    reserved: [u8; 15],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Tiles whose rows have `depth` bytes, with two numbers of rows: 0 to 3 are for products, 4 and 5 for rows, 6 and
    /// 7 for columns.
    pub(crate) const fn new(depth: usize, rows: [usize; 2]) -> Self {
        let (columns, [first, second]) = ([depth / 4, 64], rows);
        let products = [[first, 64], [second, 64]];
        let rows = [[first, depth], [second, depth]];
        Self::of([products[0], products[0], products[1], products[1], rows[0], rows[1], columns, columns])
    }

    /// Tiles with these numbers of rows, and of bytes in a row.
    pub(crate) const fn of(sizes: [[usize; 2]; 8]) -> Self {
        let mut configuration = Self { palette: 1, reserved: [0; 15], row_bytes: [0; 16], rows: [0; 16] };
        let mut tile = 0;
        while tile < sizes.len() {
            configuration.rows[tile] = sizes[tile][0] as u8;
            configuration.row_bytes[tile] = sizes[tile][1] as u16;
            tile += 1;
        }
        configuration
    }
}

/// The thread's configured tiles. After the drop, context switches no longer save their state.
pub(crate) struct Tiles;

impl Tiles {
    /// # Safety
    ///
    /// This process may use AMX.
    pub(crate) unsafe fn configure(configuration: &Configuration) -> Self {
        // SAFETY: as the caller promises; the configuration is a valid one.
        unsafe { asm!("ldtilecfg [{}]", in(reg) configuration, options(nostack, readonly, preserves_flags)) };
        Self
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: this was configured, so AMX is there.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Set the tile to zeros.
macro_rules! zero {
    ($tile:literal) => {
        asm!(concat!("tilezero tmm", $tile), options(nostack, nomem, preserves_flags))
    };
}

/// Load the tile from `$from`, its rows `$stride` bytes apart.
macro_rules! load {
    ($tile:literal, $from:expr, $stride:expr) => {
        asm!(
            concat!("tileloadd tmm", $tile, ", [{from} + {stride} * 1]"),
            from = in(reg) $from, stride = in(reg) $stride, options(nostack, readonly, preserves_flags)
        )
    };
}

/// Write the tile to `$to`, its rows `$stride` bytes apart.
macro_rules! store {
    ($tile:literal, $to:expr, $stride:expr) => {
        asm!(
            concat!("tilestored [{to} + {stride} * 1], tmm", $tile),
            to = in(reg) $to, stride = in(reg) $stride, options(nostack, preserves_flags)
        )
    };
}

/// Add the products of two tiles, by an instruction that fixes which of them is signed.
macro_rules! add_dots {
    ($instruction:literal, $products:literal, $rows:literal, $columns:literal) => {
        asm!(
            concat!($instruction, " tmm", $products, ", tmm", $rows, ", tmm", $columns),
            options(nostack, nomem, preserves_flags)
        )
    };
}

pub(crate) use {add_dots, load, store, zero};
