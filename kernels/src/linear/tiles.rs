//! AMX: eight registers of 16 rows of 64 bytes, two of which are multiplied into a third. Knows no kernel.
//!
//! Rust has no stable intrinsics for tiles. The compiler never uses them, so each keeps what it holds from one `asm!` to
//! the next. Kernels here use 0 to 3 for products, 4 and 5 for rows, 6 and 7 for columns.

use std::arch::asm;

/// What `ldtilecfg` reads: the sizes of the eight tiles.
#[repr(C, align(64))]
pub(super) struct Configuration {
    palette: u8,
    reserved: [u8; 15],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// For rows of so many bytes, of which two tiles have so many.
    pub(super) const fn new(depth: usize, rows: [usize; 2]) -> Self {
        let (x_bytes, y_rows, [first, second]) = (depth as u16, (depth / 4) as u8, [rows[0] as u8, rows[1] as u8]);
        Self {
            palette: 1,
            reserved: [0; 15],
            row_bytes: [64, 64, 64, 64, x_bytes, x_bytes, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [first, first, second, second, first, second, y_rows, y_rows, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// Tiles are this thread's until this is dropped; then their state is no longer saved when threads change.
pub(super) struct Tiles;

impl Tiles {
    /// # Safety
    ///
    /// This process may use AMX.
    pub(super) unsafe fn configure(configuration: &Configuration) -> Self {
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

/// The tile becomes zeros.
macro_rules! zero {
    ($tile:literal) => {
        asm!(concat!("tilezero tmm", $tile), options(nostack, nomem, preserves_flags))
    };
}

/// The tile becomes what is at `$from`, its rows `$stride` bytes apart.
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

/// Add to the products those of two tiles, by an instruction that says which of them has signs.
macro_rules! add_dots {
    ($instruction:literal, $products:literal, $rows:literal, $columns:literal) => {
        asm!(
            concat!($instruction, " tmm", $products, ", tmm", $rows, ", tmm", $columns),
            options(nostack, nomem, preserves_flags)
        )
    };
}

pub(super) use {add_dots, load, store, zero};
