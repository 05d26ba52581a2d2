use serde_json::json;

use super::*;
use crate::crd;

const OPERATOR: &str = "
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: things}
spec:
  version: 1.2.3-rc.1
  resources:
    - crd: crds/thing.yaml
      children: [{id: config, template: templates/config.yaml}]
";
const THING: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, plural: things, singular: thing, listKind: ThingList}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}}}}}}
";
const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {a: \"{{ spec.a }}\"}\n";

/// A package with this number of files whose content hardly compresses.
fn package(files: usize) -> Package {
    let mut block = Sha256::digest(b"seed");
    let mut texts = vec![
        ("operator.yaml".to_owned(), OPERATOR.to_owned()),
        ("crds/thing.yaml".to_owned(), THING.to_owned()),
        ("templates/config.yaml".to_owned(), CONFIG.to_owned()),
    ];
    for number in 0..files {
        let mut text = String::from("# ");
        while text.len() < 250_000 {
            block = Sha256::digest(block);
            text.push_str(&HEXLOWER.encode(&block));
        }
        texts.push((format!("templates/note-{number}.yaml"), text));
    }
    compile(&Files::from_texts("p", texts)).map_err(|errors| errors[0].to_string()).unwrap().0
}

#[test]
fn stored_package_is_restored_unchanged() {
    for files in [0, 4] {
        let package = package(files);
        let (revision, parts) = pack(&package).unwrap();
        assert_eq!(parts.len() > 1, files > 0);
        assert!(parts.iter().all(|part| part.len() <= PART_BYTES));
        let restored = restore(&revision, &parts).unwrap();
        assert_eq!((restored.revision(), &restored.digest), (package.revision(), &package.digest));
        let name = format!("things-{}", &package.digest[..10]);
        assert_eq!((revision.name(), name_of("things", &package.revision())), (name.clone(), name));
    }
}

#[test]
fn stored_revision_is_read_back_from_objects() {
    let (revision, parts) = pack(&package(2)).unwrap();
    let object = objects::revision(&revision, "operetta-system");
    let name = object["metadata"]["name"].as_str().unwrap();
    assert_eq!(StoredRevision::parse(name, &object["spec"]), Ok(revision.clone()));
    for (index, data) in parts.iter().enumerate() {
        let part = objects::part(&revision, index, data, "n", Some("uid"));
        assert_eq!(part["metadata"]["name"], revision.parts[index].name);
        assert!(part.to_string().len() < 300 << 10);
        assert_eq!(objects::part_data(&part), Ok(data.clone()));
    }
    assert!(objects::part_data(&json!({"binaryData": {"part": "?"}})).is_err());
    let crd = objects::crd();
    assert_eq!(crd::check(&crd), Vec::new());
    assert_eq!(crd::kind(&crd), Some(objects::kind()));
    let schema = crd::schema_of(&crd, "v1alpha1").unwrap();
    assert!(crd::validate(schema, &object).is_empty(), "{:?}", crd::validate(schema, &object));
    let mut wrong = object.clone();
    wrong["spec"]["digest"] = "abc".into();
    assert!(!crd::validate(schema, &wrong).is_empty());
}

/// A change of a spec, and the words of the error that it causes.
type SpecChange<'a> = (&'a str, &'a dyn Fn(&mut Value));

#[test]
fn invalid_spec_is_refused() {
    let (revision, _) = pack(&package(0)).unwrap();
    let name = revision.name();
    let spec = json!(revision);
    let parse = |change: &dyn Fn(&mut Value)| {
        let mut spec = spec.clone();
        change(&mut spec);
        StoredRevision::parse(&name, &spec).unwrap_err().to_string()
    };
    let newer = parse(&|spec| {
        *spec = json!({"format": 7, "operetta": "9.0.0", "files": []});
    });
    assert!(newer.starts_with("Operetta 9.0.0 has written it in format 7"), "{newer}");
    let cases: [SpecChange<'_>; 9] = [
        ("missing field `parts`", &|spec| {
            *spec =
                json!({"package": "things", "version": "1.0.0", "digest": "", "format": 1, "operetta": ""});
        }),
        ("there is no format 0", &|spec| spec["format"] = 0.into()),
        ("semantic version", &|spec| spec["version"] = "latest".into()),
        ("a digest is not", &|spec| spec["digest"] = "../../secrets".into()),
        ("a digest is not", &|spec| spec["parts"][0]["digest"] = "".into()),
        ("has the name", &|spec| spec["package"] = "other".into()),
        ("must have 1 to 50", &|spec| spec["parts"] = json!([])),
        ("must have 1 to 50", &|spec| {
            let part = spec["parts"][0].clone();
            spec["parts"] = vec![part; 51].into();
        }),
        ("must have the names", &|spec| spec["parts"][0]["name"] = "operetta-generated-data".into()),
    ];
    for (expected, change) in cases {
        let error = parse(change);
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// A revision of a handmade archive, with matching digests.
fn forged(archive: &[u8]) -> (StoredRevision, Vec<Vec<u8>>) {
    let compressed = compress_to_vec_zlib(archive, 1);
    let parts: Vec<Vec<u8>> = compressed.chunks(PART_BYTES).map(<[u8]>::to_vec).collect();
    let (mut revision, _) = pack(&package(0)).unwrap();
    revision.digest = sha256(archive);
    let name = revision.name();
    let part =
        |(index, data): (usize, &Vec<u8>)| Part { name: part_name(&name, index), digest: sha256(data) };
    revision.parts = parts.iter().enumerate().map(part).collect();
    (revision, parts)
}

fn entry(path: &[u8], content: &[u8]) -> Vec<u8> {
    let length = |part: &[u8]| (part.len() as u64).to_le_bytes();
    [&length(path)[..], path, &length(content), content].concat()
}

#[test]
fn hostile_archives_are_refused() {
    let huge = [&u64::MAX.to_le_bytes()[..], b"operator.yaml"].concat();
    let deep = format!("crds/{}x", "a/".repeat(16));
    let many: Vec<u8> = (0..=2_000).flat_map(|n| entry(format!("crds/{n:04}").as_bytes(), b"")).collect();
    let large = vec![b'a'; (4 << 20) + 1];
    for (archive, expected) in [
        (entry(b"../operator.yaml", b""), "is no path"),
        (entry(b"/etc/passwd", b""), "is no path"),
        (entry(b"templates/../../x", b""), "is no path"),
        (entry(b"templates//x", b""), "is no path"),
        (entry(b"templates/", b""), "is no path"),
        (entry(b"templates", b""), "is no path"),
        (entry(b"templates/.x", b""), "is no path"),
        (entry(b"templates/a\\..\\x", b""), "is no path"),
        (entry(b"templates/a\0", b""), "is no path"),
        (entry(b"README.md", b""), "is no path"),
        (entry(b"", b""), "is no path"),
        (entry(deep.as_bytes(), b""), "is no path"),
        (entry(b"templates/\xff", b""), "not UTF-8"),
        (entry(b"operator.yaml", b"\xff"), "not UTF-8"),
        ([entry(b"crds/a", b""), entry(b"crds/a", b"")].concat(), "not in order"),
        ([entry(b"operator.yaml", b""), entry(b"crds/a", b"")].concat(), "not in order"),
        (entry(b"operator.yaml", &large), "larger than 4 MiB"),
        (many, "more than 2000"),
        (huge, "ends within"),
        (b"abc".to_vec(), "ends within"),
        (entry(b"operator.yaml", b"abc")[..20].to_vec(), "ends within"),
        (vec![0; 64 << 20], "exceeded the specified limit"),
    ] {
        let (revision, parts) = forged(&archive);
        let error = unpack(&revision, &parts).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let (revision, parts) = forged(&entry(b"operator.yaml", b"a: b"));
    assert!(unpack(&revision, &parts).is_ok());
    assert!(
        restore(&revision, &parts)
            .is_err_and(|error| matches!(error, StoreError::Refused(_)) && error.is_final())
    );
}

#[test]
fn altered_parts_are_refused() {
    let (revision, parts) = pack(&package(2)).unwrap();
    assert!(parts.len() > 1);
    let refused = |revision: &StoredRevision, parts: &[Vec<u8>]| restore(revision, parts).unwrap_err();
    let mut altered = parts.clone();
    altered[1][7] ^= 1;
    assert_eq!(refused(&revision, &altered), StoreError::PartAltered(revision.parts[1].name.clone()));
    assert!(matches!(refused(&revision, &parts[..1]), StoreError::Archive(_)));
    let mut swapped = parts.clone();
    swapped.swap(0, 1);
    assert!(matches!(refused(&revision, &swapped), error @ StoreError::PartAltered(_) if !error.is_final()));
    // The part and its digest are altered together.
    let mut other = revision.clone();
    other.parts[1].digest = sha256(&altered[1]);
    assert!(restore(&other, &altered).is_err());
    let mut other = revision.clone();
    other.digest = "0".repeat(64);
    assert_eq!(refused(&other, &parts), StoreError::OtherFiles);
    let other = StoredRevision { version: "1.2.4".to_owned(), ..revision.clone() };
    assert!(matches!(refused(&other, &parts), StoreError::Invalid(_)));
}
