use serde_json::json;

use super::*;
use crate::children::RawObject;

fn key(name: &str) -> InstanceKey {
    InstanceKey { crd: "things.example.org".into(), namespace: Some("n".into()), name: name.into() }
}

fn index() -> Index {
    let mut index = Index::default();
    for (name, uid) in [("a", "uid-a"), ("b", "uid-b")] {
        index.put_instance(key(name), &json!({"metadata": {"uid": uid, "resourceVersion": "1"}}));
    }
    index
}

fn child(instance_uid: &str, version: &str) -> Observed {
    let metadata = serde_json::from_value(json!({
        "name": "c", "namespace": "n", "uid": "uid-c", "resourceVersion": version,
        "labels": {"operetta.dev/operator": "o", "operetta.dev/child": "c", "operetta.dev/instance-uid": instance_uid},
    }))
    .unwrap();
    let gvk = Gvk::new("v1", "ConfigMap");
    let seen = RawObject { gvk: &gvk, metadata: &metadata, body: None, reports: false };
    seen.observe(|_, _| Arc::from([])).unwrap()
}

#[test]
fn a_list_may_bring_another_object_at_the_same_version() {
    let mut index = index();
    let crd: Arc<str> = "things.example.org".into();
    let defaulted = json!({"metadata": {"uid": "uid-a", "resourceVersion": "1"}, "spec": {"size": 3}});
    assert!(!index.put_instance(key("a"), &defaulted), "an event of that version is no news");
    index.begin_instances(&crd);
    assert!(index.put_instance(key("a"), &defaulted));
    assert!(!index.put_instance(key("a"), &defaulted));
    assert_eq!(index.end_instances(&crd), [key("b")]);
    assert_eq!(index.instance(&key("a")), Some(defaulted));
    assert_eq!(index.drop_instances(&crd), [key("a")]);
}

#[test]
fn a_list_of_one_part_keeps_the_children_of_others() {
    let mut index = index();
    let of = |name: &str, label: &str| {
        let metadata = serde_json::from_value(json!({
            "name": name, "namespace": "n", "uid": name, "resourceVersion": "2",
            "labels": {"operetta.dev/kind": label, "operetta.dev/instance": "a", "operetta.dev/instance-uid": "uid-a"},
        }))
        .unwrap();
        let gvk = Gvk::new("v1", "ConfigMap");
        let seen = RawObject { gvk: &gvk, metadata: &metadata, body: None, reports: false };
        seen.observe(|_, _| Arc::from([])).unwrap()
    };
    let names = |index: &Index| -> Vec<String> {
        index.children_of("uid-a").iter().map(|child| child.object.name.to_string()).collect()
    };
    let gvk = Gvk::new("v1", "ConfigMap");
    for (name, label) in [("c1", "One.x"), ("c2", "One.x"), ("d1", "Two.x"), ("d2", "Two.x")] {
        index.put_child(of(name, label), Provenance::Watch);
    }
    // Two lists run side by side; each removes only what belongs to it.
    let part = |label: &str| ChildPart { kind: Some(label.into()), namespace: None };
    index.begin_kind(&gvk, part("One.x"));
    index.begin_kind(&gvk, part("Two.x"));
    index.put_child(of("c1", "One.x"), Provenance::Watch);
    assert_eq!(index.end_kind(&gvk, &part("One.x")), [key("a")]);
    assert_eq!(names(&index), ["c1", "d1", "d2"]);
    index.put_child(of("d2", "Two.x"), Provenance::Watch);
    assert_eq!(index.end_kind(&gvk, &part("Two.x")), [key("a")]);
    assert_eq!(names(&index), ["c1", "d2"]);
    // A list of one namespace, or of a part that another watch brings, removes no other children.
    let in_namespace = |namespace: &str| ChildPart { namespace: Some(namespace.into()), ..part("One.x") };
    index.drop_kind(&gvk, &in_namespace("m"), &[]);
    index.drop_kind(&gvk, &part("One.x"), &[in_namespace("n")]);
    index.begin_kind(&gvk, in_namespace("m"));
    assert_eq!(index.end_kind(&gvk, &in_namespace("m")), []);
    assert_eq!(names(&index), ["c1", "d2"]);
    index.drop_kind(&gvk, &in_namespace("n"), &[]);
    assert_eq!(names(&index), ["d2"]);
    index.begin_kind(&gvk, ChildPart::default());
    assert_eq!(index.end_kind(&gvk, &ChildPart::default()), [key("a")]);
    assert_eq!(names(&index), [""; 0]);
}

#[test]
fn children_of_a_former_instance_are_known_by_name_and_namespace() {
    let mut index = Index::default();
    let crd: Arc<str> = "things.example.org".into();
    index.name_kind(&crd, "Thing.example.org");
    let put = |index: &mut Index, namespace: &str, uid: &str, extra: &Value| {
        let key = InstanceKey { crd: crd.clone(), namespace: Some(namespace.into()), name: "a".into() };
        let mut meta = json!({"uid": uid, "resourceVersion": "9"});
        meta.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        index.put_instance(key.clone(), &json!({"metadata": meta}));
        key
    };
    let role = |uid: &str, home: &str| {
        let metadata = serde_json::from_value(json!({
            "name": format!("role-{uid}"), "uid": format!("of-{uid}"), "resourceVersion": "5",
            "labels": {"operetta.dev/kind": "Thing.example.org", "operetta.dev/instance": "a",
                "operetta.dev/instance-uid": uid, "operetta.dev/instance-namespace": home},
        }))
        .unwrap();
        let seen = RawObject {
            gvk: &Gvk::new("rbac/v1", "ClusterRole"),
            metadata: &metadata,
            body: None,
            reports: false,
        };
        seen.observe(|_, _| Arc::from([])).unwrap()
    };
    let (one, two) = (put(&mut index, "one", "new", &json!({})), put(&mut index, "two", "other", &json!({})));
    assert_eq!(index.put_child(role("dead", "one"), Provenance::Watch), std::slice::from_ref(&one));
    assert_eq!(index.put_child(role("other", "two"), Provenance::Watch), std::slice::from_ref(&two));
    let previous = |index: &Index, key, uid| -> Vec<String> {
        index.previous_children(key, uid).iter().map(|o| o.object.name.to_string()).collect()
    };
    assert_eq!(previous(&index, &one, "new"), ["role-dead"]);
    assert!(previous(&index, &two, "other").is_empty());
    let object = role("dead", "one").object;
    assert_eq!(index.remove_child(&object, "of-dead", None), Some(one.clone()));
    assert!(previous(&index, &one, "new").is_empty());

    // An orphaned instance is remembered until its children are orphaned.
    let mark = json!({"deletionTimestamp": "t", "finalizers": ["orphan"], "resourceVersion": "10"});
    put(&mut index, "two", "other", &mark);
    put(&mut index, "two", "other", &json!({"deletionTimestamp": "t", "resourceVersion": "11"}));
    let seen = &index.instance(&two).unwrap()["metadata"]["annotations"]["operetta.dev/orphaned"];
    assert_eq!(*seen, "seen");
    index.remove_instance(&two, "other", Some("12"));
    assert!(index.instance(&two).is_none() && index.deleted_instance(&two).is_some());
    index.remove_child(&role("other", "two").object, "of-other", None);
    assert!(index.deleted_instance(&two).is_none());
}

#[test]
fn values_that_siblings_share_are_held_once() {
    let mut index = index();
    let named = |name: &str, instance_uid: &str| {
        let mut child = child(instance_uid, "2");
        (child.object.name, child.uid) = (name.into(), name.into());
        child
    };
    for (name, instance_uid) in [("d", "uid-a"), ("c", "uid-a"), ("f", "unknown"), ("e", "unknown")] {
        index.put_child(named(name, instance_uid), Provenance::Watch);
    }
    for (instance_uid, names) in [("uid-a", ["c", "d"]), ("unknown", ["e", "f"])] {
        let children = index.children_of(instance_uid);
        assert_eq!(children.iter().map(|c| &*c.object.name).collect::<Vec<_>>(), names);
        let [one, two] = &children[..] else { panic!("{}", children.len()) };
        assert!(Arc::ptr_eq(&one.instance_uid, &two.instance_uid), "{instance_uid}");
        let (one, two) = (&one.object.namespace, &two.object.namespace);
        assert!(Arc::ptr_eq(one.as_ref().unwrap(), two.as_ref().unwrap()), "{instance_uid}");
    }
    assert_eq!(index.instance(&key("a")).unwrap()["metadata"]["uid"], "uid-a");
    let object = index.children_of("uid-a")[0].object.clone();
    index.remove_child(&object, "c", None);
    assert_eq!(index.children_of("uid-a").len(), 1);
}

#[test]
fn a_child_that_is_relabelled_concerns_its_former_instance_too() {
    let mut index = index();
    assert_eq!(index.put_child(child("uid-a", "2"), Provenance::Watch), [key("a")]);
    assert_eq!(index.put_child(child("nobody", "3"), Provenance::Watch), [key("a")]);
    assert_eq!(index.put_child(child("uid-b", "4"), Provenance::Watch), [key("b")]);
    assert_eq!(index.put_child(child("uid-a", "5"), Provenance::Watch), [key("b"), key("a")]);
    assert_eq!(index.put_child(child("uid-b", "4"), Provenance::Watch), []);
}

#[test]
fn a_child_of_another_instance_is_found_in_the_place_that_was_rendered() {
    let mut index = index();
    let pod = |name: &str, uid: &str| {
        let metadata = serde_json::from_value(json!({
            "name": name, "namespace": "n", "uid": uid, "resourceVersion": "2",
            "labels": {"operetta.dev/operator": "o", "operetta.dev/child": "m", "operetta.dev/instance-uid": "uid-a"},
        }))
        .unwrap();
        let gvk = Gvk::new("v1", "Pod");
        let seen = RawObject { gvk: &gvk, metadata: &metadata, body: None, reports: false };
        seen.observe(|_, _| Arc::from([])).unwrap()
    };
    let places = |index: &mut Index| -> Option<Vec<String>> {
        let (found, sibling) = index.sibling("uid-a", &key("b")).unwrap();
        assert_eq!(found, key("a"));
        sibling.places.map(|all| all.iter().map(|(item, live)| format!("{item} {}", live.uid)).collect())
    };
    assert!(index.sibling("uid-x", &key("b")).is_none());
    assert_eq!(places(&mut index), None, "nothing was decided yet");
    let object = ObjectRef { gvk: Gvk::new("v1", "Pod"), namespace: Some("n".into()), name: "a-0".into() };
    let line = |object: Option<ObjectRef>| vec![("m[0]".to_owned(), object, Ok(()))];
    assert_eq!(index.place_children(&key("a"), &line(Some(object))), [key("b")], "the reader is queued");
    assert_eq!(places(&mut index), Some(Vec::new()));
    // A pod with the same labels and another name takes no place.
    assert_eq!(index.put_child(pod("a-", "forged"), Provenance::Watch), [key("b"), key("a")]);
    assert_eq!(places(&mut index), Some(Vec::new()));
    index.put_child(pod("a-0", "real"), Provenance::Watch);
    assert_eq!(places(&mut index), Some(vec!["m[0] real".to_owned()]));
    // What cannot be rendered now stays where it was.
    assert!(index.place_children(&key("a"), &line(None)).is_empty());
    assert_eq!(places(&mut index), Some(vec!["m[0] real".to_owned()]));
    index.remove_instance(&key("b"), "uid-b", None);
    assert!(index.place_children(&key("a"), &[]).is_empty(), "a reader that is gone is not queued");
    index.remove_instance(&key("a"), "uid-a", None);
    assert!(index.sibling("uid-a", &key("b")).is_none());
}

/// What happens at an API server to the instances of one name, and what the manager hears of it, in one of all possible orders.
#[derive(Clone)]
struct Order {
    /// How much has happened at the server: instance A is created and deleted, then B is created.
    happened: usize,
    /// How much of that the watch has brought.
    watched: usize,
    /// Live reads: not sent; sent, with the uid known then; answered by the server; the answer taken in.
    reads: [Read; 2],
    told: Vec<String>,
}

#[derive(Clone, PartialEq)]
enum Read {
    Due,
    Sent(Option<String>),
    Answered(Option<String>, Option<Value>),
    Done,
}

const HISTORY: usize = 3;

fn at_server(happened: usize) -> Option<Value> {
    let of = |uid: &str, version: usize| json!({"metadata": {"uid": uid, "resourceVersion": version.to_string(), "generation": version}});
    match happened {
        1 => Some(of("A", 1)),
        3 => Some(of("B", 3)),
        _ => None,
    }
}

/// Plays an order in an index: which instance is known in the end, and which ones were queued.
struct Played {
    index: Index,
    queued: Vec<String>,
}

impl Played {
    fn note(&mut self, is_news: bool, object: &Value) {
        if is_news {
            self.queued.push(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        }
    }

    fn watch(&mut self, event: usize) {
        let key = key("x");
        if let Some(object) = at_server(event) {
            let is_news = self.index.put_instance(key, &object);
            self.note(is_news, &object);
        } else {
            self.index.remove_instance(&key, "A", Some("2"));
        }
    }

    fn answer(&mut self, asked: Option<&str>, live: Option<&Value>) {
        let change = self.index.put_read(&key("x"), asked, live);
        if let Some(object) = live {
            self.note(change == ReadChange::Replaced, object);
        }
    }
}

/// In every order of watch events and answers to live reads, the newest instance is known in the end and was queued, and
/// what the manager remembers of the previous one is to be forgotten.
#[test]
fn late_answers_and_events_of_a_previous_instance_keep_the_new_one() {
    let first = Order { happened: 0, watched: 0, reads: [Read::Due, Read::Due], told: Vec::new() };
    let mut open = vec![(first, Vec::<Step>::new())];
    let mut orders = 0;
    while let Some((order, steps)) = open.pop() {
        let next = order.next(&steps);
        if next.is_empty() {
            orders += 1;
            let Played { index, queued } = play(&steps);
            let told = order.told.join(", ");
            assert_eq!(index.uid_of(&key("x")).as_deref(), Some("B"), "{told}");
            assert!(queued.iter().any(|uid| uid == "B"), "B is never queued: {told}");
            assert!(index.is_to_forget(&key("x")) || !queued.iter().any(|uid| uid == "A"), "{told}");
        }
        open.extend(next);
    }
    assert!(orders > 1_000, "{orders}");
}

#[derive(Clone)]
enum Step {
    Watch(usize),
    Answer(Option<String>, Option<Value>),
}

fn play(steps: &[Step]) -> Played {
    let mut played = Played { index: Index::default(), queued: Vec::new() };
    for step in steps {
        match step {
            Step::Watch(event) => played.watch(*event),
            Step::Answer(asked, live) => played.answer(asked.as_deref(), live.as_ref()),
        }
    }
    played
}

impl Order {
    /// All that may happen next.
    fn next(&self, steps: &[Step]) -> Vec<(Self, Vec<Step>)> {
        let mut all = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self) -> Option<Step>, what: String| {
            let (mut order, mut steps) = (self.clone(), steps.to_vec());
            steps.extend(change(&mut order));
            order.told.push(what);
            all.push((order, steps));
        };
        if self.happened < HISTORY {
            add(
                &|order| {
                    order.happened += 1;
                    None
                },
                format!("server {}", self.happened + 1),
            );
        }
        if self.watched < self.happened {
            let event = self.watched + 1;
            add(
                &|order| {
                    order.watched += 1;
                    Some(Step::Watch(event))
                },
                format!("watch {event}"),
            );
        }
        for (number, read) in self.reads.iter().enumerate() {
            // The second read is sent after the first, which may be answered later.
            if number > 0 && self.reads[number - 1] == Read::Due {
                continue;
            }
            match read {
                Read::Due => {
                    let known = play(steps).index.uid_of(&key("x")).map(|uid| uid.to_string());
                    let what = format!("read {number} of {known:?}");
                    add(
                        &|order| {
                            order.reads[number] = Read::Sent(known.clone());
                            None
                        },
                        what,
                    );
                }
                Read::Sent(asked) => {
                    let live = at_server(self.happened);
                    let answered = Read::Answered(asked.clone(), live);
                    add(
                        &|order| {
                            order.reads[number] = answered.clone();
                            None
                        },
                        format!("served {number}"),
                    );
                }
                Read::Answered(asked, live) => {
                    let step = Step::Answer(asked.clone(), live.clone());
                    let change = |order: &mut Self| {
                        order.reads[number] = Read::Done;
                        Some(step.clone())
                    };
                    add(&change, format!("answer {number}"));
                }
                Read::Done => {}
            }
        }
        all
    }
}
