//! Reads which paths the files of a crate name, and which file each path leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A path in the code of a file, such as `crate::plan::Effect`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) line: usize,
    pub(crate) path: Vec<String>,
    /// What a `use` makes of it, if it stands in one.
    pub(crate) import: Option<Import>,
    /// Whether it is compiled for tests only.
    pub(crate) is_test: bool,
    /// The names of the modules in the file that contain it.
    pub(crate) inline: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The name in this file; `*` for all names of a module.
    pub(crate) name: String,
    /// Whether other files may import the name from this one.
    pub(crate) is_exported: bool,
}

/// What a text of Rust says of imports.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) mentions: Vec<Mention>,
    /// The modules that have a file of their own, and whether they are for tests only.
    pub(crate) modules: BTreeMap<String, bool>,
    /// The names of its items, apart from methods.
    items: BTreeSet<String>,
}

/// The modules of a crate, by their paths: the empty path is `lib.rs`.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    modules: BTreeMap<Vec<String>, (PathBuf, Source)>,
}

/// Which files a file needs, each with the line that says so and the path in it.
pub(crate) type Edges = BTreeMap<PathBuf, BTreeMap<PathBuf, (usize, String)>>;

impl Crate {
    /// Reads the modules that `lib.rs` and its modules declare, without those of tests. `read` returns the text of a
    /// file, or nothing if there is none.
    pub(crate) fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let mut modules = BTreeMap::new();
        let mut open = vec![Vec::new()];
        while let Some(module) = open.pop() {
            let folder = module.iter().fold(root.to_owned(), |path, name| path.join(name));
            let file = if module.is_empty() { root.join("lib.rs") } else { folder.with_extension("rs") };
            let files = [file, folder.join("mod.rs")];
            let Some((file, text)) = files.into_iter().find_map(|file| read(&file).map(|text| (file, text)))
            else {
                panic!("{}: declared, but not found", folder.display())
            };
            let source = Source::parse(&text);
            let declared = source.modules.iter().filter(|(_, is_test)| !**is_test);
            open.extend(declared.map(|(name, _)| [&module[..], std::slice::from_ref(name)].concat()));
            modules.insert(module, (file, source));
        }
        Self { modules }
    }

    /// Which files need which others, apart from tests. A module that is declared, imported as a whole or only exported
    /// to others is not needed; what is named in it is.
    pub(crate) fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (module, (file, source)) in &self.modules {
            let needed = edges.entry(file.clone()).or_default();
            for mention in source.mentions.iter().filter(|mention| !mention.is_test) {
                if mention.import.as_ref().is_some_and(|import| import.is_exported) {
                    continue;
                }
                let from = [&module[..], &mention.inline].concat();
                let Some((target, item)) = self.resolve(&from, &mention.path, 0) else { continue };
                let is_glob = mention.import.as_ref().is_some_and(|import| import.name == "*");
                let to = &self.modules[&target].0;
                if to != file && (item.is_some() || is_glob) {
                    needed.entry(to.clone()).or_insert_with(|| (mention.line, mention.path.join("::")));
                }
            }
        }
        edges
    }

    /// The module that a path leads to, and the item in it, if it does not end with the module. Nothing if another
    /// crate or the file itself has it.
    fn resolve(
        &self,
        from: &[String],
        path: &[String],
        depth: usize,
    ) -> Option<(Vec<String>, Option<String>)> {
        if depth > 20 {
            return None;
        }
        let mut module = from.to_vec();
        let mut rest = path;
        while let [first, after @ ..] = rest {
            match &**first {
                "crate" => module.clear(),
                "self" => {}
                "super" => drop(module.pop()),
                _ => break,
            }
            rest = after;
        }
        let is_relative = rest.len() == path.len();
        while !self.modules.contains_key(&module) {
            module.pop(); // a module in a file
        }
        while let [name, after @ ..] = rest {
            let (_, source) = &self.modules[&module];
            let child = [&module[..], std::slice::from_ref(name)].concat();
            let is_item = source.items.contains(name) || source.import(name).is_some();
            if self.modules.contains_key(&child) && (!after.is_empty() || !is_item) {
                module = child;
                rest = after;
                continue;
            }
            if let Some(import) = source.import(name) {
                return self.resolve(&module, &[&import.path[..], after].concat(), depth + 1);
            }
            if !source.items.contains(name) {
                let globs = source.globs().filter_map(|glob| self.resolve(&module, &glob.path, depth + 1));
                let has = globs.map(|(module, _)| module).find(|module| self.has(module, name));
                if let Some(origin) = has {
                    return self.resolve(&origin, &[&["self".to_owned()], rest].concat(), depth + 1);
                }
                if is_relative && rest.len() == path.len() {
                    return None;
                }
            }
            return Some((module, Some(name.clone())));
        }
        Some((module, None))
    }

    fn has(&self, module: &[String], name: &str) -> bool {
        let (_, source) = &self.modules[module];
        source.items.contains(name) || source.modules.contains_key(name) || source.import(name).is_some()
    }
}

/// Files that need each other, directly or through others: sorted, each circle once.
pub(crate) fn circles(edges: &Edges) -> Vec<Vec<PathBuf>> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> = edges
        .iter()
        .map(|(from, direct)| {
            let mut reached = BTreeSet::new();
            let mut open: Vec<&PathBuf> = direct.keys().collect();
            while let Some(file) = open.pop() {
                if reached.insert(file) {
                    open.extend(edges[file].keys());
                }
            }
            (from, reached)
        })
        .collect();
    let circle = |file: &PathBuf| {
        let others = reached[file].iter().filter(|other| reached[**other].contains(file));
        others.map(|other| (*other).clone()).collect::<Vec<_>>()
    };
    let circles: BTreeSet<Vec<PathBuf>> =
        edges.keys().map(circle).filter(|files| !files.is_empty()).collect();
    circles.into_iter().collect()
}

impl Source {
    /// The import that gives something this name.
    fn import(&self, name: &str) -> Option<&Mention> {
        self.mentions.iter().find(|m| !m.is_test && m.import.as_ref().is_some_and(|i| i.name == name))
    }

    fn globs(&self) -> impl Iterator<Item = &Mention> {
        self.mentions.iter().filter(|m| !m.is_test && m.import.as_ref().is_some_and(|i| i.name == "*"))
    }

    pub(crate) fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let mut source = Self::default();
        // The modules that are open: name, where each ends, whether it is for tests only.
        let mut open: Vec<(&str, usize)> = Vec::new();
        let mut test_end = 0;
        let mut depth = 0;
        let mut at = 0;
        while at < tokens.len() {
            open.retain(|(_, end)| at < *end);
            let before = if at == 0 { "" } else { tokens[at - 1].text };
            let text = |ahead: usize| tokens.get(at + ahead).map_or("", |token| token.text);
            let is_test = at < test_end;
            match text(0) {
                "#" if (1..7).map(text).eq(["[", "cfg", "(", "test", ")", "]"]) => {
                    test_end = test_end.max(item_end(&tokens, at + 7));
                    at += 7;
                }
                "mod" if text(2) == ";" => {
                    source.modules.insert(text(1).to_owned(), is_test);
                    at += 3;
                }
                "mod" if text(2) == "{" => {
                    open.push((text(1), item_end(&tokens, at)));
                    depth += 1;
                    at += 3;
                }
                "use" if text(1) != "<" => {
                    let is_exported = before == "pub" || before == ")";
                    let inline: Vec<String> = open.iter().map(|(name, _)| (*name).to_owned()).collect();
                    at += 1;
                    for (line, path, name) in tree(&tokens, &mut at, &[]) {
                        let import = Some(Import { name, is_exported });
                        source.mentions.push(Mention { line, path, import, is_test, inline: inline.clone() });
                    }
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" if is_name(text(1)) => {
                    if !is_test && depth == 0 {
                        source.items.insert(text(1).to_owned());
                    }
                    at += if text(1) == "fn" { 1 } else { 2 };
                }
                name if is_name(name) && before != "." && before != "::" => {
                    let line = tokens[at].line;
                    let mut path = vec![name.to_owned()];
                    while text(2 * path.len() - 1) == "::" && is_name(text(2 * path.len())) {
                        path.push(text(2 * path.len()).to_owned());
                    }
                    at += 2 * path.len() - 1;
                    let next = tokens.get(at).map_or("", |token| token.text);
                    // A single word may be a variable.
                    if path.len() > 1 || next == "(" || name.starts_with(char::is_uppercase) {
                        let inline = open.iter().map(|(name, _)| (*name).to_owned()).collect();
                        source.mentions.push(Mention { line, path, import: None, is_test, inline });
                    }
                }
                other => {
                    depth = match other {
                        "{" => depth + 1,
                        "}" => depth - 1,
                        _ => depth,
                    };
                    at += 1;
                }
            }
        }
        source
    }
}

/// The paths of a tree of `use` with the names that they get; `at` is behind it afterwards.
fn tree(tokens: &[Token], at: &mut usize, prefix: &[String]) -> Vec<(usize, Vec<String>, String)> {
    let mut found = Vec::new();
    let mut path = prefix.to_vec();
    while let Some(Token { line, text }) = tokens.get(*at) {
        *at += 1;
        match *text {
            "{" => {
                while tokens.get(*at).is_some_and(|token| token.text != "}") {
                    found.extend(tree(tokens, at, &path));
                    if tokens.get(*at).is_some_and(|token| token.text == ",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return found;
            }
            "::" => {}
            "*" => found.push((*line, path.clone(), "*".to_owned())),
            "as" => {
                if let (Some(last), Some(alias)) = (found.last_mut(), tokens.get(*at)) {
                    alias.text.clone_into(&mut last.2);
                }
                *at += 1;
            }
            name if is_name(name) => {
                path.push(name.to_owned());
                if tokens.get(*at).is_none_or(|next| next.text != "::") {
                    let is_self = name == "self" && path.len() > 1;
                    path.truncate(path.len() - usize::from(is_self));
                    let name = path.last().cloned().unwrap_or_default();
                    found.push((*line, path.clone(), name));
                }
            }
            _ => {
                *at -= 1;
                break;
            }
        }
    }
    found
}

/// Where the item, field or statement that begins at `start` ends.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let mut depth = 0;
    let mut is_field = true;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" if depth > 0 => depth -= 1,
            "}" if depth > 1 => depth -= 1,
            "}" => return at + 1,
            ";" if depth == 0 => return at + 1,
            "," if depth == 0 && is_field => return at + 1,
            "fn" | "mod" | "use" | "impl" | "struct" | "enum" | "trait" | "type" if depth == 0 => {
                is_field = false;
            }
            _ => {}
        }
    }
    tokens.len()
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    line: usize,
    text: &'a str,
}

/// Words and punctuation, without comments, literals and lifetimes.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let after = &rest[word..];
        let hashes = after.len() - after.trim_start_matches('#').len();
        let is_string = after[hashes..].starts_with('"');
        let mut is_token = false;
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if is_string && matches!(&rest[..word], "r" | "br" | "cr") {
            let end = format!("\"{}", &after[..hashes]);
            let start = word + hashes + 1;
            start + rest[start..].find(&end).map_or(0, |at| at + end.len())
        } else if is_string && hashes == 0 && matches!(&rest[..word], "" | "b" | "c") {
            word + 1 + escaped(&after[1..], '"')
        } else if word == 0 && first == '\'' {
            let mut chars = rest[1..].chars();
            match (chars.next(), chars.next()) {
                (Some('\\'), _) | (_, Some('\'')) => 1 + escaped(&rest[1..], '\''),
                _ => 1 + rest[1..].find(|c| !is_word(c)).unwrap_or(0),
            }
        } else {
            is_token = !first.is_whitespace();
            if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) }
        };
        if is_token {
            found.push(Token { line, text: &rest[..length] });
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// How long a literal is, with the quote that ends it.
fn escaped(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}
