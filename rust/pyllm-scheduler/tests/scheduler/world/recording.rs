//! Recordings replay to the same decisions; damaged or truncated ones are refused, or do no harm.

use pyllm_scheduler::replay;

use super::World;

impl World {
    /// Takes a part of the recording.
    pub(super) fn take_recording(&mut self) {
        let part = self.scheduler.take_recording();
        match &mut self.recording {
            Some(recording) => recording.extend_from_slice(&part),
            None => assert!(part.is_empty()),
        }
    }

    pub(super) fn replay(&mut self, (place, change): (usize, u8)) {
        self.take_recording();
        let Some(recording) = &self.recording else { return };
        let replayed = replay(recording).expect("it was recorded by this version");
        let stats = self.scheduler.stats();
        assert_eq!(Some(replayed.hash), self.scheduler.decisions_hash());
        assert_eq!((replayed.num_steps, replayed.stats), (stats.num_steps, stats));
        assert!(!replayed.is_truncated);

        let place = place % recording.len();
        if let Ok(cut) = replay(&recording[..place]) {
            assert!(cut.num_entries <= replayed.num_entries && cut.num_steps <= replayed.num_steps);
        }
        let mut damaged = recording.clone();
        damaged[place] ^= change;
        let is_refused = replay(&damaged).is_err();
        self.saw("damaged recordings that are refused", u64::from(is_refused));
        self.saw("replays", 1);
    }
}
