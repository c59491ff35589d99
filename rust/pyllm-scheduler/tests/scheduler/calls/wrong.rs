//! Calls that must be refused.

use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    AddTwice { pick: usize },
    AddInvalid { kind: usize },
    CommitUnknown,
    CommitOutOfOrder,
    CommitShape { kind: usize },
    TimeGoesBack,
    HoldTwice { pick: usize },
    ReleaseNotHeld { pick: usize },
    UnknownRequest { kind: usize },
    FixedSetting { kind: usize },
    BadSetting { kind: usize },
    BadToken { kind: usize },
    UnknownSample { pick: usize, kind: usize },
    UnknownLoad,
    WithoutPrefixCaching { pick: usize, kind: usize },
    RecordingLate,
}

pub fn wrong() -> impl Strategy<Value = Wrong> {
    let pick = any::<usize>;
    prop_oneof![
        pick().prop_map(|pick| Wrong::AddTwice { pick }),
        (0..23_usize).prop_map(|kind| Wrong::AddInvalid { kind }),
        Just(Wrong::CommitUnknown),
        Just(Wrong::CommitOutOfOrder),
        (0..13_usize).prop_map(|kind| Wrong::CommitShape { kind }),
        Just(Wrong::TimeGoesBack),
        pick().prop_map(|pick| Wrong::HoldTwice { pick }),
        pick().prop_map(|pick| Wrong::ReleaseNotHeld { pick }),
        (0..6_usize).prop_map(|kind| Wrong::UnknownRequest { kind }),
        (0..17_usize).prop_map(|kind| Wrong::FixedSetting { kind }),
        (0..7_usize).prop_map(|kind| Wrong::BadSetting { kind }),
        (0..3_usize).prop_map(|kind| Wrong::BadToken { kind }),
        (pick(), 0..2_usize).prop_map(|(pick, kind)| Wrong::UnknownSample { pick, kind }),
        Just(Wrong::UnknownLoad),
        (pick(), 0..2_usize).prop_map(|(pick, kind)| Wrong::WithoutPrefixCaching { pick, kind }),
        Just(Wrong::RecordingLate),
    ]
}
