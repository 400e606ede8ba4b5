//! A self-contained HTML page: no scripts, no requests. Tables, also for a terminal, in the format of the published ones.

use std::fmt::Write;

use super::plot::escape;

const STYLE: &str = "
:root{--surface:#fcfcfb;--card:#fff;--ink:#1b1b19;--muted:#62615b;--grid:#e4e3dd;--line:#cfcec7;
--c0:#2a6fd6;--c1:#d9622b;--c2:#1f8a5b;--c3:#9a4fc0;--c4:#b8890b;--c5:#c23a6b}
@media(prefers-color-scheme:dark){:root{--surface:#191918;--card:#222221;--ink:#f0efe9;--muted:#aaa99f;--grid:#373733;
--line:#4a4a45;--c0:#6ea6ff;--c1:#f08a55;--c2:#4fc08d;--c3:#c78be8;--c4:#e0b83f;--c5:#f07aa4}}
@media print{:root{--surface:#fff;--card:#fff;--ink:#000;--muted:#444;--grid:#ddd;--line:#bbb;--c0:#2a6fd6;--c1:#d9622b;
--c2:#1f8a5b;--c3:#9a4fc0;--c4:#b8890b;--c5:#c23a6b}body{font-size:12px!important}
figure,table,tr,h1,h2{break-inside:avoid}h2{break-after:avoid}
main{max-width:none!important;padding:0!important}.wide{overflow:visible!important}
table{font-size:10.5px!important}th,td{padding:.12rem .4rem!important}
table.many{font-size:7.5px!important}table.many th,table.many td{padding:.1rem .25rem!important}}
*{box-sizing:border-box}
body{margin:0;background:var(--surface);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.5rem 1rem 3rem}p,figure,ul.plain{max-width:60rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}
p{margin:.3rem 0 .6rem}.lead,.note{color:var(--muted)}
code{font:13px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px;margin:.4rem 0}
th,td{padding:.22rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th,td{vertical-align:top}th small,td small{display:block;color:var(--muted);font-weight:400;font-size:.85em}
th:first-child,td:first-child{text-align:left;padding-left:0}th{border-bottom-color:var(--line);font-weight:600}
figure{margin:.6rem 0 1rem;background:var(--card);border:1px solid var(--grid);border-radius:6px;padding:.8rem}
figcaption{color:var(--muted);font-size:13.5px;margin-bottom:.4rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--muted);font:12px system-ui,sans-serif}svg text.name{fill:var(--ink)}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.dot{fill-opacity:.55}.spread{stroke:var(--ink);stroke-width:3;stroke-opacity:.55}.median{stroke:var(--ink);stroke-width:2}
.legend{font-size:13px;margin:0 0 .3rem}.legend span{margin-right:1rem;white-space:nowrap}
.key{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.35rem;vertical-align:-.08rem}
.line.s0{stroke:var(--c0)}.line.s1{stroke:var(--c1)}.line.s2{stroke:var(--c2)}.line.s3{stroke:var(--c3)}
.line.s4{stroke:var(--c4)}.line.s5{stroke:var(--c5)}
.dot.s0,.bar.s0{fill:var(--c0)}.dot.s1,.bar.s1{fill:var(--c1)}.dot.s2,.bar.s2{fill:var(--c2)}
.dot.s3,.bar.s3{fill:var(--c3)}.dot.s4,.bar.s4{fill:var(--c4)}.dot.s5,.bar.s5{fill:var(--c5)}
.key.s0{background:var(--c0)}.key.s1{background:var(--c1)}.key.s2{background:var(--c2)}.key.s3{background:var(--c3)}
.key.s4{background:var(--c4)}.key.s5{background:var(--c5)}
ul.plain{list-style:none;padding:0;margin:.3rem 0}ul.plain li{font:13px/1.6 ui-monospace,monospace;overflow-wrap:anywhere}
";

/// Tables with more columns use a smaller font.
const COLUMNS_FEW: usize = 8;

/// The title of difference columns.
const DIFFERENCE: &str = "diff";

/// A page under construction.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// Creates a page with this heading and an introduction.
    pub fn new(title: &str, lead: &str) -> Self {
        let body = format!("<h1>{}</h1><p class=\"lead\">{}</p>", escape(title), escape(lead));
        Self { title: title.to_owned(), body }
    }

    /// Starts a section.
    pub fn heading(&mut self, text: &str) {
        let _ = write!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = write!(self.body, "<p>{}</p>", escape(text));
    }

    /// Adds a table. A difference appears below the number it belongs to.
    pub fn table(&mut self, table: &Table) {
        let width = table.rows().iter().map(Vec::len).max().unwrap_or(0);
        let is_difference = |column: usize| {
            let head = table.rows().first().and_then(|head| head.get(column));
            column > 0 && head.is_some_and(|head| head == DIFFERENCE)
        };
        let shown: Vec<usize> = (0..width).filter(|column| !is_difference(*column)).collect();
        let class = if shown.len() > COLUMNS_FEW { " class=\"many\"" } else { "" };
        let _ = write!(self.body, "<div class=\"wide\"><table{class}>");
        for (index, row) in table.rows().iter().enumerate() {
            let tag = if index == 0 { "th" } else { "td" };
            self.body.push_str("<tr>");
            for &column in &shown {
                let cell = |column: usize| escape(row.get(column).map_or("", String::as_str));
                let _ = write!(self.body, "<{tag}>{}", cell(column));
                if is_difference(column + 1) {
                    let _ = write!(self.body, "<small>{}</small>", cell(column + 1));
                }
                let _ = write!(self.body, "</{tag}>");
            }
            self.body.push_str("</tr>");
        }
        self.body.push_str("</table></div>");
    }

    /// Adds a plot with a caption.
    pub(crate) fn figure(&mut self, caption: &str, plot: &str) {
        let _ = write!(self.body, "<figure><figcaption>{}</figcaption>{plot}</figure>", escape(caption));
    }

    /// Adds lines of plain text.
    pub fn lines(&mut self, lines: &[String]) {
        self.body.push_str("<ul class=\"plain\">");
        for line in lines {
            let _ = write!(self.body, "<li>{}</li>", escape(line));
        }
        self.body.push_str("</ul>");
    }

    /// Returns the complete page.
    pub fn finish(self) -> String {
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{}</title><style>{STYLE}</style></head><body><main>{}</main></body></html>\n",
            escape(&self.title),
            self.body,
        )
    }
}

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
    fn a_page_is_self_contained_and_escapes_its_text() {
        let mut page = Page::new("<title>", "lead & more");
        page.heading("a \"heading\"");
        page.paragraph("<script>");
        page.table(&Table::new(["<td>", "b"]));
        let mut differing = Table::new(["", "first", "second", "diff"]);
        differing.row(["row", "1", "2", "+100 %"]);
        page.table(&differing);
        page.lines(&["https://example.org is text".to_owned()]);
        let page = page.finish();
        for forbidden in ["src=", "href=", "url(", "@import", "<script>", "<link"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.contains("&lt;title&gt;") && page.contains("<th>&lt;td&gt;</th>"));
        assert!(page.contains("<td>1</td><td>2<small>+100 %</small></td></tr>"), "{page}");
    }

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
