//! Embeddings as columns: those of a step from a worker, and those that wait for a client. Knows neither sequences nor
//! the meaning of the numbers.

/// Row i has `values[starts[i]..starts[i + 1]]`, which is empty without an embedding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// Start of each row's vector, then the end of the last; empty if no row has an embedding.
    pub starts: Vec<i32>,
    /// The rows' vectors, one after another.
    pub values: Vec<f32>,
}

impl Embeddings {
    /// Errors: the problem, for a step of `num_rows` rows.
    pub(crate) fn check(&self, num_rows: usize) -> Result<(), String> {
        let (starts, end) = (&self.starts, self.values.len());
        if starts.len() != num_rows + 1 {
            return Err(format!("the starts of its embeddings are {}, not {}", starts.len(), num_rows + 1));
        }
        let is_sound = starts[0] == 0 && starts.is_sorted() && starts[num_rows] as usize == end;
        if is_sound { Ok(()) } else { Err(format!("the starts of its embeddings do not go from 0 up to {end}")) }
    }

    /// A row's vector.
    pub fn row(&self, row: usize) -> &[f32] {
        match self.starts.get(row..row + 2) {
            Some(ends) => &self.values[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    /// Adds the vector of the next row, after `num_before` others.
    pub(crate) fn push(&mut self, num_before: usize, vector: &[f32]) {
        if !vector.is_empty() {
            self.starts.resize(num_before + 1, self.values.len() as i32);
            self.values.extend_from_slice(vector);
            self.starts.push(self.values.len() as i32);
        }
    }

    /// Adds empty vectors for the rows since the last `push`, unless no row has one.
    pub(crate) fn complete(&mut self, num_rows: usize) {
        if !self.starts.is_empty() {
            self.starts.resize(num_rows + 1, self.values.len() as i32);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.starts.clear();
        self.values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_vector_take_no_place() {
        let mut embeddings = Embeddings::default();
        embeddings.complete(3);
        assert_eq!(embeddings, Embeddings::default());
        embeddings.push(2, &[1.0, 2.0]);
        embeddings.push(3, &[]);
        embeddings.push(4, &[3.0]);
        embeddings.complete(6);
        assert_eq!(embeddings.starts, [0, 0, 0, 2, 2, 3, 3]);
        let rows: Vec<_> = (0..7).map(|row| embeddings.row(row)).collect();
        assert_eq!(rows, [&[][..], &[], &[1.0, 2.0], &[], &[3.0], &[], &[]]);
        assert_eq!(embeddings.check(6), Ok(()));
    }

    #[test]
    fn what_does_not_fit_its_rows_is_named() {
        for starts in [vec![], vec![0, 2], vec![0, 1, 3], vec![1, 1, 2], vec![0, 3, 2], vec![0, -1, 2]] {
            assert!(Embeddings { starts, values: vec![0.0; 2] }.check(2).is_err());
        }
    }
}
