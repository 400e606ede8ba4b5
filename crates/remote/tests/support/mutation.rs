//! Random changes of answers.

use floe_testkit::Random;

use super::Answer;

/// Changes an answer in a random way.
pub(crate) fn mutate(random: &mut Random, mut answer: Answer) -> Answer {
    let small = |random: &mut Random| random.below(20) as i64 - 10;
    match random.below(12) {
        0 => {
            answer.status = [200, 201, 204, 206, 301, 304, 400, 401, 404, 416, 429, 500, 503][random.below(13) as usize]
        }
        1 if !answer.body.is_empty() => answer.cut = Some(random.below(answer.body.len() as u64) as usize),
        2 => {
            let extra = 1 + random.below(100) as usize;
            answer.body.extend(vec![0xa5; extra]);
        }
        3 => {
            let len = answer.body.len() as i64 + small(random);
            return answer.with("content-length", &len.to_string());
        }
        4..=6 => {
            let numbers: Vec<i64> = answer
                .headers
                .iter()
                .find(|(name, _)| name == "content-range")
                .map(|(_, value)| value.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect())
                .unwrap_or_default();
            if let [first, last, len] = numbers[..] {
                let change = small(random);
                let value = match random.below(6) {
                    0 => format!("bytes {}-{last}/{len}", first + change),
                    1 => format!("bytes {first}-{}/{len}", last + change),
                    2 => format!("bytes {first}-{last}/{}", len + change),
                    3 => format!("bytes {}-{}/{len}", first + change, last + change),
                    4 => format!("bytes {first}-{last}/*"),
                    _ => format!("bytes {last}-{first}/{len}"),
                };
                return answer.with("content-range", &value);
            }
        }
        7 => return answer.with("etag", ["\"two\"", "W/\"one\"", "one", ""][random.below(4) as usize]),
        8 => {
            let name = ["etag", "content-range", "content-length"][random.below(3) as usize];
            return answer.without(name);
        }
        9 => answer.hangs_up = true,
        10 => return answer.with("transfer-encoding", ["chunked", "gzip", "identity"][random.below(3) as usize]),
        _ => return answer.with("content-encoding", ["gzip", "identity", "x"][random.below(3) as usize]),
    }
    answer
}

/// An answer that asks for a pause of any length.
pub(crate) fn mutate_pause(random: &mut Random) -> Answer {
    let status = [429, 503][random.below(2) as usize];
    let pauses = [
        "0",
        "1",
        "1000",
        "18446744073709551615",
        "18446744073709551616",
        "-1",
        "0.5",
        "",
        "soon",
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "\u{ff}",
    ];
    Answer::new(status, &[("retry-after", pauses[random.below(pauses.len() as u64) as usize])], "")
}

/// Changes the body of an answer in a random way.
pub(crate) fn mutate_body(random: &mut Random, mut answer: Answer) -> Answer {
    let len = answer.body.len();
    if len == 0 {
        return answer;
    }
    let place = random.below(len as u64) as usize;
    match random.below(8) {
        0 => answer.body.truncate(place),
        1 => answer.body.fill(0),
        2 => answer.body.rotate_left(place),
        3 => {
            let end = (place + 1 + random.below(4096) as usize).min(len);
            let noise = random.noise(end - place);
            answer.body[place..end].copy_from_slice(&noise);
        }
        // Replaces a digit or a letter of a document.
        4 | 5 => {
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric();
            if let Some(place) = answer.body[place..].iter().position(is_word).map(|after| place + after) {
                answer.body[place] = b"0123456789abcdefxyz"[random.below(19) as usize];
            }
        }
        _ => answer.body[place] ^= 1 << random.below(8),
    }
    let len = answer.body.len().to_string();
    answer.with("content-length", &len)
}
