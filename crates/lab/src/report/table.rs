//! Tables for a terminal, in the format of the published ones.

/// A table with aligned columns: the first to the left, the others to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with this header row.
    pub fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self::default();
        table.row(head);
        table
    }

    /// The rows, starting with the header.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let column_count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| {
            let cells = self.rows.iter().filter_map(|row: &Vec<String>| row.get(column));
            cells.map(|cell: &String| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..column_count).map(width).collect();
        let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
        let rule = format!("+{}+", rule.join("+"));
        writeln!(out, "{rule}")?;
        for (index, row) in self.rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 { write!(out, "| {cell:<width$} ")? } else { write!(out, "| {cell:>width$} ")? }
            }
            writeln!(out, "|")?;
            if index == 0 {
                writeln!(out, "{rule}")?;
            }
        }
        write!(out, "{rule}")
    }
}

/// A number with a sensible number of digits.
pub fn number(value: f64) -> String {
    let digits = if value.abs() >= 100.0 || value == value.trunc() { 0 } else { 2 };
    format!("{value:.digits$}")
}

/// A percentage with its sign.
pub fn percent(value: f64) -> String {
    format!("{value:+.2}%").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let mut table = Table::new(["", "a", "µ"]);
        table.row(["x", "10", "2"]);
        let expected = "+---+----+---+\n|   |  a | µ |\n+---+----+---+\n| x | 10 | 2 |\n+---+----+---+";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn numbers_are_short() {
        for (value, expected) in [(15253.4, "15253"), (3.0, "3"), (0.126, "0.13"), (99.5, "99.50")] {
            assert_eq!(number(value), expected);
        }
        assert_eq!((percent(-80.894).as_str(), percent(3.0).as_str()), ("−80.89%", "+3.00%"));
    }
}
