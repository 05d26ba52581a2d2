//! What can go wrong at one moment of a play, as a schedule says.

use std::time::Duration;

/// One thing that goes wrong in a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Disturbance {
    pub target: Target,
    /// The number of the write, read, command or call that it strikes, from 1; 0 if it is about the whole play.
    pub number: u64,
    pub what: InjectedFault,
    /// Which of several: seconds, a seed, or of a pod its number and ten times the seconds in which none can be created.
    pub choice: u64,
}

/// What a disturbance strikes. Each kind is counted for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A request of the manager that writes.
    Write,
    /// A request of the manager that reads and is no watch.
    Read,
    /// A command in a container.
    Command,
    /// An HTTP request of the package.
    Call,
    /// All that happens.
    Play,
}

impl Target {
    /// The key of the number in files of schedules.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Command => "command",
            Self::Call => "call",
            Self::Play => "play",
        }
    }
}

/// What is done to a request, a command or a call. The words are those of files of schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InjectedFault {
    /// The manager ends before it sends it.
    KillBefore,
    /// It is carried out, and the manager ends before the answer.
    KillAfter,
    /// Another manager takes over while it is on its way: it arrives some seconds later.
    TakenOver,
    /// It is carried out, and the answer is lost.
    Lost,
    /// It is not carried out, and the connection breaks.
    Cut,
    /// It is carried out, and no answer comes until the deadline.
    Late,
    /// It is carried out, and its answer arrives some seconds later: others may change in between what it tells.
    Slow,
    /// The answer is 409.
    Conflict,
    /// The answer is 429.
    Busy,
    /// The answer is 500.
    Broken,
    /// It is carried out, and all watches end.
    WatchesEnd,
    /// It is carried out, and all watches deliver nothing for some seconds.
    WatchesLate,
    /// A pod that loses no data dies: after a write, during a command or a call.
    PodDies,
    /// Watches and answers come in another order.
    Order,
}

impl InjectedFault {
    /// What can happen to a target.
    pub(crate) fn of(target: Target) -> &'static [Self] {
        Self::ALL.iter().find(|(of, _)| *of == target).map(|(_, all)| *all).unwrap_or_default()
    }

    /// What each kind of target can suffer.
    pub(crate) const ALL: [(Target, &[Self]); 5] = [
        (
            Target::Write,
            &[
                Self::KillBefore,
                Self::KillAfter,
                Self::TakenOver,
                Self::Lost,
                Self::Cut,
                Self::Slow,
                Self::Conflict,
                Self::Busy,
                Self::Broken,
                Self::WatchesEnd,
                Self::WatchesLate,
                Self::PodDies,
            ],
        ),
        (Target::Read, &[Self::Cut, Self::Slow]),
        (Target::Command, &[Self::KillAfter, Self::Lost, Self::Cut, Self::Late, Self::PodDies]),
        (Target::Call, &[Self::KillAfter, Self::Cut, Self::Late, Self::PodDies]),
        (Target::Play, &[Self::Order]),
    ];

    /// The word in files of schedules.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::KillBefore => "killBefore",
            Self::KillAfter => "killAfter",
            Self::TakenOver => "takenOver",
            Self::Lost => "lost",
            Self::Cut => "cut",
            Self::Late => "late",
            Self::Slow => "slow",
            Self::Conflict => "conflict",
            Self::Busy => "busy",
            Self::Broken => "broken",
            Self::WatchesEnd => "watchesEnd",
            Self::WatchesLate => "watchesLate",
            Self::PodDies => "podDies",
            Self::Order => "order",
        }
    }

    /// Between which choices a schedule can choose. The seeds of orders are not limited.
    pub(crate) fn choices(self) -> &'static [u64] {
        match self {
            Self::TakenOver => &[1, 10],
            Self::Slow => &[1, 3, 20],
            Self::WatchesLate => &[1, 10, 60],
            Self::PodDies => &[0, 1, 2, 100, 101, 102],
            _ => &[0],
        }
    }
}

impl Disturbance {
    /// What happens to the target, for people.
    pub(crate) fn story(self) -> String {
        match self.what {
            InjectedFault::KillBefore => {
                "the manager is killed before it sends this, and started again".to_owned()
            }
            InjectedFault::KillAfter => {
                "this is carried out; the manager is killed before the answer, and started again".to_owned()
            }
            InjectedFault::TakenOver => format!(
                "another manager takes over while this is on its way: it arrives {} s later",
                self.choice
            ),
            InjectedFault::Lost => "this is carried out, and its answer is lost".to_owned(),
            InjectedFault::Cut => "this is not carried out: the connection breaks".to_owned(),
            InjectedFault::Late => "this is carried out, and no answer comes in time".to_owned(),
            InjectedFault::Slow => format!("the answer to this arrives {} s later", self.choice),
            InjectedFault::Conflict => "this is answered with 409".to_owned(),
            InjectedFault::Busy => "this is answered with 429".to_owned(),
            InjectedFault::Broken => "this is answered with 500".to_owned(),
            InjectedFault::WatchesEnd => "this is carried out, and all watches end".to_owned(),
            InjectedFault::WatchesLate => {
                format!("this is carried out, and watches deliver nothing for {} s", self.choice)
            }
            InjectedFault::PodDies => {
                let when =
                    if self.target == Target::Write { "this is carried out, and" } else { "meanwhile" };
                match self.seconds().as_secs() {
                    0 => format!("{when} a pod dies"),
                    seconds => format!("{when} a pod dies; the manager can create none for {seconds} s"),
                }
            }
            InjectedFault::Order => format!("watches and answers come in another order ({})", self.choice),
        }
    }

    /// The seconds of its choice.
    pub(super) fn seconds(self) -> Duration {
        Duration::from_secs(if self.what == InjectedFault::PodDies { self.choice / 10 } else { self.choice })
    }

    /// The number of the pod of its choice.
    pub(super) fn pod(self) -> usize {
        usize::try_from(self.choice % 10).unwrap_or_default()
    }
}

/// One step of splitmix64: a number that looks random and depends on these only.
pub(super) fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// By how much the order of a seed delays something. Most things come at once; what is late changes every 20 seconds.
pub(super) fn delay(seed: u64, of: u64, elapsed: Duration) -> Duration {
    const DELAYS: [u64; 8] = [0, 0, 0, 0, 5, 50, 500, 5000];
    let index = mixed(mixed(seed, of), elapsed.as_secs() / 20) % DELAYS.len() as u64;
    Duration::from_millis(DELAYS[usize::try_from(index).unwrap_or_default()])
}
