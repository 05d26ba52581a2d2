//! Which observations are made. Each keeps an answer in memory, so a package has a number of places for them; the others wait.
//! A user who may create instances could take all places, so the last of them are reserved for namespaces that have few.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::children::Poll;

/// The places of all packages.
pub(super) struct PollPlaces {
    limits: Limits,
    packages: HashMap<Box<str>, OfPackage>,
}

/// How many places there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How many each package has.
    pub(super) most: usize,
    /// How many of them any namespace can take, in order of arrival.
    pub(super) first: usize,
    /// The others are for namespaces that have fewer than this.
    pub(super) few: usize,
}

#[derive(Default)]
struct OfPackage {
    taken: usize,
    of_namespaces: HashMap<Arc<str>, usize>,
    /// The observations that wait, in order for each namespace.
    waiting: BTreeMap<(Arc<str>, u64), Arc<Poll>>,
    /// The number of the next observation that waits.
    next: u64,
}

/// Whether an observation has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has one, and is made.
    Taken,
    /// It waits for one, with this number.
    Awaited(u64),
}

impl Place {
    /// Whether the observation waits.
    pub(super) fn is_awaited(self) -> bool {
        matches!(self, Self::Awaited(_))
    }
}

impl PollPlaces {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, packages: HashMap::new() }
    }

    /// A place for an observation, now or later.
    pub(super) fn take(&mut self, poll: &Arc<Poll>) -> Place {
        let limits = self.limits;
        let places = self.packages.entry(poll.operator.clone()).or_default();
        if places.has_place_for(&poll.namespace, limits) {
            places.add(&poll.namespace);
            return Place::Taken;
        }
        let number = places.next;
        places.next += 1;
        places.waiting.insert((Arc::clone(&poll.namespace), number), Arc::clone(poll));
        Place::Awaited(number)
    }

    /// Removes an observation that is no longer made, or no longer waits. Returns those that have taken a
    /// place now: the caller makes them.
    pub(super) fn leave(&mut self, poll: &Poll, place: Place) -> Vec<Arc<Poll>> {
        let limits = self.limits;
        let Some(places) = self.packages.get_mut(&poll.operator) else { return Vec::new() };
        let mut next = Vec::new();
        match place {
            Place::Awaited(number) => drop(places.waiting.remove(&(Arc::clone(&poll.namespace), number))),
            Place::Taken => {
                places.remove(&poll.namespace);
                // One that leaves can make room for two: one in order of arrival, and one of a namespace that has few now.
                next.extend(std::iter::from_fn(|| places.first_that_waits(limits)));
            }
        }
        if places.taken == 0 && places.waiting.is_empty() {
            self.packages.remove(&poll.operator);
        }
        next
    }

    /// Why observations wait.
    pub(super) fn why(&self) -> String {
        let Limits { most, first, few } = self.limits;
        format!(
            "it waits for a free place: a package has at most {most} observations, and beyond {first} at most {few} in one namespace"
        )
    }

    /// How many places are taken.
    #[cfg(test)]
    pub(super) fn taken(&self, operator: &str) -> usize {
        self.packages.get(operator).map_or(0, |places| places.taken)
    }
}

impl OfPackage {
    fn has_place_for(&self, namespace: &Arc<str>, limits: Limits) -> bool {
        let own = self.of_namespaces.get(namespace).copied().unwrap_or_default();
        self.taken < limits.first || self.taken < limits.most && own < limits.few
    }

    fn add(&mut self, namespace: &Arc<str>) {
        self.taken += 1;
        *self.of_namespaces.entry(Arc::clone(namespace)).or_default() += 1;
    }

    fn remove(&mut self, namespace: &Arc<str>) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(own) = self.of_namespaces.get_mut(namespace) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.of_namespaces.remove(namespace);
            }
        }
    }

    /// Gives a place to the first that waits and may have it.
    fn first_that_waits(&mut self, limits: Limits) -> Option<Arc<Poll>> {
        let mut first: Option<(Arc<str>, u64)> = None;
        let mut next = self.waiting.keys().next().cloned();
        // The first of each namespace: one may have many that wait.
        while let Some((namespace, number)) = next {
            let is_earlier = first.as_ref().is_none_or(|(_, earliest)| number < *earliest);
            if is_earlier && self.has_place_for(&namespace, limits) {
                first = Some((Arc::clone(&namespace), number));
            }
            next = self.waiting.range((namespace, u64::MAX)..).next().map(|(key, _)| key.clone());
        }
        let key = first?;
        let poll = self.waiting.remove(&key)?;
        self.add(&key.0);
        Some(poll)
    }
}

#[cfg(test)]
mod tests {
    use super::super::polls::tests::poll_in;
    use super::*;

    /// Observations of a namespace take places.
    fn take(places: &mut PollPlaces, namespace: &str, count: usize) -> Vec<(Arc<Poll>, Place)> {
        let polls = (0..count).map(|number| poll_in(namespace, "p", &number.to_string()));
        polls.map(|poll| (Arc::clone(&poll), places.take(&poll))).collect()
    }

    fn leave(places: &mut PollPlaces, (poll, place): &(Arc<Poll>, Place)) -> Vec<Arc<Poll>> {
        places.leave(poll, *place)
    }

    fn places(most: usize, first: usize, few: usize) -> PollPlaces {
        PollPlaces::new(Limits { most, first, few })
    }

    fn made(polls: &[(Arc<Poll>, Place)]) -> usize {
        polls.iter().filter(|(_, place)| !place.is_awaited()).count()
    }

    #[test]
    fn one_namespace_leaves_places_to_others() {
        let mut places = places(40, 20, 3);
        let hostile = take(&mut places, "hostile", 100);
        assert_eq!(made(&hostile), 20);
        let others = ["a", "b", "c", "d", "e", "f"].map(|name| take(&mut places, name, 4));
        assert!(others.iter().all(|of| made(of) == 3));
        assert_eq!(made(&take(&mut places, "g", 2)), 2);
        let last = take(&mut places, "h", 1);
        assert_eq!(made(&last), 0, "all are taken");

        // The hostile one has waited longest. What it gives back goes to the others, until it has few as well.
        assert_eq!(leave(&mut places, &hostile[0]), [Arc::clone(&last[0].0)]);
        assert!(leave(&mut places, &hostile[1]).is_empty(), "the hostile namespace is over its limit");
        assert_eq!(places.taken("p"), 39);
        assert_eq!(leave(&mut places, &others[0][0]), [Arc::clone(&others[0][3].0)]);
    }

    #[test]
    fn a_released_place_can_make_room_for_two() {
        let mut places = places(4, 2, 1);
        let (hostile, other) = (take(&mut places, "hostile", 1), take(&mut places, "other", 1));
        let later = [take(&mut places, "hostile", 1), take(&mut places, "other", 1)];
        assert_eq!((made(&hostile), made(&other), made(&later[0]), made(&later[1])), (1, 1, 0, 0));
        let next = leave(&mut places, &other[0]);
        assert_eq!(next, later.each_ref().map(|of| Arc::clone(&of[0].0)));
        assert_eq!(places.taken("p"), 3);
    }

    #[test]
    fn released_observations_are_forgotten() {
        let mut places = places(2, 2, 2);
        let mut held = take(&mut places, "n", 4);
        assert_eq!(made(&held), 2);
        assert!(leave(&mut places, &held[3]).is_empty());
        assert_eq!(leave(&mut places, &held[0]), [Arc::clone(&held[2].0)]);
        held[2].1 = Place::Taken;
        for held in &held[1..3] {
            assert!(leave(&mut places, held).is_empty());
        }
        assert!(places.packages.is_empty());
    }
}
