//! Tests of worlds, with a few objects instead of an API.

mod docs;
mod etcd;
mod mistakes;
mod packages;
mod rules;

use std::collections::BTreeMap;

use jiff::Timestamp;
use operetta_lang::diag::Source;
use serde_json::{Value, json};

use super::World;
use super::programs::{Call, CallResponse, Course, Exec, ExecResult, Objects, Programs};

/// Objects by kind, namespace and name.
#[derive(Debug, Default)]
struct Fake(BTreeMap<(String, String, String), Value>);

fn key(kind: &str, namespace: &str, name: &str) -> (String, String, String) {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

impl Fake {
    fn put(&mut self, object: Value) {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.0.insert((text("/kind"), text("/metadata/namespace"), text("/metadata/name")), object);
    }

    fn remove(&mut self, kind: &str, namespace: &str, name: &str) -> Value {
        self.0.remove(&key(kind, namespace, name)).expect("it exists")
    }
}

impl Objects for Fake {
    fn object(&self, _: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.0.get(&key(kind, namespace, name)).cloned()
    }

    fn objects(&self, _: &str, kind: &str, namespace: &str) -> Vec<Value> {
        let is =
            |(of, at, _): &&(String, String, String)| of == kind && (namespace.is_empty() || at == namespace);
        self.0.iter().filter(|(key, _)| is(key)).map(|(_, object)| object.clone()).collect()
    }
}

/// A world in play.
#[derive(Debug)]
struct Play {
    world: World,
    objects: Fake,
    seconds: i64,
}

impl Play {
    /// A world from its rules, without the first lines.
    fn of(text: &str) -> Self {
        Self::read("w.yaml", &format!("apiVersion: operetta.dev/v1alpha1\nkind: World\n{text}"))
    }

    fn read(name: &str, text: &str) -> Self {
        let world = World::parse(&[Source::new(name, text)]);
        let world = world.unwrap_or_else(|errors| {
            panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
        });
        Self { world, objects: Fake::default(), seconds: 0 }
    }

    /// The world of a package that ships, read while the test runs.
    fn package(name: &str) -> Self {
        let path = format!("operators/{name}/tests/world.yaml");
        let file = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
        Self::read(&path, &std::fs::read_to_string(file).unwrap())
    }

    fn now(&mut self) -> Timestamp {
        self.seconds += 1;
        Timestamp::from_second(self.seconds).unwrap()
    }

    /// Stores a pod and starts it.
    fn start(&mut self, pod: &Value) -> Course {
        self.objects.put(pod.clone());
        let now = self.now();
        self.world.start(pod, &self.objects, now)
    }

    /// Stops a pod and deletes it.
    fn stop(&mut self, namespace: &str, name: &str) {
        let (pod, now) = (self.objects.remove("Pod", namespace, name), self.now());
        self.world.stop(&pod, &self.objects, now);
    }

    fn ready(&mut self, name: &str) -> bool {
        let (pod, now) = (self.objects.object("v1", "Pod", "n", name).unwrap(), self.now());
        self.world.ready(&pod, &self.objects, now)
    }

    fn exec(&mut self, name: &str, command: &str) -> ExecResult {
        let (pod, now) = (self.objects.object("v1", "Pod", "n", name).unwrap(), self.now());
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let exec = Exec { pod: &pod, container: "c", command: &command, stdin: b"", now };
        self.world.exec(&exec, &self.objects)
    }

    /// What a command prints that succeeds.
    fn prints(&mut self, name: &str, command: &str) -> String {
        let result = self.exec(name, command);
        assert_eq!((result.exit_code, &*result.stderr), (0, ""), "{command}");
        result.stdout
    }

    fn call(&mut self, method: &str, url: &str, key: &str, body: &Value) -> Result<CallResponse, String> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("idempotency-key".to_owned(), key.to_owned())];
        let headers = if key.is_empty() { &[][..] } else { &headers[..] };
        let now = self.now();
        self.world.call(&Call { pod: None, method, url, headers, body: body.as_bytes(), now }, &self.objects)
    }

    /// The body of a pod's answer.
    fn asks(&mut self, name: &str, url: &str) -> Result<String, String> {
        let (pod, now) = (self.objects.object("v1", "Pod", "n", name).unwrap(), self.now());
        let call = Call { pod: Some(&pod), method: "GET", url, headers: &[], body: b"", now };
        let reply = self.world.call(&call, &self.objects)?;
        Ok(String::from_utf8(reply.body).unwrap())
    }

    /// Status and body of an answer.
    fn answer(&mut self, method: &str, url: &str, body: &Value) -> (u16, Value) {
        let reply = self.call(method, url, "", body).unwrap();
        let text = String::from_utf8(reply.body).unwrap();
        (reply.status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The only fault.
    fn fault(&self) -> String {
        let [fault] = self.world.faults() else { panic!("{:?}", self.world.faults()) };
        fault.to_string()
    }
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
        "spec": {"containers": [{"name": "c"}]}})
}
