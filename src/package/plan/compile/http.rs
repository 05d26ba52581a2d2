//! HTTP requests, of steps and of observations.

use std::time::Duration;

use crate::compiler::{Compiler, Names};
use crate::decode::{At, Named};
use crate::manifest::TemplateText;
use crate::plan::manifest::AnyPort;
use crate::plan::{Auth, Body, Http, POD_URL, PodPort, Tls, check_key, check_user, manifest};
use crate::template::Text;
use crate::validation::is_dns_label;

/// The default for the maximum number of bytes of an answer.
const MAX_BYTES: u32 = 1 << 20;
/// The default timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(30);

impl Compiler<'_> {
    /// Compiles the HTTP request of a step or of an observation.
    pub(crate) fn http(&mut self, http: &At<manifest::Http>, names: &Names<'_>) -> Option<Http> {
        let manifest = &http.value;
        let bodies = [
            ("json", manifest.json.is_some()),
            ("form", manifest.form.is_some()),
            ("body", manifest.body.is_some()),
        ];
        let bodies: Vec<&str> = bodies.into_iter().filter_map(|(key, given)| given.then_some(key)).collect();
        if let [first, second, ..] = bodies.as_slice() {
            let message = format!("the request has two bodies: {first} and {second}");
            self.diagnostics.push(http.error("package::value", message).help("remove one of them"));
        }
        let method = manifest.method.unwrap_or(manifest::Method::GET);
        if let (Some(body), manifest::Method::GET | manifest::Method::HEAD) = (bodies.first(), method)
            && self.complete
        {
            let message = format!("a {method:?} request has no body, and this has `{body}`");
            self.diagnostics
                .push(http.error("package::value", message).help("set method: POST, PUT or PATCH"));
        }
        let target = self.http_target(http, names);
        let body = if let Some(json) = &manifest.json {
            self.tree(&json.value).map(Body::Json)
        } else if let Some(form) = &manifest.form {
            Some(Body::Form(self.named(&form.value)))
        } else if let Some(body) = &manifest.body {
            self.text(&body.0).map(Body::Raw)
        } else {
            Some(Body::Empty)
        };
        let auth = manifest.auth.as_ref().map(|auth| self.auth(auth));
        let headers = manifest.headers.as_ref().map(|headers| self.headers(headers)).unwrap_or_default();
        let hosts = manifest.hosts.iter().flatten().filter_map(|host| self.host(host)).collect();
        let key = manifest.key.as_ref().and_then(|key| self.checked(key, check_key));
        let tls = manifest.tls.as_ref().map(|tls| Tls {
            ca: self.template_text(tls.ca.as_ref()),
            cert: self.template_text(tls.cert.as_ref()),
            key: self.template_text(tls.key.as_ref()),
        });
        if let Some(tls) = &manifest.tls
            && tls.cert.is_some() != tls.key.is_some()
        {
            let error =
                http.error("package::missing", "a client certificate needs both tls.cert and tls.key");
            self.diagnostics.push(error.help("add the other one"));
        }
        let (to, url) = target?;
        Some(Http {
            method: format!("{method:?}"),
            to,
            url,
            hosts,
            headers,
            body: body?,
            key,
            auth: auth.map_or(Some(None), |auth| auth.map(Some))?,
            tls,
            redirects: manifest.redirects.map_or(0, |redirects| redirects.0),
            max_bytes: usize::try_from(manifest.max_bytes.map_or(MAX_BYTES, |bytes| bytes.0))
                .unwrap_or(usize::MAX),
            attempt_timeout: manifest.timeout.map_or(ATTEMPT, |timeout| timeout.0),
        })
    }

    /// Where the request goes: a URL, or a pod and the URL of the request to it.
    fn http_target(
        &mut self,
        http: &At<manifest::Http>,
        names: &Names<'_>,
    ) -> Option<(Option<PodPort>, Text)> {
        let manifest = &http.value;
        let Some(child) = &manifest.child else {
            let of_pods = [
                ("of", manifest.of.is_some()),
                ("ordinal", manifest.ordinal.is_some()),
                ("port", manifest.port.is_some()),
                ("path", manifest.path.is_some()),
                ("scheme", manifest.scheme.is_some()),
                ("host", manifest.host.is_some()),
            ];
            for (key, _) in of_pods.iter().filter(|(_, is_given)| *is_given) {
                let error = http.error("package::value", format!("`{key}` requires `child`"));
                self.diagnostics.push(error.help("write it in the URL, or add the child whose pod answers"));
            }
            let Some(url) = &manifest.url else {
                if self.complete {
                    let error = http.error("package::missing", "the request has neither `url` nor `child`");
                    self.diagnostics
                        .push(error.help("add url: https://api.example.com/x, or child: members"));
                }
                return None;
            };
            return self.text(&url.0).map(|url| (None, url));
        };
        let of_urls = [
            ("url", manifest.url.is_some()),
            ("hosts", manifest.hosts.is_some()),
            ("redirects", manifest.redirects.is_some()),
        ];
        for (key, _) in of_urls.iter().filter(|(_, is_given)| *is_given) {
            let error = http.error("package::value", format!("a request to a child has no `{key}`"));
            self.diagnostics.push(error.help("remove it: the pod of the child is called, and nothing else"));
        }
        let pod = self.child_pod(manifest.of.as_ref(), child, manifest.ordinal.as_ref(), names);
        let port = match &manifest.port {
            None => {
                let error = http.error("package::missing", "a request to a child needs a port");
                self.diagnostics.push(error.help("add port: 8080"));
                None
            }
            Some(AnyPort::Fixed(port)) => Some(Text::literal(port.0.into())),
            Some(AnyPort::Template(text)) => self.text(text),
        };
        let url = match &manifest.path {
            None => self.engine.text(&format!("{POD_URL}/"), &http.at).ok(),
            Some(TemplateText(path)) if !path.value.starts_with('/') => {
                let error = path.error("package::url", "the path does not begin with a slash");
                self.diagnostics.push(error.help("write path: /x, with a literal slash"));
                None
            }
            Some(TemplateText(path)) => {
                let value = format!("{POD_URL}{}", path.value);
                self.text(&At { value, at: path.at.clone(), path: path.path.clone() })
            }
        };
        let scheme = match manifest.scheme {
            None | Some(manifest::Scheme::http) => "http",
            Some(manifest::Scheme::https) => "https",
        };
        let host = self.template_text(manifest.host.as_ref());
        Some((Some(PodPort { pod: pod?, port: port?, scheme, host }), url?))
    }

    fn auth(&mut self, auth: &At<manifest::Auth>) -> Option<Auth> {
        match (&auth.value.bearer, &auth.value.basic) {
            (Some(bearer), None) => self.text(&bearer.0).map(Auth::Bearer),
            (None, Some(basic)) => {
                let username = self.checked(basic.username.0.as_ref()?, check_user);
                let password = self.text(&basic.password.0.as_ref()?.0);
                Some(Auth::Basic(username?, password?))
            }
            (None, None) => {
                let error = auth.error("package::missing", "auth has neither `bearer` nor `basic`");
                self.diagnostics
                    .push(error.help("write auth: {bearer: \"{{ refs.token.data.token | b64decode }}\"}"));
                None
            }
            (Some(_), Some(_)) => {
                let error = auth.error("package::value", "auth has `bearer` and `basic`");
                self.diagnostics.push(error.help("remove one of them"));
                None
            }
        }
    }

    /// Compiles a text whose value must obey a rule. The rule of a literal is checked now.
    fn checked(&mut self, source: &TemplateText, rule: fn(&str) -> Result<(), &'static str>) -> Option<Text> {
        let text = self.text(&source.0)?;
        if let Some(Err(why)) = text.as_literal().and_then(|value| value.as_str()).map(rule) {
            self.diagnostics.push(source.0.error("package::value", why));
        }
        Some(text)
    }

    fn named(&mut self, named: &Named<TemplateText>) -> Vec<(String, Text)> {
        let text =
            |(name, value): &(At<String>, TemplateText)| Some((name.value.clone(), self.text(&value.0)?));
        named.0.iter().filter_map(text).collect()
    }

    fn headers(&mut self, headers: &Named<TemplateText>) -> Vec<(String, Text)> {
        for (name, _) in &headers.0 {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            let own = match name.value.to_ascii_lowercase().as_str() {
                "authorization" => "auth: {bearer: ...}",
                "idempotency-key" => "key: ...",
                "host" | "content-length" | "transfer-encoding" | "connection" => "",
                _ if !name.value.is_empty() && name.value.chars().all(token) => continue,
                _ => {
                    let message = format!("`{}` is not the name of a header", name.value);
                    self.diagnostics.push(name.error("package::name", message));
                    continue;
                }
            };
            let message = format!("Operetta sets the header {}", name.value);
            let help = if own.is_empty() { "remove it".to_owned() } else { format!("write {own}") };
            self.diagnostics.push(name.error("package::value", message).help(help));
        }
        self.named(headers)
    }

    /// Checks an entry of `hosts`: a name, or `*.` and a name.
    fn host(&mut self, host: &At<String>) -> Option<String> {
        let name = host.value.strip_prefix("*.").unwrap_or(&host.value);
        if name.split('.').all(is_dns_label) {
            return Some(host.value.clone());
        }
        let message = format!("`{}` is not a host", host.value);
        let help = "write a literal in lower case without port: api.example.com or *.example.com";
        self.diagnostics.push(host.error("package::value", message).help(help));
        None
    }
}
