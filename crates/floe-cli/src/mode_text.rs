//! Modes as `ls -l` shows them.

use std::fmt;

use floe::Attr;

/// Type and permissions as `ls -l` shows them: `drwxr-sr-x`.
pub(crate) struct ModeText<'a>(pub(crate) &'a Attr);

impl fmt::Display for ModeText<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permissions = self.0.permissions;
        let mut text = String::with_capacity(10);
        text.push(self.0.file_type.mode_letter());
        for (shift, special_bit, special) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
            let bits = permissions >> shift;
            text.push(if bits & 4 != 0 { 'r' } else { '-' });
            text.push(if bits & 2 != 0 { 'w' } else { '-' });
            text.push(match (permissions & special_bit != 0, bits & 1 != 0) {
                (true, true) => special,
                (true, false) => special.to_ascii_uppercase(),
                (false, true) => 'x',
                (false, false) => '-',
            });
        }
        formatter.pad(&text)
    }
}
