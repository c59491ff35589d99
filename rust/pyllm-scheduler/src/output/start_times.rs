//! Requests' times in the queue and in prefill, as columns beside the rows that begin their outputs. Reads no clock,
//! and knows neither requests nor samples.

/// Times of one request, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartTime {
    /// Time from its arrival to the first step that computed a part of it.
    pub queue: f32,
    /// Time from that step to its first output.
    pub prefill: f32,
}

/// `queue[i]` and `prefill[i]` belong to the row `rows[i]`; other rows have no entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartTimes {
    /// Row numbers, in ascending order.
    pub rows: Vec<i32>,
    /// `StartTime::queue` of each.
    pub queue: Vec<f32>,
    /// `StartTime::prefill` of each.
    pub prefill: Vec<f32>,
}

impl StartTimes {
    /// Adds the times of a row after all others.
    pub(crate) fn push(&mut self, row: usize, time: StartTime) {
        self.rows.push(row as i32);
        self.queue.push(time.queue);
        self.prefill.push(time.prefill);
    }

    /// The times of a row that begins an output.
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
