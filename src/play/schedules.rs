//! Which schedules are played, in which order. Cases that take long come less often.

use std::collections::{BTreeMap, BTreeSet};

use super::course::Part;
use super::deeds::Deed;
use super::disturbance::{Disturbance, InjectedFault, Target, mixed};
use super::end::{End, cleaned};
use super::ended::Ended;

/// How many disturbances a combination has at most.
const MOST: usize = 3;
/// Each how many schedules is a combination of disturbances.
const COMBINED: usize = 4;
/// How many reactions to a schedule are disturbed, too.
const REACTIONS: usize = 4;
/// How much more often commands, calls and pods are struck than writes that change something, and how much less dry runs and reads.
const PREFERRED: f64 = 4.0;
const DRY: f64 = 0.25;
const READ: f64 = 0.25;
/// How many orders of events a part of a case is played in.
const ORDERS: u64 = 8;

/// A part of a case without disturbance.
pub(super) struct Base {
    pub place: (usize, usize),
    pub part: Part,
    pub deeds: Vec<Deed>,
    pub end: End,
    /// How many requests its managers send.
    pub cost: u64,
}

impl Base {
    /// What was played; as an error if it fails.
    pub(super) fn new(place: (usize, usize), part: Part, ended: Ended) -> Result<Self, Box<Ended>> {
        if ended.failure.is_some() {
            return Err(Box::new(ended));
        }
        Ok(Self { place, part, deeds: ended.deeds, end: ended.end, cost: ended.requests.max(1) })
    }

    /// Each disturbance of each thing that managers do, with its weight. Each request has the same, however often it comes in how many
    /// cases, and so has each moment at which pods can die: each is soon disturbed in each way.
    fn singles(&self, seed: u64, often: &BTreeMap<String, f64>) -> Vec<(Disturbance, f64)> {
        let mut singles = Vec::new();
        for deed in &self.deeds {
            let among = |text: &str| often.get(text).copied().unwrap_or(1.0);
            let (request, moment) = (among(&cleaned(&deed.text)), among(&deed.moment()));
            let dry = if deed.text.ends_with("as a dry run") { DRY } else { 1.0 };
            let preferred = match deed.target {
                Target::Write => dry,
                Target::Read => READ,
                Target::Command | Target::Call | Target::Play => PREFERRED,
            };
            for &what in InjectedFault::of(deed.target) {
                let is_pod = what == InjectedFault::PodDies;
                let weight = if is_pod { PREFERRED * dry / moment } else { preferred / request };
                let choices = what.choices().iter();
                let all = choices.map(|&choice| Disturbance {
                    target: deed.target,
                    number: deed.number,
                    what,
                    choice,
                });
                let all: Vec<_> = all.filter(|one| !is_pod || one.pod() < deed.pods).collect();
                #[expect(clippy::cast_precision_loss, reason = "a few choices")]
                let weight = weight / all.len() as f64;
                singles.extend(all.into_iter().map(|one| (one, weight)));
            }
        }
        for order in 0..ORDERS {
            let choice = mixed(seed, order) % 10_000;
            singles.push((
                Disturbance { target: Target::Play, number: 0, what: InjectedFault::Order, choice },
                1.0,
            ));
        }
        singles
    }
}

/// What a manager has done more often than without disturbance, in its order. What was disturbed may be repeated.
pub(super) fn reactions<'e>(base: &Base, ended: &'e Ended) -> impl Iterator<Item = &'e Deed> + use<'e> {
    // In which pod a command runs does not matter.
    let what = |target: Target, text: &str| match text.rsplit_once(" in ") {
        Some((command, _)) if target == Target::Command => cleaned(command),
        _ => cleaned(text),
    };
    let mut left: BTreeMap<String, i64> = BTreeMap::new();
    for deed in &base.deeds {
        // A command that comes often is a question.
        *left.entry(what(deed.target, &deed.text)).or_default() +=
            if deed.target == Target::Command { 1000 } else { 1 };
    }
    for struck in &ended.struck {
        *left.entry(what(struck.disturbance.target, &struck.text)).or_default() += 1;
    }
    let first = ended.struck.iter().map(|struck| struck.at).min().unwrap_or_default();
    ended.deeds.iter().filter(move |deed| {
        let left = left.entry(what(deed.target, &deed.text)).or_default();
        *left -= 1;
        *left < 0 && deed.at >= first && (deed.is_effect || deed.target == Target::Command)
    })
}

/// The schedules of an exploration, one after another.
pub(super) struct Schedules {
    bases: Vec<Base>,
    /// Single disturbances with the index of their base, in the order in which they are played.
    singles: Vec<(usize, Disturbance)>,
    /// The single disturbances of each base.
    of_base: Vec<Vec<Disturbance>>,
    /// Schedules that disturb a reaction to their first disturbances, and what was chosen so far: the reaction, and how.
    followers: Vec<(usize, Vec<Disturbance>)>,
    followed: BTreeSet<(String, InjectedFault)>,
    random: fastrand::Rng,
    number: usize,
}

impl Schedules {
    /// `None` if there is nothing to play.
    pub(super) fn new(bases: Vec<Base>, seed: u64) -> Option<Self> {
        if bases.is_empty() {
            return None;
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let mut often = BTreeMap::new();
        for deed in bases.iter().flat_map(|base| &base.deeds) {
            *often.entry(cleaned(&deed.text)).or_default() += 1.0;
            *often.entry(deed.moment()).or_default() += 1.0;
        }
        let mut keyed = Vec::new();
        for (index, base) in bases.iter().enumerate() {
            for (single, weight) in base.singles(seed, &often) {
                // Weighted sampling without replacement: what costs less comes sooner.
                #[expect(clippy::cast_precision_loss, reason = "a number of requests")]
                let key = -random.f64().max(f64::MIN_POSITIVE).ln() * base.cost as f64 / weight;
                keyed.push((key, index, single));
            }
        }
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut of_base = vec![Vec::new(); bases.len()];
        for &(_, index, single) in &keyed {
            of_base[index].push(single);
        }
        let singles = keyed.into_iter().map(|(_, index, single)| (index, single)).collect();
        let (followers, followed) = (Vec::new(), BTreeSet::new());
        Some(Self { bases, singles, of_base, followers, followed, random, number: 0 })
    }

    pub(super) fn base(&self, index: usize) -> &Base {
        &self.bases[index]
    }

    /// The next schedule, and the index of its base.
    pub(super) fn choose(&mut self) -> (usize, Vec<Disturbance>) {
        let number = self.number;
        self.number += 1;
        let is_single = number % COMBINED != COMBINED - 1;
        match self.singles.get(number - number / COMBINED).filter(|_| is_single) {
            Some(&(index, single)) => (index, vec![single]),
            None if (number / COMBINED).is_multiple_of(2) || self.followers.is_empty() => self.combined(),
            None => self.followers.swap_remove(self.random.usize(..self.followers.len())),
        }
    }

    /// Learns what managers do because of a schedule: that can be disturbed, too.
    pub(super) fn learn(&mut self, index: usize, schedule: &[Disturbance], ended: &Ended) {
        if schedule.len() >= MOST {
            return;
        }
        for deed in reactions(&self.bases[index], ended).take(REACTIONS) {
            for &what in InjectedFault::of(deed.target) {
                if self.followed.insert((cleaned(&deed.text), what)) {
                    let choices = what.choices();
                    let choice = choices[self.random.usize(..choices.len())];
                    let next = Disturbance { target: deed.target, number: deed.number, what, choice };
                    self.followers.push((index, [schedule, &[next]].concat()));
                }
            }
        }
    }

    /// Two or three disturbances of one base, rather those that come early.
    fn combined(&mut self) -> (usize, Vec<Disturbance>) {
        let random = &mut self.random;
        // The bases are in the list of singles as often as they cost little.
        let index = self.singles[random.usize(..self.singles.len().min(4 * (self.number + 16)))].0;
        let singles = &self.of_base[index];
        let count = random.usize(2..=MOST);
        let mut early = || {
            let end = random.usize(..singles.len());
            singles[random.usize(..=end)]
        };
        let mut schedule: Vec<Disturbance> = (0..count).map(|_| early()).collect();
        schedule.sort_unstable();
        schedule.dedup_by_key(|disturbance| (disturbance.target, disturbance.number));
        (index, schedule)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn base(case: usize, cost: u64) -> Base {
        let deed = |number| Deed {
            target: Target::Write,
            number,
            at: Duration::ZERO,
            text: format!("applies pods/{number}"),
            is_effect: true,
            by: None,
            pods: 3,
        };
        let deeds = (1..=20).map(deed).collect();
        Base { place: (0, case), part: Part::Whole, deeds, end: End::new(), cost }
    }

    #[test]
    fn schedules_depend_on_the_seed_and_prefer_what_costs_little() {
        let schedules = |seed| Schedules::new(vec![base(0, 10), base(1, 1000)], seed).unwrap();
        let first = |seed| {
            let mut schedules = schedules(seed);
            (0..200).map(|_| schedules.choose()).collect::<Vec<_>>()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        let cheap = first(1).iter().filter(|(case, _)| *case == 0).count();
        assert!(cheap > 150, "{cheap}");
        assert!(first(1).iter().any(|(_, schedule)| schedule.len() == 3));
    }

    #[test]
    fn schedules_never_end() {
        let mut schedules = Schedules::new(vec![base(0, 1)], 1).unwrap();
        schedules.number = 100_000;
        assert!(!schedules.choose().1.is_empty());
        assert!(Schedules::new(Vec::new(), 1).is_none());
    }

    #[test]
    fn a_frequent_request_is_disturbed_no_more_often_than_a_rare_one() {
        let mut base = base(0, 1);
        base.deeds.iter_mut().skip(1).for_each(|deed| deed.text = "applies pods/many".to_owned());
        let mut schedules = Schedules::new(vec![base], 1).unwrap();
        let rare = (0..60).filter(|_| schedules.choose().1.iter().any(|one| one.number == 1)).count();
        assert!(rare > 10, "{rare}");
    }

    #[test]
    fn reactions_are_disturbed_each_in_each_way() {
        let mut schedules = Schedules::new(vec![base(0, 1)], 1).unwrap();
        let first =
            [Disturbance { target: Target::Write, number: 3, what: InjectedFault::PodDies, choice: 1 }];
        let mut ended = Ended { deeds: base(0, 1).deeds, ..Ended::default() };
        ended.deeds.push(Deed { number: 21, ..ended.deeds[0].clone() });
        schedules.learn(0, &first, &ended);
        schedules.learn(0, &first, &ended);
        assert_eq!(schedules.followers.len(), InjectedFault::of(Target::Write).len());
        let follows = |schedule: &[Disturbance]| schedule.len() == 2 && schedule[1].number == 21;
        let played = (0..200).filter(|_| follows(&schedules.choose().1)).count();
        assert_eq!(played, InjectedFault::of(Target::Write).len());
    }
}
