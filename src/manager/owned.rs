//! Objects that belong to instances and are kept whole, such as runs and revisions, by the instance that they name.
//! They are kept as JSON text, because parsed objects take ten times the memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::index::{Gone, older};
use crate::api::Gvk;
use crate::children::names::{self, Claim, KindMark};
use crate::plan::{self, MAX_WAITING_PARAMS};

/// The namespace and the name of an object.
type Name = (Option<Box<str>>, Box<str>);

/// How an object names the instance that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OwnerField {
    /// By the labels that children have.
    Labels,
    /// By `apiVersion`, `kind` and `name` in `spec.of`. The instance is in the namespace of the object or has none.
    SpecOf,
}

impl OwnerField {
    /// The instance that an object names. `is_cluster_scoped`: whether instances with that label [`names::KIND`] have no
    /// namespace.
    pub(super) fn claim(self, object: &Value, is_cluster_scoped: impl Fn(&str) -> bool) -> Option<Claim> {
        let meta = &object["metadata"];
        let namespace = meta["namespace"].as_str();
        match self {
            Self::Labels => {
                let label = |name: &str| meta["labels"][name].as_str();
                let namespace = label(names::INSTANCE_NAMESPACE).or(namespace).unwrap_or_default();
                Some(names::claim(label(names::KIND)?, label(names::INSTANCE)?, namespace))
            }
            Self::SpecOf => {
                let of = &object["spec"]["of"];
                let (group, _) = of["apiVersion"].as_str()?.split_once('/')?;
                let kind = names::kind_label(of["kind"].as_str()?, group);
                let namespace = namespace.filter(|_| !is_cluster_scoped(&kind)).unwrap_or_default();
                Some(names::claim(&kind, &names::label_value(of["name"].as_str()?), namespace))
            }
        }
    }
}

/// The instance whose run has created an object for another instance, and waits for it.
pub(super) fn caller(object: &Value) -> Option<Claim> {
    let meta = &object["metadata"];
    let (kind, name) = meta["annotations"][names::CALLED_BY].as_str()?.split_once('/')?;
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    Some(names::claim(kind, &names::label_value(name), namespace))
}

/// The state of a run that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RunState {
    /// It waits for its turn.
    Waiting,
    /// One of its steps waits for approval.
    Asking,
    /// It is active.
    Active,
}

impl RunState {
    pub(super) const ALL: [Self; 3] = [Self::Waiting, Self::Asking, Self::Active];

    /// Its label in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Asking => "asking",
            Self::Active => "active",
        }
    }

    /// The state of a run; `None` if it has ended, or if the object is no run.
    fn of(object: &Value) -> Option<Self> {
        object["spec"]["plan"].as_str()?;
        let status = &object["status"];
        let mut steps = status["steps"].as_array().into_iter().flatten();
        match status["phase"].as_str().unwrap_or_default() {
            "" | "Pending" | "Interrupted" => Some(Self::Waiting),
            "Running" if steps.any(|step| step["phase"] == "Running" && step["asked"].is_u64()) => {
                Some(Self::Asking)
            }
            "Running" => Some(Self::Active),
            _ => None,
        }
    }
}

/// When a run started or, before that, was requested.
fn since(object: &Value) -> i64 {
    let times = [&object["status"]["startedAt"], &object["metadata"]["creationTimestamp"]];
    let time = times.iter().find_map(|time| time.as_str()?.parse::<Timestamp>().ok());
    time.map(Timestamp::as_second).unwrap_or_default()
}

/// An object as JSON text.
struct Packed {
    claim: Claim,
    state: Option<RunState>,
    /// When a run started, or was requested while it waits; in seconds since 1970.
    since: i64,
    uid: Box<str>,
    resource_version: Box<str>,
    json: Arc<[u8]>,
    /// The bytes of memory that the parameters of a run take while it has not started.
    waiting: usize,
}

/// The objects of one kind.
#[derive(Default)]
#[expect(clippy::struct_field_names, reason = "the other fields are about them")]
struct Objects {
    objects: BTreeMap<Name, Packed>,
    of_claim: HashMap<Claim, BTreeSet<Name>>,
    /// The objects that a running list has shown.
    listed: Option<HashSet<Name>>,
    /// The sums of [`Packed::waiting`] in each namespace.
    waiting: HashMap<Option<Box<str>>, usize>,
}

/// The objects of all kinds.
#[derive(Default)]
pub(super) struct OwnedObjects {
    kinds: HashMap<Gvk, Objects>,
    gone: Gone,
}

impl OwnedObjects {
    /// The objects of a kind that name an instance, sorted by namespace and name.
    pub(super) fn of(&self, gvk: &Gvk, claim: &Claim) -> Vec<Value> {
        let Some(kind) = self.kinds.get(gvk) else { return Vec::new() };
        let names = kind.of_claim.get(claim).into_iter().flatten();
        names.filter_map(|name| serde_json::from_slice(&kind.objects.get(name)?.json).ok()).collect()
    }

    /// The objects of a kind that name an instance, as JSON texts, to be parsed one after the other: all of
    /// them together may be large.
    pub(super) fn texts_of(&self, gvk: &Gvk, claim: &Claim) -> Vec<Arc<[u8]>> {
        let Some(kind) = self.kinds.get(gvk) else { return Vec::new() };
        let names = kind.of_claim.get(claim).into_iter().flatten();
        names.filter_map(|name| Some(Arc::clone(&kind.objects.get(name)?.json))).collect()
    }

    /// The objects of a kind that name such an instance, parsed one after the other.
    pub(super) fn with_claim(
        &self,
        gvk: &Gvk,
        is_such: impl Fn(&Claim) -> bool,
    ) -> impl Iterator<Item = Value> {
        let objects = self.kinds.get(gvk).into_iter().flat_map(|kind| kind.objects.values());
        let found = objects.filter(move |object| is_such(&object.claim));
        found.filter_map(|object| serde_json::from_slice(&object.json).ok())
    }

    /// The number of runs in each state, by the mark of the kind of their instances, and when the oldest of
    /// them started or was requested.
    pub(super) fn run_states(&self) -> HashMap<(KindMark, RunState), (usize, i64)> {
        let mut counts = HashMap::new();
        let all = self.kinds.values().flat_map(|kind| kind.objects.values());
        for (packed, state) in all.filter_map(|packed| Some((packed, packed.state?))) {
            let of = (names::kind_mark_of(&packed.claim), state);
            let (count, since) = counts.entry(of).or_insert((0, packed.since));
            *count += 1;
            *since = packed.since.min(*since);
        }
        counts
    }

    /// The object of a kind with that name, whichever instance it names.
    pub(super) fn named(&self, gvk: &Gvk, namespace: &str, name: &str) -> Option<Value> {
        let packed = self.kinds.get(gvk)?.objects.get(&(Some(namespace.into()), name.into()))?;
        serde_json::from_slice(&packed.json).ok()
    }

    /// Begins a list of a kind.
    pub(super) fn begin(&mut self, gvk: &Gvk) {
        self.kinds.entry(gvk.clone()).or_default().listed = Some(HashSet::new());
    }

    /// Whether there is an object of a kind with that name.
    pub(super) fn has(&self, gvk: &Gvk, namespace: &str, name: &str) -> bool {
        let name = (Some(namespace.into()), name.into());
        self.kinds.get(gvk).is_some_and(|kind| kind.objects.contains_key(&name))
    }

    /// The names of the objects of a kind in a namespace that begin with a prefix.
    pub(super) fn names(&self, gvk: &Gvk, namespace: &str, prefix: &str) -> Vec<String> {
        let Some(kind) = self.kinds.get(gvk) else { return Vec::new() };
        let first: Name = (Some(namespace.into()), prefix.into());
        let names = kind.objects.range(first..).map(|((of, name), _)| (of.as_deref(), &**name));
        let names = names.take_while(|(of, name)| *of == Some(namespace) && name.starts_with(prefix));
        names.map(|(_, name)| name.to_owned()).collect()
    }

    /// Ends a list of a kind. Removes the objects that it has not shown, and returns the instances that these
    /// named.
    pub(super) fn end(&mut self, gvk: &Gvk) -> Vec<Claim> {
        let Some(kind) = self.kinds.get_mut(gvk) else { return Vec::new() };
        let Some(listed) = kind.listed.take() else { return Vec::new() };
        let gone: Vec<Name> = kind.objects.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        gone.iter().filter_map(|name| kind.remove(name)).collect()
    }

    /// Takes an object from a watch, a read or the reply to a write. `claim`: the instance that it names, if any. Returns
    /// the instances that are concerned; none if the object is known already or is older.
    pub(super) fn put(&mut self, gvk: &Gvk, object: &Value, claim: Option<Claim>) -> Vec<Claim> {
        self.put_counted(gvk, object, claim, 0)
    }

    /// Takes a PlanRun like [`Self::put`], reduced to what is kept of it: see [`plan::bound`].
    pub(super) fn put_run(&mut self, gvk: &Gvk, run: &mut Value, claim: Option<Claim>) -> Vec<Claim> {
        let name = name_of(run);
        let kind = self.kinds.get(gvk);
        let others = kind.map_or(0, |kind| {
            let all = kind.waiting.get(&name.0).copied().unwrap_or_default();
            all.saturating_sub(kind.objects.get(&name).map_or(0, |packed| packed.waiting))
        });
        let room = MAX_WAITING_PARAMS.saturating_sub(others);
        let waiting = plan::bound(run, &[names::CALLED_BY], room);
        self.put_counted(gvk, run, claim, waiting)
    }

    fn put_counted(&mut self, gvk: &Gvk, object: &Value, claim: Option<Claim>, waiting: usize) -> Vec<Claim> {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (uid, resource_version) = (text("uid"), text("resourceVersion"));
        let name = name_of(object);
        let kind = self.kinds.entry(gvk.clone()).or_default();
        if let Some(listed) = &mut kind.listed {
            listed.insert(name.clone());
        }
        if self.gone.covers(uid, resource_version) {
            return Vec::new();
        }
        let present = kind.objects.get(&name);
        let is_known = |present: &Packed| {
            *present.resource_version == *resource_version
                || older(resource_version, &present.resource_version)
        };
        if present.is_some_and(is_known) {
            return Vec::new();
        }
        let mut concerned: Vec<Claim> = kind.remove(&name).into_iter().collect();
        if let Some(claim) = claim {
            let json = object.to_string().into_bytes().into();
            let state = RunState::of(object);
            let resource_version = resource_version.into();
            let since = since(object);
            let packed = Packed { claim, state, since, uid: uid.into(), resource_version, json, waiting };
            if waiting > 0 {
                *kind.waiting.entry(name.0.clone()).or_default() += waiting;
            }
            kind.of_claim.entry(claim).or_default().insert(name.clone());
            kind.objects.insert(name, packed);
            if !concerned.contains(&claim) {
                concerned.push(claim);
            }
        }
        concerned
    }

    /// Removes an object that is gone. Returns the instance that it named.
    pub(super) fn remove(&mut self, gvk: &Gvk, object: &Value) -> Option<Claim> {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        self.gone.add(text("uid"), text("resourceVersion"), None);
        let name = name_of(object);
        let kind = self.kinds.get_mut(gvk)?;
        // Another object of this name may have replaced it.
        if kind.objects.get(&name).is_some_and(|present| *present.uid != *text("uid")) {
            return None;
        }
        kind.remove(&name)
    }

    /// Forgets the objects of a kind.
    pub(super) fn drop_kind(&mut self, gvk: &Gvk) {
        self.kinds.remove(gvk);
    }
}

impl Objects {
    fn remove(&mut self, name: &Name) -> Option<Claim> {
        let Packed { claim, waiting, .. } = self.objects.remove(name)?;
        if let Some(all) = self.waiting.get_mut(&name.0) {
            *all = all.saturating_sub(waiting);
            if *all == 0 {
                self.waiting.remove(&name.0);
            }
        }
        if let Some(names) = self.of_claim.get_mut(&claim) {
            names.remove(name);
            if names.is_empty() {
                self.of_claim.remove(&claim);
            }
        }
        Some(claim)
    }
}

fn name_of(object: &Value) -> Name {
    let text = |field: &str| object["metadata"][field].as_str();
    (text("namespace").map(Into::into), text("name").unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::template::json_bytes;

    fn gvk() -> Gvk {
        Gvk::new("operetta.dev/v1", "PlanRun")
    }

    fn run(name: &str, version: u32, of: &str) -> Value {
        json!({
            "metadata": {"namespace": "n", "name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string()},
            "spec": {"of": {"apiVersion": "example.org/v1", "kind": "Thing", "name": of}},
        })
    }

    fn claim(object: &Value) -> Option<Claim> {
        OwnerField::SpecOf.claim(object, |_| false)
    }

    fn put(owned: &mut OwnedObjects, object: &Value) -> Vec<Claim> {
        owned.put(&gvk(), object, claim(object))
    }

    fn versions(owned: &OwnedObjects, of: &str) -> Vec<String> {
        let objects = owned.of(&gvk(), &claim(&run("", 0, of)).unwrap());
        objects
            .iter()
            .map(|object| object["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn labels_and_spec_of_name_the_same_instance() {
        let labels = json!({names::KIND: "Thing.example.org", names::INSTANCE: "a"});
        let object = json!({"metadata": {"namespace": "n", "labels": labels}});
        let by_label = OwnerField::Labels.claim(&object, |_| false);
        assert!(by_label.is_some());
        assert_eq!(by_label, claim(&run("r", 1, "a")));
        assert_ne!(by_label, claim(&run("r", 1, "b")));
        assert_eq!(OwnerField::Labels.claim(&run("r", 1, "a"), |_| false), None);
        assert_eq!(OwnerField::SpecOf.claim(&object, |_| false), None);
        let of_cluster = OwnerField::SpecOf.claim(&run("r", 1, "a"), |kind| kind == "Thing.example.org");
        assert_eq!(of_cluster, Some(names::claim("Thing.example.org", "a", "")));
    }

    #[test]
    fn own_writes_and_events_are_ordered_by_resource_version() {
        let mut owned = OwnedObjects::default();
        let a = claim(&run("", 0, "a")).unwrap();
        assert_eq!(put(&mut owned, &run("r", 5, "a")), [a]);
        assert!(put(&mut owned, &run("r", 4, "a")).is_empty(), "the event of an earlier write");
        assert!(put(&mut owned, &run("r", 5, "a")).is_empty(), "the event of this write");
        assert_eq!(versions(&owned, "a"), ["5"]);
        assert_eq!(put(&mut owned, &run("r", 6, "a")), [a]);
        assert_eq!(owned.remove(&gvk(), &run("r", 8, "a")), Some(a));
        assert!(put(&mut owned, &run("r", 7, "a")).is_empty(), "a reply that arrives after the deletion");
        assert!(versions(&owned, "a").is_empty());
    }

    #[test]
    fn runs_are_counted_by_kind_and_state_until_they_end() {
        let mut owned = OwnedObjects::default();
        let asking = json!([{"phase": "Succeeded", "asked": 0}, {"phase": "Running", "asked": 0}]);
        for (name, status) in [
            ("new", json!(null)),
            ("interrupted", json!({"phase": "Interrupted"})),
            (
                "active",
                json!({"phase": "Running", "startedAt": "1970-01-01T00:01:00Z", "steps": [{"phase": "Succeeded", "asked": 0}]}),
            ),
            ("older", json!({"phase": "Running", "startedAt": "1970-01-01T00:00:30Z"})),
            ("asking", json!({"phase": "Running", "steps": asking})),
            ("ended", json!({"phase": "Failed", "steps": asking})),
        ] {
            let mut run = run(name, 1, "a");
            run["spec"]["plan"] = "p".into();
            run["status"] = status;
            run["metadata"]["creationTimestamp"] = "1970-01-01T00:00:10Z".into();
            put(&mut owned, &run);
        }
        // An object without a plan is no run.
        put(&mut owned, &run("other", 1, "a"));
        let mark = names::kind_mark("Thing.example.org");
        let states = [(RunState::Waiting, (2, 10)), (RunState::Asking, (1, 10)), (RunState::Active, (2, 30))];
        assert_eq!(owned.run_states(), states.map(|(state, runs)| ((mark, state), runs)).into());
    }

    /// A tenant requests runs with as many parameters as an object may have, of an instance that exists or not.
    #[test]
    fn the_parameters_of_many_runs_take_bounded_memory() {
        let mut owned = OwnedObjects::default();
        let a = claim(&run("", 0, "a")).unwrap();
        let request = |name: &str, zeros: usize| {
            let mut run = run(name, 1, "a");
            run["spec"]["plan"] = "p".into();
            run["spec"]["params"] = json!({"a": vec![0; zeros]});
            run
        };
        let put = |owned: &mut OwnedObjects, mut run: Value| {
            let claim = claim(&run);
            owned.put_run(&gvk(), &mut run, claim)
        };
        // 260 KB of text each.
        for number in 0..300 {
            assert_eq!(put(&mut owned, request(&format!("large-{number:03}"), 130_000)), [a]);
        }
        let bytes = |owned: &OwnedObjects| owned.of(&gvk(), &a).iter().map(json_bytes).sum::<usize>();
        let slim = bytes(&owned);
        assert!(slim < 2 << 20, "{slim}");
        assert!(owned.of(&gvk(), &a).iter().all(|run| run["spec"]["params"].is_null()));
        // Parameters as large as they may be, of many runs.
        for number in 0..300 {
            put(&mut owned, request(&format!("many-{number:03}"), 3_500));
        }
        let kept = |owned: &OwnedObjects| {
            owned.of(&gvk(), &a).iter().filter(|run| !run["spec"]["params"].is_null()).count()
        };
        let first = kept(&owned);
        assert!((100..200).contains(&first), "{first}");
        assert!(bytes(&owned) < 2 * slim + MAX_WAITING_PARAMS, "{}", bytes(&owned));
        // The first ends, another is deleted: there is room for two.
        let mut ended = request("many-000", 3_500);
        ended["metadata"]["resourceVersion"] = "2".into();
        ended["status"]["phase"] = "Failed".into();
        put(&mut owned, ended);
        owned.remove(&gvk(), &request("many-001", 0));
        assert_eq!(kept(&owned), first - 2);
        for name in ["new-0", "new-1", "new-2"] {
            put(&mut owned, request(name, 3_500));
        }
        assert_eq!(kept(&owned), first);
        // The same object again changes nothing.
        put(&mut owned, request("new-0", 3_500));
        assert_eq!(kept(&owned), first);
        // Another namespace has room of its own.
        let mut elsewhere = request("r", 3_500);
        elsewhere["metadata"]["namespace"] = "m".into();
        put(&mut owned, elsewhere);
        assert!(!owned.named(&gvk(), "m", "r").unwrap()["spec"]["params"].is_null());
    }

    #[test]
    fn a_list_drops_missing_objects_and_a_new_owner_concerns_both() {
        let mut owned = OwnedObjects::default();
        let [a, b] = ["a", "b"].map(|of| claim(&run("", 0, of)).unwrap());
        for name in ["one", "two"] {
            put(&mut owned, &run(name, 1, "a"));
        }
        assert_eq!(put(&mut owned, &run("two", 2, "b")), [a, b]);
        assert_eq!((versions(&owned, "a").len(), versions(&owned, "b").len()), (1, 1));
        owned.begin(&gvk());
        put(&mut owned, &run("two", 2, "b"));
        assert_eq!(owned.end(&gvk()), [a]);
        assert_eq!((versions(&owned, "a").len(), versions(&owned, "b").len()), (0, 1));
        assert_eq!(owned.put(&gvk(), &run("two", 3, "b"), None), [b], "it names nobody any more");
        owned.drop_kind(&gvk());
        assert!(versions(&owned, "b").is_empty());
    }
}
