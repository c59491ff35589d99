//! How long requests waited and how long their prompts took, as columns beside the rows with which their outputs begin.
//! Reads no clock, and knows neither requests nor samples.

/// Seconds of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartTime {
    /// From its arrival to the first step that computed any of it.
    pub queue: f32,
    /// From there to its first output.
    pub prefill: f32,
}

/// `queue[i]` and `prefill[i]` are those of the row `rows[i]`; rows that begin no output take no place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartTimes {
    /// In ascending order.
    pub rows: Vec<i32>,
    /// `StartTime::queue` of each.
    pub queue: Vec<f32>,
    /// `StartTime::prefill` of each.
    pub prefill: Vec<f32>,
}

impl StartTimes {
    /// Of a row after all those that have one.
    pub(crate) fn push(&mut self, row: usize, time: StartTime) {
        self.rows.push(row as i32);
        self.queue.push(time.queue);
        self.prefill.push(time.prefill);
    }

    /// That of a row, where its output begins there.
    pub fn of(&self, row: usize) -> Option<StartTime> {
        let index = self.rows.binary_search(&(row as i32)).ok()?;
        Some(StartTime { queue: self.queue[index], prefill: self.prefill[index] })
    }

    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.queue.clear();
        self.prefill.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_begin_an_output_have_times() {
        let mut times = StartTimes::default();
        let (early, late) = (StartTime { queue: 0.5, prefill: 2.0 }, StartTime { queue: 0.0, prefill: 0.25 });
        times.push(2, early);
        times.push(5, late);
        let found: Vec<_> = (0..7).map(|row| times.of(row)).collect();
        assert_eq!(found, [None, None, Some(early), None, None, Some(late), None]);
        times.clear();
        assert_eq!(times, StartTimes::default());
    }
}
