//! Filters of `List`, in containerd's syntax: `labels."key"==value,parent==value`.

use crate::record::{Record, State};

/// A filter: all its conditions must hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Filter(Vec<Condition>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Condition {
    field: Field,
    is_equal: bool,
    value: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Field {
    Name,
    Parent,
    Kind,
    Label(String),
}

impl Filter {
    /// Parses a filter. One with other operators becomes a filter that all snapshots satisfy, because callers filter again.
    pub(crate) fn parse(text: &str) -> Self {
        Self(conditions(text).unwrap_or_default())
    }

    /// Whether a snapshot satisfies the filter.
    pub(crate) fn fits(&self, record: &Record) -> bool {
        self.0.iter().all(|Condition { field, is_equal, value }| {
            let found = match field {
                Field::Name => Some(record.name.as_str()),
                Field::Parent => Some(record.parent.as_deref().unwrap_or_default()),
                Field::Kind => Some(match record.state {
                    State::View => "view",
                    State::Active => "active",
                    State::Committed => "committed",
                }),
                Field::Label(name) => record.labels.get(name).map(String::as_str),
            };
            (found == Some(value)) == *is_equal
        })
    }
}

fn conditions(mut text: &str) -> Option<Vec<Condition>> {
    let mut conditions = Vec::new();
    while !text.is_empty() {
        let (name, rest) = word(text, |character| character.is_ascii_alphanumeric())?;
        let (field, rest) = match (name.as_str(), rest.strip_prefix('.')) {
            ("name", None) => (Field::Name, rest),
            ("parent", None) => (Field::Parent, rest),
            ("kind", None) => (Field::Kind, rest),
            ("labels", Some(rest)) => {
                let (label, rest) = word(rest, |character| !"=!~,".contains(character))?;
                (Field::Label(label), rest)
            }
            _ => return None,
        };
        let is_equal = rest.starts_with("==");
        let rest = rest.strip_prefix("==").or_else(|| rest.strip_prefix("!="))?;
        let (value, rest) = word(rest, |character| character != ',')?;
        conditions.push(Condition { field, is_equal, value });
        text = if rest.is_empty() { rest } else { rest.strip_prefix(',')? };
    }
    Some(conditions)
}

/// A word in quotes, or of these characters, and the rest of the text.
fn word(text: &str, is_part: impl Fn(char) -> bool) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|character| !is_part(character)).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_owned(), &text[end..]));
    };
    let mut word = String::new();
    let mut characters = quoted.char_indices();
    while let Some((place, character)) = characters.next() {
        match character {
            '"' => return Some((word, &quoted[place + 1..])),
            '\\' => match characters.next()?.1 {
                escaped @ ('"' | '\\') => word.push(escaped),
                _ => return None,
            },
            character => word.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn filters_select_snapshots() {
        let mut snapshot = record(1, "name", Some("default/1/a,b"));
        snapshot.labels.insert("containerd.io/snapshot.ref".to_owned(), "sha256:1".to_owned());
        for (filter, expected) in [
            ("", true),
            ("name==name", true),
            ("name==other", false),
            ("name!=other", true),
            (r#"labels."containerd.io/snapshot.ref"==sha256:1,parent=="default/1/a,b""#, true),
            (r#"labels."containerd.io/snapshot.ref"==sha256:2,parent=="default/1/a,b""#, false),
            (r#"labels."containerd.io/snapshot.ref"==sha256:1,parent=="""#, false),
            ("labels.absent==a", false),
            ("labels.absent!=a", true),
            ("kind==committed", true),
            ("kind==active", false),
            // Unknown syntax selects all.
            ("name~=x.*", true),
            ("size==3", true),
            ("name", true),
            (r#"name=="x"#, true),
            (r#"name=="\x""#, true),
        ] {
            assert_eq!(Filter::parse(filter).fits(&snapshot), expected, "{filter}");
        }
    }
}
