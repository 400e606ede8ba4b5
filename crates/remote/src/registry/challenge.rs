//! Parses `WWW-Authenticate`: the authentication that a registry requires.

/// The authentication that a registry requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Challenge {
    /// A token from a token server.
    Bearer {
        /// The URL of the token server.
        realm: String,
        /// The registry's name at the token server.
        service: Option<String>,
        /// The scope of the token.
        scope: Option<String>,
    },
    /// User and password.
    Basic,
}

impl Challenge {
    /// Parses the header. Of several challenges, selects the one that reveals the least. Returns `None` if none is
    /// supported.
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

/// Splits the header into challenges with their parameters.
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

/// Splits off the value at the beginning.
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
