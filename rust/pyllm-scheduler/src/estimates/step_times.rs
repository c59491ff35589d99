//! Measured times of steps in seconds, as moving averages, so that a recording gives the same ones.

/// Weight of the newest measurement.
const NEWEST: f64 = 0.125;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepTimes {
    decode_step: Option<f64>,
    prefill_token: Option<f64>,
}

impl StepTimes {
    /// Adds a step that took `seconds`, with `num_prefill_tokens` beside its decodes.
    pub(crate) fn measure(&mut self, num_prefill_tokens: u32, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        if num_prefill_tokens == 0 {
            average(&mut self.decode_step, seconds);
        } else {
            let prefill = (seconds - self.decode_step.unwrap_or(0.0)).max(0.0);
            average(&mut self.prefill_token, prefill / f64::from(num_prefill_tokens));
        }
    }

    /// Expected seconds to compute tokens; 0 before any measurement.
    pub(crate) fn prefill_seconds(&self, num_tokens: u32) -> f64 {
        self.prefill_token.unwrap_or(0.0) * f64::from(num_tokens)
    }

    /// Expected seconds of a step with these prefill tokens; none before a similar step was measured.
    pub(crate) fn step_seconds(&self, num_prefill_tokens: u32) -> Option<f64> {
        match num_prefill_tokens {
            0 => self.decode_step,
            _ => {
                self.prefill_token.map(|token| self.decode_step.unwrap_or(0.0) + token * f64::from(num_prefill_tokens))
            }
        }
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.prefill_token.is_some()
    }

    /// Prefill tokens that fit into a step of `seconds`; unlimited before any measurement.
    pub(crate) fn prefill_tokens_within(&self, seconds: f64) -> u32 {
        let Some(prefill_token) = self.prefill_token.filter(|&one| one > 0.0) else { return u32::MAX };
        ((seconds - self.decode_step.unwrap_or(0.0)).max(0.0) / prefill_token) as u32
    }
}

fn average(of: &mut Option<f64>, newest: f64) {
    *of = Some(of.map_or(newest, |average| average + NEWEST * (newest - average)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefills_get_what_decodes_leave() {
        let mut times = StepTimes::default();
        assert_eq!(times.prefill_tokens_within(1.0), u32::MAX);
        times.measure(0, 0.25);
        times.measure(100, 0.75); // 5 ms a token
        assert_eq!(times.prefill_tokens_within(0.5), 50);
        assert_eq!(times.prefill_tokens_within(0.1), 0);
        assert!((times.prefill_seconds(10) - 0.05).abs() < 1e-12);
    }

    #[test]
    fn a_step_is_expected_to_take_what_those_like_it_took() {
        let mut times = StepTimes::default();
        assert_eq!((times.step_seconds(0), times.step_seconds(10)), (None, None));
        times.measure(100, 0.5);
        assert_eq!((times.step_seconds(0), times.step_seconds(10)), (None, Some(0.05)));
        times.measure(0, 0.25);
        assert_eq!((times.step_seconds(0), times.step_seconds(10)), (Some(0.25), Some(0.3)));
    }

    #[test]
    fn what_is_no_time_is_not_measured() {
        let mut times = StepTimes::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            times.measure(1, seconds);
        }
        assert!(!times.is_measured());
    }
}
