"""What was measured, for people to look at: tables, figures, one self-contained page. Reads files; trains nothing."""
