//! Random sequences of requests.

use fastrand::Rng;
use serde_json::{Map, Value, json};

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The CRD of the custom resources.
pub(super) fn crd() -> Value {
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "name": {"type": "string", "pattern": "^[a-z]+$", "default": "abc"},
        "mode": {"type": "string", "enum": ["a", "b"]},
        "flag": {"type": "boolean", "default": true},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
        "ios": {"x-kubernetes-int-or-string": true},
        "nul": {"type": "string", "nullable": true},
        "list": {"type": "array", "items": {"type": "string"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"], "properties": {"name": {"type": "string"},
                "port": {"type": "integer", "default": 80}, "x": {"type": "string"}}}},
        "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "nested": {"type": "object", "default": {}, "properties": {"a": {"type": "string", "default": "d"}, "b": {"type": "string"}}},
    }});
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}, "versions": [{
            "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}}]}})
}

/// A sequence of requests in a namespace of its own.
pub(super) fn sequence(seed: u64, steps: usize) -> Vec<Value> {
    let mut random = Random(Rng::with_seed(seed));
    let namespace = format!("generated-sequence-{seed}");
    let mut all = vec![json!({"do": "POST /api/v1/namespaces", "body": {"metadata": {"name": namespace}}})];
    all.extend((0..steps).map(|_| random.step(&namespace)));
    all
}

struct Random(Rng);

impl Random {
    fn chance(&mut self, percent: u32) -> bool {
        self.0.u32(0..100) < percent
    }

    fn pick(&mut self, choices: &[Value]) -> Value {
        choices[self.0.usize(0..choices.len())].clone()
    }

    /// Each field with this chance and one of its values.
    fn some(&mut self, percent: u32, fields: &[(&str, &[Value])]) -> Map<String, Value> {
        let mut map = Map::new();
        for (name, choices) in fields {
            if self.chance(percent) {
                map.insert((*name).to_owned(), self.pick(choices));
            }
        }
        map
    }

    fn labels(&mut self) -> Value {
        let map = self.some(50, &[("a", &[json!("1"), json!("2")]), ("b", &[json!("1"), json!("2")])]);
        if map.is_empty() { json!({"z": "1"}) } else { map.into() }
    }

    fn meta(&mut self, name: &str) -> Value {
        let mut meta = json!({"name": name});
        if self.chance(30) {
            meta["labels"] = self.labels();
        }
        if self.chance(20) {
            meta["annotations"] = self.labels();
        }
        if self.chance(10) {
            meta["finalizers"] = self.pick(&[json!(["x.y/a"]), json!(["x.y/a", "x.y/b"])]);
        }
        meta
    }

    /// Items with different values of a key.
    fn items(&mut self, key: &str, names: &[&str], item: impl Fn(&mut Self) -> Map<String, Value>) -> Value {
        let mut names: Vec<&str> = names.to_vec();
        self.0.shuffle(&mut names);
        let count = self.0.usize(1..=names.len());
        let items = names[..count].iter().map(|name| {
            let mut item = item(self);
            item.insert(key.to_owned(), (*name).into());
            Value::Object(item)
        });
        items.collect::<Vec<_>>().into()
    }

    fn thing(&mut self, whole: bool) -> Value {
        let mut spec = self.some(
            30,
            &[
                ("size", &[json!(1), json!(2), json!(3), json!(11), json!("x")]),
                ("name", &[json!("abc"), json!("bcd"), json!("X")]),
                ("mode", &[json!("a"), json!("b"), json!("c")]),
                ("flag", &[json!(true), json!(false)]),
                ("any", &[json!({"a": 1}), json!({"a": {"b": 2}}), json!([1, 2]), json!("s"), json!({})]),
                ("ios", &[json!(5), json!("5%")]),
                ("nul", &[json!(null), json!("x")]),
                ("list", &[json!(["a"]), json!(["b", "a"]), json!([])]),
                ("set", &[json!(["a"]), json!(["b", "a"]), json!(["c", "d", "a"]), json!([])]),
                ("atom", &[json!({"a": "1"}), json!({"a": "2", "b": "1"}), json!({})]),
                ("labels", &[json!({"a": "1"}), json!({"a": "2", "b": "1"}), json!({})]),
                ("nested", &[json!({"a": "e"}), json!({"b": "f"}), json!({})]),
            ],
        );
        if self.chance(30) {
            let item = |random: &mut Self| {
                random.some(50, &[("port", &[json!(1), json!(80)]), ("x", &[json!("1"), json!("2")])])
            };
            let items = self.items("name", &["a", "b", "c"], item);
            spec.insert("items".to_owned(), items);
        }
        if whole {
            spec.entry("size").or_insert(json!(1));
        }
        let name = format!("t{}", self.0.u32(1..=2));
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": self.meta(&name), "spec": spec})
    }

    fn container(random: &mut Self, whole: bool) -> Map<String, Value> {
        let mut container = random.some(
            25,
            &[
                ("command", &[json!(["a"]), json!(["a", "b"]), json!([])]),
                (
                    "resources",
                    &[
                        json!({}),
                        json!({"limits": {"cpu": "0.5"}}),
                        json!({"requests": {"memory": "1024Mi"}}),
                    ],
                ),
                (
                    "ports",
                    &[
                        json!([{"containerPort": 80}]),
                        json!([{"containerPort": 80, "protocol": "UDP"}, {"containerPort": 81}]),
                    ],
                ),
                ("livenessProbe", &[json!({"exec": {"command": ["a"]}}), json!({"httpGet": {"port": 80}})]),
                ("securityContext", &[json!({}), json!({"runAsUser": 0}), json!({"privileged": false})]),
            ],
        );
        if random.chance(40) {
            let env = random.items("name", &["A", "B", "C"], |random| {
                random.some(90, &[("value", &[json!("1"), json!("2")])])
            });
            container.insert("env".to_owned(), env);
        }
        if whole || random.chance(60) {
            container.insert("image".to_owned(), random.pick(&[json!("i:1"), json!("i:2"), json!("j")]));
        }
        container
    }

    fn deployment(&mut self, whole: bool) -> Value {
        let mut spec = self.some(
            25,
            &[
                ("replicas", &[json!(0), json!(1), json!(2), json!(-1)]),
                ("minReadySeconds", &[json!(0), json!(1)]),
                (
                    "strategy",
                    &[
                        json!({"type": "Recreate"}),
                        json!({"type": "RollingUpdate"}),
                        json!({"rollingUpdate": {"maxSurge": "10%"}}),
                    ],
                ),
                ("paused", &[json!(true), json!(false)]),
            ],
        );
        if whole || self.chance(50) {
            spec.insert("selector".to_owned(), json!({"matchLabels": {"a": "b"}}));
        }
        let mut template = json!({});
        if whole || self.chance(50) {
            template["metadata"] = json!({"labels": {"a": "b"}});
        }
        if whole || self.chance(70) {
            let mut pod = self.some(
                20,
                &[
                    ("nodeSelector", &[json!({"a": "1"}), json!({"b": "1"})]),
                    ("tolerations", &[json!([{"key": "a", "operator": "Exists"}]), json!([])]),
                    ("terminationGracePeriodSeconds", &[json!(0), json!(30)]),
                    ("hostNetwork", &[json!(false)]),
                    ("serviceAccountName", &[json!("other")]),
                ],
            );
            let containers = self.items("name", &["c1", "c2"], |random| Self::container(random, whole));
            pod.insert("containers".to_owned(), containers);
            template["spec"] = pod.into();
        }
        spec.insert("template".to_owned(), template);
        let name = format!("d{}", self.0.u32(1..=2));
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": self.meta(&name), "spec": spec})
    }

    fn config_map(&mut self) -> Value {
        let data = self.some(
            60,
            &[("a", &[json!("1"), json!("2")]), ("b", &[json!("1"), json!("2")]), ("c", &[json!("3")])],
        );
        let name = format!("c{}", self.0.u32(1..=2));
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": self.meta(&name), "data": data})
    }

    fn service(&mut self) -> Value {
        let mut spec = self.some(
            30,
            &[
                ("selector", &[json!({"a": "b"}), json!({"c": "1"})]),
                ("sessionAffinity", &[json!("None"), json!("ClientIP")]),
            ],
        );
        let ports = [
            json!([{"port": 80}]),
            json!([{"port": 80, "name": "p"}, {"port": 81, "name": "q", "protocol": "UDP"}]),
            json!([{"port": 81, "targetPort": "x"}]),
        ];
        spec.insert("ports".to_owned(), self.pick(&ports));
        let name = format!("s{}", self.0.u32(1..=2));
        json!({"apiVersion": "v1", "kind": "Service", "metadata": self.meta(&name), "spec": spec})
    }

    fn step(&mut self, namespace: &str) -> Value {
        let whole = self.chance(60);
        let (path, object) = match self.0.u32(0..6) {
            0 | 1 => (format!("/apis/example.com/v1/namespaces/{namespace}/things"), self.thing(whole)),
            2 | 3 => (format!("/apis/apps/v1/namespaces/{namespace}/deployments"), self.deployment(whole)),
            4 => (format!("/api/v1/namespaces/{namespace}/configmaps"), self.config_map()),
            _ => (format!("/api/v1/namespaces/{namespace}/services"), self.service()),
        };
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let manager = ["one", "two", "three"][self.0.usize(0..3)];
        match self.0.u32(0..100) {
            0..50 => {
                let force = if self.chance(40) { "&force=true" } else { "" };
                json!({"do": format!("PATCH {path}/{name}?fieldManager={manager}{force}"), "type": APPLY, "body": object})
            }
            50..60 => json!({"do": format!("POST {path}?fieldManager={manager}"), "body": object}),
            60..75 => {
                let kind = if path.contains("things") || self.chance(50) { MERGE } else { STRATEGIC };
                let body = json!({"spec": object["spec"], "data": object["data"]});
                let mut body = body.as_object().cloned().unwrap();
                body.retain(|_, value| !value.is_null());
                json!({"do": format!("PATCH {path}/{name}?fieldManager={manager}"), "type": kind, "body": body})
            }
            75..82 => json!({"do": format!("PUT {path}/{name}?fieldManager={manager}"), "body": object}),
            82..90 => json!({"do": format!("GET {path}/{name}")}),
            90..95 => {
                json!({"do": format!("PATCH {path}/{name}"), "type": MERGE, "body": {"metadata": {"finalizers": null}}})
            }
            _ => json!({"do": format!("DELETE {path}/{name}")}),
        }
    }
}
