//! Settings that change while requests run.

use pyllm_scheduler::{Config, Pause};

use super::World;
use crate::calls::Change;

impl World {
    pub(super) fn reconfigure(&mut self, change: Change) {
        let mut config = self.config.clone();
        change.apply(&mut config);
        let other_weights = config.weights_version != self.config.weights_version;
        let other_policy = config.policy != self.config.policy;
        let before = self.scheduler.stats();
        assert_eq!(self.scheduler.reconfigure(config.clone()), Ok(()));
        assert_eq!(self.scheduler.config(), &config);
        let stats = self.scheduler.stats();
        if other_weights {
            let known = stats.num_cached_blocks + stats.num_cached_host_blocks;
            assert_eq!((known, stats.num_running), (0, 0), "what other weights computed is of no use");
            self.saw("other weights while requests run", u64::from(before.num_running > 0));
        }
        self.saw("other policies while requests wait", u64::from(other_policy && before.num_waiting > 0));
        self.config = config;
    }

    pub(super) fn pause(&mut self, pause: Pause) {
        let config = Config { pause, ..self.config.clone() };
        assert_eq!(self.scheduler.reconfigure(config.clone()), Ok(()));
        self.saw("pauses of what runs", u64::from(pause == Pause::All && self.scheduler.stats().num_running > 0));
        self.config = config;
    }
}
