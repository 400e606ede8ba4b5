//! The layout of events: the `format` files of tracefs.

use crate::{Error, Result};

/// The format of one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFormat {
    /// The event's name, without its group: `sched_switch`.
    pub name: String,
    /// The value of `common_type` in its records.
    pub id: u16,
    /// The fields in the file's order, including the common ones.
    pub fields: Vec<Field>,
    /// The highest state flag in the print format, doubled: the mark of a preempted task.
    pub preempted_flag: Option<i64>,
}

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name without brackets.
    pub name: String,
    /// The offset in the record.
    pub offset: usize,
    /// The size in the record in bytes.
    pub size: usize,
    /// Whether an integer is signed.
    pub signed: bool,
    /// The type of its contents.
    pub kind: FieldKind,
}

/// The type of a field's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An integer of 1, 2, 4 or 8 bytes.
    Integer,
    /// Text in place, ended by a NUL.
    Text,
    /// The offset (low half) and length (high half) of text elsewhere in the record.
    TextElsewhere,
    /// As `TextElsewhere`, with the offset relative to the end of this field.
    TextAfter,
}

impl EventFormat {
    /// Parses a `format` file.
    pub fn parse(text: &str) -> Result<Self> {
        let mut name = None;
        let mut id = None;
        let mut fields = Vec::new();
        let mut preempted_flag = None;
        for line in text.lines() {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("name:") {
                name = Some(rest.trim().to_owned());
            } else if let Some(rest) = line.strip_prefix("ID:") {
                id = rest.trim().parse().ok();
            } else if line.starts_with("field:") {
                fields
                    .push(Field::parse(line).ok_or_else(|| Error::new(format!("event format: field line {line:?}")))?);
            } else if let Some(rest) = line.strip_prefix("print fmt:") {
                preempted_flag = highest_state_flag(rest).map(|flag| flag << 1);
            }
        }
        let name = name.ok_or_else(|| Error::new("event format without a name"))?;
        let id = id.ok_or_else(|| Error::new(format!("event format of {name} without an ID")))?;
        Ok(Self { name, id, fields, preempted_flag })
    }

    /// The field with this name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl Field {
    /// Parses `field:int prio; offset:28; size:4; signed:1;`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut declaration = None;
        let (mut offset, mut size, mut signed) = (None, None, None);
        for part in line.split(';') {
            let (key, value) = match part.trim().split_once(':') {
                Some((key, value)) => (key, value.trim()),
                None => continue,
            };
            match key {
                "field" => declaration = Some(value),
                "offset" => offset = value.parse().ok(),
                "size" => size = value.parse().ok(),
                "signed" => signed = value.parse::<u8>().ok(),
                _ => {}
            }
        }
        let declaration = declaration?;
        let is_array = declaration.contains('[');
        let kind = if declaration.starts_with("__data_loc") {
            FieldKind::TextElsewhere
        } else if declaration.starts_with("__rel_loc") {
            FieldKind::TextAfter
        } else if is_array && declaration.contains("char") {
            FieldKind::Text
        } else {
            FieldKind::Integer
        };
        let last_word = declaration.split_whitespace().last()?;
        let name = last_word.split('[').next()?.trim_start_matches('*');
        Some(Self { name: name.to_owned(), offset: offset?, size: size?, signed: signed? != 0, kind })
    }

    /// The field of `record` as an integer; `None` if the record is too short or the size unsupported.
    pub fn integer(&self, record: &[u8]) -> Option<i64> {
        let bytes = record.get(self.offset..self.offset.checked_add(self.size)?)?;
        Some(match (bytes.len(), self.signed) {
            (1, false) => i64::from(u8::from_ne_bytes(bytes.try_into().ok()?)),
            (1, true) => i64::from(i8::from_ne_bytes(bytes.try_into().ok()?)),
            (2, false) => i64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            (2, true) => i64::from(i16::from_ne_bytes(bytes.try_into().ok()?)),
            (4, false) => i64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            (4, true) => i64::from(i32::from_ne_bytes(bytes.try_into().ok()?)),
            (8, _) => i64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }

    /// The field of `record` as text up to its NUL; `None` if it points outside the record.
    pub fn text<'record>(&self, record: &'record [u8]) -> Option<&'record [u8]> {
        let bytes = match self.kind {
            FieldKind::Integer => return None,
            // An array without a size extends to the end.
            FieldKind::Text if self.size == 0 => record.get(self.offset..)?,
            FieldKind::Text => record.get(self.offset..self.offset.checked_add(self.size)?)?,
            FieldKind::TextElsewhere | FieldKind::TextAfter => {
                let place = record.get(self.offset..self.offset.checked_add(4)?)?;
                let place = u32::from_ne_bytes(place.try_into().ok()?);
                let mut start = usize::try_from(place & 0xffff).ok()?;
                if self.kind == FieldKind::TextAfter {
                    start = start.checked_add(self.offset)?.checked_add(4)?;
                }
                let length = usize::try_from(place >> 16).ok()?;
                record.get(start..start.checked_add(length)?)?
            }
        };
        bytes.split(|&byte| byte == 0).next()
    }
}

/// The largest number in the `{ number, "letter" }` pairs that name a task's states.
fn highest_state_flag(print_format: &str) -> Option<i64> {
    if !print_format.contains("prev_state") {
        return None;
    }
    print_format
        .split('{')
        .skip(1)
        .filter_map(|pair| {
            let number = pair.split(',').next()?.trim();
            match number.strip_prefix("0x") {
                Some(digits) => i64::from_str_radix(digits, 16).ok(),
                None => number.parse().ok(),
            }
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SWITCH: &str = include_str!("../../fixtures/format-sched_switch.txt");
    const QUEUE_WORK: &str = include_str!("../../fixtures/format-workqueue_queue_work.txt");

    #[test]
    fn fields_are_at_the_offsets_of_the_format() {
        let switch = EventFormat::parse(SWITCH).unwrap();
        assert_eq!((switch.name.as_str(), switch.preempted_flag), ("sched_switch", Some(0x100)));
        let queue = EventFormat::parse(QUEUE_WORK).unwrap();
        assert_eq!(queue.preempted_flag, None);
        let table = [
            (&switch, "common_pid", 4, 4, true, FieldKind::Integer),
            (&switch, "prev_comm", 8, 16, false, FieldKind::Text),
            (&switch, "prev_state", 32, 8, true, FieldKind::Integer),
            (&switch, "next_prio", 60, 4, true, FieldKind::Integer),
            (&queue, "work", 8, 8, false, FieldKind::Integer),
            (&queue, "workqueue", 24, 4, false, FieldKind::TextElsewhere),
        ];
        for (format, name, offset, size, signed, kind) in table {
            let expected = Field { name: name.to_owned(), offset, size, signed, kind };
            assert_eq!(format.field(name), Some(&expected));
        }
    }

    #[test]
    fn values_of_every_kind_are_read_and_short_records_refused() {
        let record = [0x01, 0x02, 0xff, 0xff, b'h', b'i', 0, 0, 0x04, 0x00, 0x03, 0x00];
        let field = |offset, size, signed, kind| Field { name: "x".into(), offset, size, signed, kind };
        let integers = [
            (0, 2, false, Some(0x0201)),
            (2, 2, true, Some(-1)),
            (2, 2, false, Some(0xffff)),
            (3, 1, true, Some(-1)),
            (0, 3, false, None),
            (10, 4, false, None),
            (usize::MAX, 4, false, None),
        ];
        for (offset, size, signed, expected) in integers {
            assert_eq!(field(offset, size, signed, FieldKind::Integer).integer(&record), expected);
        }
        let texts = [
            (4, 4, FieldKind::Text, Some(&b"hi"[..])),
            (5, 0, FieldKind::Text, Some(&b"i"[..])),
            (8, 4, FieldKind::TextElsewhere, Some(&b"hi"[..])),
            (8, 4, FieldKind::TextAfter, None),
            (10, 4, FieldKind::TextElsewhere, None),
        ];
        for (offset, size, kind, expected) in texts {
            assert_eq!(field(offset, size, false, kind).text(&record), expected);
        }
    }

    #[test]
    fn a_format_without_name_or_id_is_refused() {
        for text in ["", "name: x\n", "ID: 5\n", "name: x\nID: 7\n\tfield:int;\n"] {
            assert!(EventFormat::parse(text).is_err(), "{text:?}");
        }
    }
}
