//! Packages and instances that a generator makes from a seed: input that expands enormously, deep and wide
//! trees, odd names and numbers, long lines, cycles, aliases, mutations. None may make lint or render panic,
//! hang or use much memory.

#![allow(clippy::format_push_string, clippy::assigning_clones, clippy::too_many_lines)]

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};

use super::limits::peak_of;
use crate::support::ControlPlane;
use crate::support::ext::{CONFIG_MAP, LONG, find_in, fixture, put_file};
use crate::support::{OPERETTA, Operetta, eventually, kubectl_of};

/// How many generated packages are linted and rendered.
const CASES: u64 = 300;
/// Peak resident memory of lint and render, in KiB.
const TOOL: u64 = 100 << 10;
/// Peak resident memory of the manager, in KiB.
const MANAGER: u64 = 150 << 10;
/// How many instances the manager gets.
const INSTANCES: u64 = 40;
/// Seeds of the packages that the manager loads or refuses, beside the package of the instances.
const PACKAGES: [u64; 7] = [0, 1, 3, 4, 5, 6, 9];
/// A command that takes longer counts as hanging, even unoptimised on a busy machine.
const HANGS: Duration = Duration::from_secs(120);

type Files = Vec<(String, Vec<u8>)>;

/// A package that uses most features; the words in capitals are placeholders.
const OPERATOR: &str = "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: generated}
spec:
  version: 0.1.0
  defaults: {a: 1}
  resources:
    - crd: crds/crd.yaml
      let: {one: \"{{ spec.text | default('x') }}\", two: \"{{ let.one ~ 'y' }}\"}
      refs:
        - {id: other, apiVersion: v1, kind: ConfigMap, name: \"{{ name }}-other\", optional: true}
      children:
        - id: a
          template: templates/a.yaml
          when: EXPRESSION
        - id: m
          template: templates/m.yaml
          forEach: {in: \"range(spec.size | default(2))\", as: i, key: i}
      status: {text: let.two}
      conditions:
        - {type: Odd, when: spec.size is defined, reason: Odd, message: \"{{ spec.size }}\"}
";

const CRD: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: generateds.fixtures.operetta.dev}
spec:
  group: fixtures.operetta.dev
  scope: Namespaced
  names: {kind: Generated, listKind: GeneratedList, plural: generateds, singular: generated}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

const TEMPLATE: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}-KEY\"}
data:
  text: \"{{ let.two }}\"
  all: {{ spec | to_json }}
BODY";

const PARTIAL: &str = "{{ spec.text | default('none') }}: value\n";

/// Tokens from which expressions are composed in random order.
const TOKENS: [&str; 40] = [
    "spec",
    "spec.size",
    "spec.text",
    "let.two",
    "children.a",
    "refs.other",
    "self",
    "1",
    "0.5",
    "-1",
    "'x'",
    "\"",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    ":",
    "|",
    "~",
    "+",
    "*",
    "**",
    "==",
    "<",
    "and",
    "not",
    "in",
    "is",
    "defined",
    "default",
    "range",
    "join",
    "if",
    "else",
    "null",
    "10 ** 30",
];

const ODD: [&str; 16] = [
    "",
    " ",
    "a/b",
    "..",
    "%2F",
    "?",
    "#x",
    "\u{1b}[31m",
    "\u{7}",
    "\u{202e}abc",
    "\u{200b}",
    "\u{1F469}\u{200D}\u{1F680}",
    "\u{0}",
    "A",
    "-",
    "\u{10F7A1}0\u{10F7A2}",
];

const NUMBERS: [&str; 14] = [
    "1e400",
    "-1e400",
    "0x7fffffffffffffffff",
    "99999999999999999999999999999999999",
    "-9223372036854775808",
    "18446744073709551616",
    ".inf",
    "-.inf",
    ".nan",
    "0o777",
    "0777",
    "1_000",
    "1e-400",
    "-0.0",
];

const BOMBS: [&str; 12] = [
    "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10 ** 12 }}",
    "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "  many: {{ [{'a': 1}] * 100000 }}",
    "{% for i in range(60000) %}\n  k{{ i }}: {a: {{ i }}}{% endfor %}",
    "{% for i in range(100000) %}\n  k{{ i }}: []{% endfor %}",
    "{% macro m(x) %}{{ m([x]) ~ m(x) }}{% endmacro %}  m: {{ m(1) }}",
    "  p: {{ partial('a.yaml') }}",
    "  w: {{ 'x' | indent(10 ** 14) }}",
    "  f: {{ '%999999999d' | format(1) }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}  l: {{ ns.l }}",
    "  s: {{ range(400000) | map('string') | sort | join(',') }}",
];

/// Texts that a mutation inserts.
const PARTS: [&str; 7] = ["{{ ", " }}", "{% for x in y %}", "\n- ", "&a *a ", "\r\n", "<<: "];

fn odd(rng: &mut Rng) -> &'static str {
    ODD[rng.usize(..ODD.len())]
}

/// A random value, deep or wide, with odd strings and numbers.
fn tree(rng: &mut Rng, depth: usize) -> Value {
    match rng.u8(..if depth == 0 { 4 } else { 7 }) {
        0 => json!(rng.i64(..)),
        1 => json!(odd(rng)),
        2 => json!(rng.f64() * 1e300),
        3 => Value::Null,
        4 => (0..rng.usize(..6)).map(|_| tree(rng, depth - 1)).collect(),
        5 => json!({odd(rng): tree(rng, depth - 1), "x": tree(rng, depth - 1)}),
        _ => (0..rng.usize(..50)).fold(json!({}), |mut map, i| {
            map[format!("{}{i}", odd(rng))] = json!(i);
            map
        }),
    }
}

/// The spec of an instance.
fn spec(rng: &mut Rng) -> Value {
    let mut spec = match rng.u8(..8) {
        0 => json!({"size": rng.usize(..1_100)}),
        1 => json!({"text": "x".repeat(rng.usize(..900 << 10))}),
        2 => json!({"list": vec![json!({"a": 1}); rng.usize(..40_000)]}),
        3 => json!({"list": vec![0; rng.usize(..300_000)]}),
        4 => json!({"text": odd(rng), "size": rng.i64(..)}),
        5 => {
            let deep = (0..rng.usize(..90))
                .fold(json!(1), |value, i| if i % 2 == 0 { json!([value]) } else { json!({"d": value}) });
            json!({"deep": deep})
        }
        6 => json!({"size": odd(rng), "text": tree(rng, 3)}),
        _ => json!({"tree": tree(rng, 6)}),
    };
    if rng.u8(..4) == 0 {
        spec["size"] = json!(20);
        spec["text"] = json!("y".repeat(rng.usize(..200 << 10)));
    }
    spec
}

fn soup(rng: &mut Rng) -> String {
    (0..rng.usize(1..30)).fold(String::new(), |text, _| text + TOKENS[rng.usize(..TOKENS.len())] + " ")
}

fn aliases(rng: &mut Rng) -> String {
    let mut text = "x0: &x0 [lol, lol]\n".to_owned();
    for i in 1..rng.usize(2..40) {
        let before = i - 1;
        let _ = writeln!(
            text,
            "x{i}: &x{i} [*x{before}, *x{before}, *x{before}, *x{before}, *x{before}, *x{before}]"
        );
    }
    text
}

/// Changes bytes at random.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..12) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.usize(..bytes.len());
        let to = (at + rng.usize(..40)).min(bytes.len());
        match rng.u8(..6) {
            0 => bytes[at] = rng.u8(..),
            1 => drop(bytes.drain(at..to)),
            2 => {
                let part = bytes[at..to].to_vec();
                bytes.splice(at..at, part);
            }
            3 => drop(bytes.splice(at..at, odd(rng).bytes())),
            4 => {
                let part = PARTS[rng.usize(..PARTS.len())];
                drop(bytes.splice(at..at, part.bytes()));
            }
            _ => bytes.truncate(at),
        }
    }
}

/// A package and an instance of that seed.
fn case(seed: u64) -> (Files, Vec<u8>) {
    let mut rng = Rng::with_seed(seed);
    let rng = &mut rng;
    let mut operator = OPERATOR.to_owned();
    let mut crd = CRD.to_owned();
    let mut body = String::new();
    let mut key = "m-{{ i }}".to_owned();
    let mut partial = PARTIAL.to_owned();
    let mut expression = "true".to_owned();
    match seed % 12 {
        0 => {
            operator = operator.replace(
                ["generated", "one", "a\n", "Odd"][rng.usize(..4)],
                &serde_json::to_string(odd(rng)).unwrap(),
            );
        }
        1 => {
            let levels = rng.usize(50..20_000);
            let (open, close) = [("[", "]"), ("{a: ", "}"), ("- ", "")][rng.usize(..3)];
            let deep = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            match rng.u8(..3) {
                0 => operator += &format!("  deep: {deep}\n"),
                1 => crd += &format!("            deep: {deep}\n"),
                _ => body = format!("  deep: {deep}\n"),
            }
        }
        2 => {
            let wide: String = (0..rng.usize(1_000..20_000)).fold(String::new(), |mut text, i| {
                let _ = writeln!(
                    text,
                    "            f{i}: {{type: string, description: \"{}\"}}",
                    odd(rng).escape_default()
                );
                text
            });
            crd += &wide;
        }
        3 => {
            // One line of hundreds of kilobytes with a mistake at its end.
            let fields: String = (0..rng.usize(1_000..8_000))
                .fold(String::new(), |text, i| text + &format!("\"f{i}\":{{\"type\":\"string\"}},"));
            crd = CRD.replace(
                "spec: {type: object,",
                &format!(
                    "spec: {{type: object, properties: {{{fields}last: {{type: strin{}}}}},",
                    odd(rng).escape_default()
                ),
            );
        }
        4 => match rng.u8(..3) {
            0 => operator += &aliases(rng),
            1 => crd += &aliases(rng),
            _ => body = aliases(rng).replace('x', "  x"),
        },
        5 => {
            operator = operator.replace("{{ let.one ~ 'y' }}", "{{ let.two ~ let.two }}");
            partial = "{{ partial('p.yaml') }}: {{ partial('p.yaml') }}\n".to_owned();
            body = "  p: {{ partial('p.yaml') }}\n".to_owned();
        }
        6 => {
            let number = NUMBERS[rng.usize(..NUMBERS.len())];
            operator = operator.replace("{a: 1}", &format!("{{a: {number}}}"));
            body = format!("  n: {number}\n  q: {{{{ {number} * {number} }}}}\n");
        }
        7 | 8 => {
            body = BOMBS[rng.usize(..BOMBS.len())].to_owned() + "\n";
            // Only some have many children: unoptimised each takes seconds.
            key = if seed % 48 == 7 { "{{ i }}".to_owned() } else { key };
        }
        9 => expression = serde_json::to_string(&soup(rng)).unwrap(),
        10 => body = format!("  t: {{{{ {} }}}}\n  u: \"{{{{ {} }}}}\"\n", soup(rng), soup(rng)),
        _ => key = odd(rng).escape_default().to_string(),
    }
    let operator = operator.replace("EXPRESSION", &expression);
    let template = |id: &str| TEMPLATE.replace("KEY", id).replace("BODY", &body);
    let mut files: Files = vec![
        ("operator.yaml".to_owned(), operator.into_bytes()),
        ("crds/crd.yaml".to_owned(), crd.into_bytes()),
        ("templates/a.yaml".to_owned(), template("a").into_bytes()),
        ("templates/m.yaml".to_owned(), template(&key).into_bytes()),
        ("templates/p.yaml".to_owned(), partial.into_bytes()),
    ];
    let spec = if seed % 48 == 7 { json!({"size": 1_000}) } else { spec(rng) };
    let mut instance = json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Generated",
        "metadata": {"name": if rng.u8(..6) == 0 { odd(rng) } else { "a" }}, "spec": spec})
    .to_string()
    .into_bytes();
    if seed % 5 == 4 {
        let file = rng.usize(..files.len());
        mutate(rng, &mut files[file].1);
        if rng.bool() {
            mutate(rng, &mut instance);
        }
    }
    (files, instance)
}

fn write(folder: &Path, files: &Files) {
    for (path, text) in files {
        put_file(&folder.join(path), text);
    }
}

/// Runs a command of the tool. Returns its peak memory, or what went wrong.
fn run(args: &[&str], folder: &Path) -> Result<u64, String> {
    let (out, err) = (folder.join("out"), folder.join("err"));
    let file = |path: &Path| std::fs::File::create(path).unwrap();
    let mut child = Command::new(OPERETTA)
        .args(args)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err))
        .spawn()
        .unwrap();
    let started = Instant::now();
    let executable = format!("/proc/{}/exe", child.id());
    let mut peak = 0;
    let status = loop {
        // Between fork and exec the child's memory is that of this process.
        if std::fs::read_link(&executable).is_ok_and(|path| path == Path::new(OPERETTA)) {
            peak = peak.max(peak_of(child.id()).unwrap_or(0));
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > HANGS {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("{args:?} hangs"));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let told = String::from_utf8_lossy(&std::fs::read(&err).unwrap()).into_owned();
    let shown: String = told.chars().take(2_000).collect();
    if !matches!(status.code(), Some(0..=2)) || told.contains("panicked") {
        return Err(format!("{args:?} ends with {status}: {shown}"));
    }
    let is_unsafe = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    if let Some(c) = told.chars().find(|c| is_unsafe(*c)) {
        return Err(format!("{args:?} prints {c:?}: {}", shown.escape_debug()));
    }
    if peak > TOOL {
        return Err(format!("{args:?} takes {peak} KiB: {shown}"));
    }
    Ok(peak)
}

#[test]
fn generated_input_neither_crashes_nor_hangs_lint_and_render() {
    let (next, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= CASES {
                return failed;
            }
            let folder = tempfile::tempdir().unwrap();
            let (files, instance) = case(seed);
            write(folder.path(), &files);
            let path = folder.path().join("instance.yaml");
            std::fs::write(&path, instance).unwrap();
            let (package, instance) = (folder.path().to_str().unwrap(), path.to_str().unwrap());
            for args in [&["lint", package][..], &["render", package, "-f", instance]] {
                match run(args, folder.path()) {
                    Ok(peak) => {
                        most.fetch_max(peak, Ordering::Relaxed);
                    }
                    Err(error) => failed.push(format!("seed {seed}: {error}")),
                }
            }
        }
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    println!("{} KiB at most", most.into_inner());
    assert!(failed.is_empty(), "{} of {CASES}:\n{}", failed.len(), failed.join("\n"));
}

/// The seed that stands for the package of the instances, which no mutation harms.
const UNHARMED: u64 = 1_000;

/// Writes that package and those of [`PACKAGES`] into folders of their own, each with a kind of its own.
/// Returns the folders.
fn packages(folder: &Path) -> Vec<String> {
    let renamed = |seed: u64, mut files: Files| {
        for (_, text) in &mut files {
            let Ok(own) = std::str::from_utf8(text) else { continue };
            let own = own.replace("Generated", &format!("Generated{seed}"));
            let own = own.replace("generateds", &format!("generated{seed}s"));
            let own = own.replace("singular: generated", &format!("singular: generated{seed}"));
            *text = own
                .replace("metadata: {name: generated}", &format!("metadata: {{name: generated-{seed}}}"))
                .into_bytes();
        }
        let folder = folder.join(seed.to_string());
        write(&folder, &files);
        folder.to_str().unwrap().to_owned()
    };
    let unharmed = [
        ("operator.yaml", OPERATOR.replace("EXPRESSION", "spec.size is defined")),
        ("crds/crd.yaml", CRD.to_owned()),
        ("templates/a.yaml", TEMPLATE.replace("KEY", "a").replace("BODY", "")),
        ("templates/m.yaml", TEMPLATE.replace("KEY", "m-{{ i }}").replace("BODY", "")),
    ];
    let unharmed = unharmed.map(|(path, text)| (path.to_owned(), text.into_bytes())).to_vec();
    let broken = PACKAGES.map(|seed| renamed(seed, case(seed).0));
    std::iter::once(renamed(UNHARMED, unharmed)).chain(broken).collect()
}

#[tokio::test]
async fn generated_input_neither_crashes_nor_hangs_the_manager() {
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::embedded().await;
    let packages = packages(folder.path());
    let echo = fixture("echo");
    let mut args = vec!["run", "--leader-elect=false", &echo];
    args.extend(packages.iter().map(String::as_str));
    let manager = Operetta::run(&plane, &args);
    let kind = format!("Generated{UNHARMED}");
    let crd = format!("crd/generated{UNHARMED}s.fixtures.operetta.dev");
    eventually(&crd, LONG, async || {
        let wait =
            kubectl_of(&plane, &["wait", "--for=condition=Established", "--timeout=1s", &crd], "").await;
        if wait.status.success() { Ok(()) } else { Err(manager.output()) }
    })
    .await;
    let loaded = peak_of(manager.pid()).unwrap();
    let mut names = Vec::new();
    for seed in 0..INSTANCES {
        let spec = spec(&mut Rng::with_seed(seed));
        let name = format!("g-{seed}");
        let instance = json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        // The server refuses some of the instances.
        if kubectl_of(&plane, &["create", "-f", "-"], &instance.to_string()).await.status.success() {
            names.push(name);
        }
    }
    assert!(names.len() > 30, "{names:?}");
    // The manager reconciles each: the instance gets conditions.
    for name in &names {
        eventually(name, LONG, async || {
            let path = "jsonpath={.status.conditions}";
            let live = kubectl_of(&plane, &["get", &kind, name, "-o", path], "").await;
            let stands = live.ok();
            if stands.is_empty() { Err(manager.output()) } else { Ok(()) }
        })
        .await;
    }
    let good = json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Echo", "metadata": {"name": "good"}, "spec": {"text": "x"}});
    kubectl_of(&plane, &["apply", "-f", "-"], &good.to_string()).await.ok();
    eventually("good", LONG, async || {
        find_in(&plane, CONFIG_MAP, Some("default"), "good").await.ok_or_else(|| manager.output())
    })
    .await;
    let output = manager.output();
    assert!(!output.contains("panicked"), "{output}");
    let peak = peak_of(manager.pid()).unwrap();
    println!("{peak} KiB at most, {loaded} KiB once the packages are loaded");
    assert!(peak < MANAGER, "{peak} KiB, {loaded} KiB once the packages are loaded");
    plane.stop().await;
}
