//! The choice between cores by the cost of a request on each. Knows neither prompts nor caches.
//!
//! **The imbalance is bounded.** Let `before_c` be the seconds that the request waits for other work on core c, and
//! `own_c` the seconds from then until its own work is done. Every other candidate j has `before_j + own_j` at least
//! `before_c + own_c - tolerance`, as no core is chosen whose cost is more than the tolerance above the least. So
//! `before_c <= before_j + own_j + tolerance`: as in list scheduling (Graham, "Bounds on Multiprocessing Timing
//! Anomalies", 1969), the work on two cores differs by at most that of the last request placed, which the other core
//! would have had to do in full, and the tolerance. Neither prefixes nor sessions can exceed this bound.

/// Two costs are taken as equal if they differ by less than this share of the least: output lengths are not known more
/// precisely. With long queues this keeps equal prefixes together, which saves repeated prefills.
const TOLERANCE: f64 = 0.1;

/// A core for the request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Its id outside this crate.
    pub(crate) core: u32,
    pub(crate) bit: usize,
    /// Tokens of the prompt in its prefix cache.
    pub(crate) num_cached: u32,
    pub(crate) num_requests: u64,
    /// Seconds that the request waits for other work, then the seconds of its own.
    pub(crate) before: f64,
    pub(crate) own: f64,
    /// The request's work and its tenant's weight, to be added to the core.
    pub(crate) own_work: f64,
    pub(crate) weight: f64,
}

impl Candidate {
    fn cost(&self) -> f64 {
        self.before + self.own
    }
}

/// Seconds that the chosen cost may be above `least`: one step, since requests are only served between steps, or the
/// precision of the estimates.
pub(crate) fn tolerance(least: f64, step_seconds: f64) -> f64 {
    step_seconds.max(TOLERANCE * least)
}

/// The candidate with the least cost. Within the tolerance, the longest cached prefix wins, then the core that the
/// session hashes to, or without a session the fewest requests. None only without candidates.
pub(crate) fn choose(candidates: &[Candidate], step_seconds: f64, session: &str) -> Option<Candidate> {
    let least = candidates.iter().map(Candidate::cost).min_by(f64::total_cmp)?;
    let most = least + tolerance(least, step_seconds);
    let equal = || candidates.iter().filter(|candidate| candidate.cost() <= most);
    let num_cached = equal().map(|candidate| candidate.num_cached).max()?;
    let longest = equal().filter(|candidate| candidate.num_cached == num_cached);
    let chosen = if session.is_empty() {
        longest.min_by_key(|candidate| (candidate.num_requests, candidate.core))
    } else {
        let session = first_word(session);
        longest.max_by_key(|candidate| (mixed(session ^ mixed(candidate.core.into())), candidate.core))
    };
    chosen.copied()
}

fn first_word(session: &str) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&blake3::hash(session.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(word)
}

/// The finaliser of `SplitMix64` (Steele, Lea and Flood, 2014).
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(core: u32, before: f64, own: f64, num_cached: u32) -> Candidate {
        Candidate { core, bit: core as usize, num_cached, num_requests: 0, before, own, own_work: 0.0, weight: 1.0 }
    }

    fn chosen(candidates: &[Candidate], step_seconds: f64, session: &str) -> Option<u32> {
        choose(candidates, step_seconds, session).map(|candidate| candidate.core)
    }

    #[test]
    fn a_prefix_counts_for_what_it_saves_and_among_equals() {
        let (idle, cached) = (candidate(0, 0.0, 3.0, 0), candidate(1, 1.0, 1.0, 64));
        assert_eq!(chosen(&[idle, cached], 0.0, ""), Some(1));
        let busy = candidate(1, 2.5, 1.0, 64);
        assert_eq!(chosen(&[idle, busy], 0.0, ""), Some(0));
        assert_eq!(chosen(&[idle, busy], 0.5, ""), Some(1));
        assert_eq!(chosen(&[], 0.5, ""), None);
    }

    #[test]
    fn a_session_keeps_its_core_while_it_is_there() {
        let cores: Vec<_> = (0..5).map(|core| candidate(core, 0.0, 1.0, 0)).collect();
        let mut counts = [0; 5];
        for session in (0..1000).map(|session| session.to_string()) {
            let core = chosen(&cores, 0.0, &session).unwrap_or_default();
            counts[core as usize] += 1;
            let others: Vec<_> = cores.iter().copied().filter(|other| other.core != (core + 1) % 5).collect();
            assert_eq!(chosen(&others, 0.0, &session), Some(core));
        }
        assert!(counts.iter().all(|count| (150..250).contains(count)), "{counts:?}");
    }

    #[test]
    fn without_a_session_the_fewest_requests_and_then_the_lowest_number_decide() {
        let [one, two] = [0, 1].map(|core| candidate(core, 0.0, 1.0, 0));
        assert_eq!(chosen(&[two, one], 0.0, ""), Some(0));
        assert_eq!(chosen(&[Candidate { num_requests: 1, ..one }, two], 0.0, ""), Some(1));
    }
}
