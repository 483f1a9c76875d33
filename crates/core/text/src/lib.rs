//! Text for the terminal: columns and colours, shared by all tables.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Plain,
    /// With ANSI escape sequences.
    Coloured,
}

impl Paint {
    /// `text` in a colour, by its SGR code.
    pub fn with(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        }
    }

    pub fn heading(self, text: &str) -> String {
        self.with("1", text)
    }
}

/// Rows of cells as left-aligned columns, two spaces apart.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let blanks = width.saturating_sub(cell.chars().count()) + 2;
            line += cell;
            line += &" ".repeat(blanks);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_with_words() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        let rows = [row(&["A", "LONG", "C"]), row(&["größer", "1"]), row(&["x", "", "z"])];
        assert_eq!(columns(&rows), "A       LONG  C\ngrößer  1\nx             z\n");
        assert_eq!(columns(&[]), "");
    }

    #[test]
    fn plain_text_has_no_colours() {
        assert_eq!(Paint::Plain.heading("GPU"), "GPU");
        assert_eq!(Paint::Coloured.with("33", "GPU"), "\u{1b}[33mGPU\u{1b}[0m");
    }
}
