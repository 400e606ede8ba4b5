//! Parses `WWW-Authenticate`: the authentication that a server requires.

/// A challenge: a scheme with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Challenge {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    /// Parses the header, which may contain several challenges.
    pub(super) fn all(header: &str) -> Vec<Self> {
        let mut challenges: Vec<Self> = Vec::new();
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
                challenges.push(Self { scheme: word.to_owned(), parameters: Vec::new() });
                rest = behind;
                continue;
            };
            let (value, behind) = parameter(value.trim_start_matches([' ', '\t']));
            if let Some(challenge) = challenges.last_mut() {
                challenge.parameters.push((word.to_owned(), value));
            }
            rest = behind;
        }
    }

    /// Whether the scheme has this name, in lower case.
    pub(super) fn is(&self, scheme: &str) -> bool {
        self.scheme.eq_ignore_ascii_case(scheme)
    }

    /// The value of a parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let (_, value) = self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(value)
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
        type Expected = &'static [(&'static str, &'static [(&'static str, &'static str)])];
        let rows: &[(&str, Expected)] = &[
            (
                "Bearer realm=\"https://auth/token\",service=\"reg\",scope=\"repository:a/b:pull,push\"",
                &[(
                    "bearer",
                    &[("realm", "https://auth/token"), ("service", "reg"), ("scope", "repository:a/b:pull,push")],
                )],
            ),
            ("bearer  realm = https://a , Service=b", &[("bearer", &[("realm", "https://a"), ("service", "b")])]),
            (
                "Basic realm=\"x\", Bearer realm=\"y\\\"z\"",
                &[("basic", &[("realm", "x")]), ("bearer", &[("realm", "y\"z")])],
            ),
            ("Negotiate, NTLM", &[("negotiate", &[]), ("ntlm", &[])]),
            ("Bearer realm=\"open", &[("bearer", &[("realm", "open")])]),
            ("=,=", &[]),
            ("", &[]),
        ];
        for (header, expected) in rows {
            let found = Challenge::all(header);
            assert_eq!(found.len(), expected.len(), "{header}");
            for (challenge, (scheme, parameters)) in found.iter().zip(*expected) {
                assert!(challenge.is(scheme) && challenge.parameters.len() == parameters.len(), "{header}");
                for (name, value) in *parameters {
                    assert_eq!(challenge.parameter(name), Some(*value), "{header}");
                }
            }
        }
    }
}
