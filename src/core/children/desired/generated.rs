//! The generated values of a rendered Secret: which key keeps which value, and which keys and texts repeat it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::children::model::{Generated, Secret, TextPart};
use crate::children::names;
use crate::template::{GeneratedPart, generated_parts, holds_mark, take_certificate};

/// A rendered value that has generated values in it.
struct Found {
    field: &'static str,
    key: String,
    parts: Vec<GeneratedPart>,
}

/// Takes the markers of generated values out of a Secret and leaves empty texts in their place, so that the fields are
/// ours. A password is kept by the first key that it is the whole value of, in `stringData` or `data`, which mean the
/// same for it; a certificate takes the place of either map. Other keys and texts repeat what these keys have.
///
/// # Errors
/// A value has no key that keeps it, or is where no value can be generated.
pub(super) fn take(root: &mut Map<String, Value>) -> Result<Vec<Generated>, String> {
    let (mut generated, mut found) = (Vec::new(), Vec::new());
    let mut certificates = BTreeSet::new();
    for field in ["stringData", "data"] {
        let Some(Value::Object(map)) = root.get_mut(field) else { continue };
        if let Some((number, certificate)) = take_certificate(map) {
            certificates.insert(number);
            let made = [Secret::Certificate(Arc::new(certificate)), Secret::PrivateKey];
            for (key, what) in names::TLS.into_iter().zip(made) {
                let own = [GeneratedPart::Half { number, key: key.to_owned() }];
                let before = map.insert(key.to_owned(), "".into());
                if before.is_some_and(|before| generated_parts(&before).as_deref() != Some(&own[..])) {
                    return Err(format!("{field} has a {key} beside a certificate, which has one"));
                }
                generated.push(Generated { key: key.to_owned(), what });
            }
        }
        for (key, value) in map.iter_mut() {
            if let Some(parts) = generated_parts(value) {
                *value = "".into();
                found.push(Found { field, key: key.clone(), parts });
            }
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    let mut kept: BTreeMap<u64, String> = BTreeMap::new();
    for Found { key, parts, .. } in &found {
        if let [GeneratedPart::Password { number, length }] = parts.as_slice()
            && let Entry::Vacant(entry) = kept.entry(*number)
        {
            entry.insert(key.clone());
            generated.push(Generated { key: key.clone(), what: Secret::Password(*length) });
        }
    }
    for one in found {
        let is_kept = matches!(one.parts.as_slice(), [GeneratedPart::Password { number, .. }] if kept.get(number) == Some(&one.key));
        if !is_kept {
            let parts = repeated(&one, &kept, &certificates)?;
            generated.push(Generated { key: one.key, what: Secret::Text(parts) });
        }
    }
    generated.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(pair) = generated.windows(2).find(|pair| pair[0].key == pair[1].key) {
        return Err(format!("data and stringData both have a generated {}", pair[0].key));
    }
    if let Some(key) = root.iter().find_map(|(key, value)| holds_mark(value).then_some(key)) {
        return Err(format!(
            "a password can only be a value of stringData or data, or in a text there, and a certificate only the whole of either; there is one in {key}"
        ));
    }
    Ok(generated)
}

/// The parts of a text: generated values are those of the keys that keep them.
fn repeated(
    found: &Found,
    kept: &BTreeMap<u64, String>,
    certificates: &BTreeSet<u64>,
) -> Result<Vec<TextPart>, String> {
    let Found { field, key, parts } = found;
    if *field == "data" && parts.len() > 1 {
        return Err(format!(
            "data.{key} is a text with a generated value, and data has base64: write it in stringData"
        ));
    }
    let part = |part: &GeneratedPart| match part {
        GeneratedPart::Literal(text) => Ok(TextPart::Literal(text.clone())),
        GeneratedPart::Password { number, .. } => match kept.get(number) {
            Some(key) => Ok(TextPart::Value(key.clone())),
            None => Err(format!(
                "{field}.{key} has a generated password that must be the whole value of another key, too, where it is kept: add `password: {{{{ p }}}}`"
            )),
        },
        GeneratedPart::Half { number, key } if certificates.contains(number) => {
            Ok(TextPart::Value(key.clone()))
        }
        GeneratedPart::Half { .. } => Err(format!(
            "{field}.{key} has a part of a certificate that must be in this Secret, too, as the whole of stringData or data"
        )),
    };
    parts.iter().map(part).collect()
}

/// Hash of a body with the texts that it leaves open. Without texts it is that of the body.
pub(super) fn hash(body: &Value, generated: &[Generated]) -> String {
    let part = |part: &TextPart| match part {
        TextPart::Literal(text) => json!(text),
        TextPart::Value(key) => json!([key]),
    };
    let texts = generated.iter().filter_map(|one| match &one.what {
        Secret::Text(parts) => Some(json!([one.key, parts.iter().map(part).collect::<Vec<_>>()])),
        Secret::Password(_) | Secret::Certificate(_) | Secret::PrivateKey => None,
    });
    let texts: Vec<Value> = texts.collect();
    let whole = names::value_hash(body, 16);
    if texts.is_empty() { whole } else { names::value_hash(&json!([whole, texts]), 16) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Source;
    use crate::template::{Engine, Limits, Scope};

    /// A rendered Secret, and what is generated in it.
    fn taken(text: &str) -> (Value, Result<Vec<Generated>, String>) {
        let path = "templates/a.yaml";
        let (engine, errors) =
            Engine::compile(&[(path.to_owned(), Source::new(path, text))], Limits::default());
        assert!(errors.is_empty(), "{errors:?}");
        let rendered = engine.render(engine.template(path).unwrap(), &Scope::new());
        let Value::Object(mut root) = rendered.map_err(|error| error.to_string()).unwrap() else {
            panic!("no map")
        };
        let generated = take(&mut root);
        (root.into(), generated)
    }

    fn text(parts: &[TextPart]) -> Secret {
        Secret::Text(parts.to_vec())
    }

    fn literal(text: &str) -> TextPart {
        TextPart::Literal(text.to_owned())
    }

    fn value(key: &str) -> TextPart {
        TextPart::Value(key.to_owned())
    }

    #[test]
    fn one_value_is_kept_once_and_repeated_elsewhere() {
        let (root, generated) = taken(
            "{% set p = password(20) %}\nstringData:\n  url: \"db://u:{{ p }}@h?x={{ p }}\"\n  password: {{ p }}\n  also: \"{{ p }}\"\n  \
             conf: |\n    pass = {{ p }}\n  other: {{ password(9) }}\n  plain: x\n",
        );
        let generated: Vec<(String, Secret)> =
            generated.unwrap().into_iter().map(|one| (one.key, one.what)).collect();
        let wanted = [
            ("also", Secret::Password(20)),
            ("conf", text(&[literal("pass = "), value("also"), literal("\n")])),
            ("other", Secret::Password(9)),
            ("password", text(&[value("also")])),
            ("url", text(&[literal("db://u:"), value("also"), literal("@h?x="), value("also")])),
        ];
        assert_eq!(generated, wanted.map(|(key, what)| (key.to_owned(), what)));
        let open = json!({"also": "", "conf": "", "other": "", "password": "", "plain": "x", "url": ""});
        assert_eq!(root, json!({"stringData": open}));
    }

    #[test]
    fn halves_of_a_certificate_may_be_repeated() {
        let (_, generated) = taken(
            "{% set c = tls_self_signed(['a']) %}\nstringData:\n  <<: {{ c }}\n  ca.crt: {{ c['tls.crt'] }}\n  \
             all.pem: \"{{ c['tls.crt'] }}{{ c['tls.key'] }}\"\n",
        );
        let generated = generated.unwrap();
        let of = |key: &str| generated.iter().find(|one| one.key == key).map(|one| one.what.clone());
        assert!(
            matches!(of("tls.crt"), Some(Secret::Certificate(_)))
                && of("tls.key") == Some(Secret::PrivateKey)
        );
        assert_eq!(of("ca.crt"), Some(text(&[value("tls.crt")])));
        assert_eq!(of("all.pem"), Some(text(&[value("tls.crt"), value("tls.key")])));
    }

    #[test]
    fn value_without_a_key_that_keeps_it_is_an_error() {
        for (text, wanted) in [
            (
                "stringData: {url: \"x{{ password(20) }}\"}",
                "stringData.url has a generated password that must be the whole",
            ),
            (
                "{% set p = password(20) %}\nstringData: {p: {{ p }}}\ndata: {url: \"x{{ p }}\"}",
                "data.url is a text",
            ),
            (
                "{% set c = tls_ca('a') %}\nstringData: {x: {{ c['tls.crt'] }}}",
                "stringData.x has a part of a certificate",
            ),
            ("stringData: {<<: {{ tls_ca('a') }}, tls.crt: x}", "a tls.crt beside a certificate"),
            ("stringData: {a: [{{ password(20) }}]}", "there is one in stringData"),
            ("type: x{{ password(20) }}", "there is one in type"),
            ("data: {a: {{ password(20) }}}\nstringData: {a: {{ password(20) }}}", "both have a generated a"),
        ] {
            let error = taken(text).1.unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn hash_depends_on_the_texts() {
        let body = json!({"data": {"a": ""}});
        let of = |parts: &[TextPart]| hash(&body, &[Generated { key: "a".into(), what: text(parts) }]);
        let password = [Generated { key: "a".into(), what: Secret::Password(9) }];
        assert_eq!(hash(&body, &password), names::value_hash(&body, 16));
        let all =
            [of(&[value("b")]), of(&[literal("b")]), of(&[literal("b"), value("b")]), hash(&body, &password)];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 4);
    }
}
