//! Products with packed matrices, and lookups in them, as ops of a step's tokens.

use crate::isa::Isa;
use crate::linear::{Lookup, Product};
use crate::op::{Extent, Op, OutOfRange, RowWriter};
use crate::threads::{Memory, Pool};

#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLinear {
    pub(crate) tokens: usize,
    pub(crate) product: Product,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedRows {
    pub(crate) tokens: usize,
    pub(crate) lookup: Lookup,
}

impl Op for PackedLinear {
    fn name(&self) -> &'static str {
        "packed_linear"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, isa: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.product.run(extent.tokens, isa, pool) };
        Ok(())
    }

    fn takes_rows_of(&self, writer: &dyn RowWriter) -> bool {
        self.product.takes_rows_of(writer)
    }

    unsafe fn run_after(
        &self,
        writer: &dyn RowWriter,
        extent: Extent,
        isa: Isa,
        pool: &mut Pool,
    ) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.product.run_after(Some(writer), extent.tokens, isa, pool) };
        Ok(())
    }

    fn weights(&self) -> Option<Memory> {
        Some(self.product.weights())
    }
}

impl Op for PackedRows {
    fn name(&self) -> &'static str {
        "packed_rows"
    }

    fn capacity(&self) -> Extent {
        Extent { tokens: self.tokens, rows: usize::MAX }
    }

    unsafe fn run(&self, extent: Extent, _: Isa, pool: &mut Pool) -> Result<(), OutOfRange> {
        // SAFETY: as the caller promises.
        unsafe { self.lookup.run(extent.tokens, pool) }
            .map_err(|row| OutOfRange::Row { number: row, num_rows: self.lookup.linear.out_features })
    }
}
