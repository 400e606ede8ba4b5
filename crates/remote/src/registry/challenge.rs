//! `WWW-Authenticate`: what a registry wants to see before it answers.

/// What a registry wants to see before it answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Challenge {
    /// A token, which somebody else gives.
    Bearer {
        /// Who gives it: a URL.
        realm: String,
        /// The name of the registry there.
        service: Option<String>,
        /// What the token must be for.
        scope: Option<String>,
    },
    /// A user and a password.
    Basic,
}

impl Challenge {
    /// Reads the header; of several challenges the one that gives the least away. `None` where none can be met here.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let mut challenges = split(header);
        let bearer = challenges.iter_mut().find(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        if let Some((_, parameters)) = bearer {
            let mut take = |name: &str| {
                let index = parameters.iter().position(|(key, _)| key.eq_ignore_ascii_case(name))?;
                Some(parameters.swap_remove(index).1)
            };
            if let Some(realm) = take("realm") {
                return Some(Self::Bearer { realm, service: take("service"), scope: take("scope") });
            }
        }
        let has_basic = challenges.iter().any(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        has_basic.then_some(Self::Basic)
    }
}

/// The challenges, each with its parameters.
fn split(header: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut challenges: Vec<(String, Vec<(String, String)>)> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let word_len = rest.find([' ', '\t', ',', '=']).unwrap_or(rest.len());
        if word_len == 0 {
            return challenges;
        }
        let (word, behind) = rest.split_at(word_len);
        let behind = behind.trim_start_matches([' ', '\t']);
        let Some(value) = behind.strip_prefix('=') else {
            challenges.push((word.to_owned(), Vec::new()));
            rest = behind;
            continue;
        };
        let (value, behind) = parameter(value.trim_start_matches([' ', '\t']));
        if let Some((_, parameters)) = challenges.last_mut() {
            parameters.push((word.to_owned(), value));
        }
        rest = behind;
    }
}

/// The value at the beginning, and what is behind it.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let len = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..len].to_owned(), &text[len..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            Some(Challenge::Bearer { realm: realm.to_owned(), service: owned(service), scope: owned(scope) })
        };
        for (header, expected) in [
            (
                "Bearer realm=\"https://auth/token\",service=\"reg\",scope=\"repository:a/b:pull,push\"",
                bearer("https://auth/token", Some("reg"), Some("repository:a/b:pull,push")),
            ),
            ("bearer  realm = https://a , Service=b", bearer("https://a", Some("b"), None)),
            ("Basic realm=\"x\", Bearer realm=\"y\\\"z\"", bearer("y\"z", None, None)),
            ("Bearer service=\"x\"", None),
            ("Bearer service=\"x\", Basic realm=\"y\"", Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            ("Negotiate, NTLM", None),
            ("Bearer realm=\"open", bearer("open", None, None)),
            ("=,=", None),
            ("", None),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
