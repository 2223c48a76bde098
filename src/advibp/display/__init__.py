"""What a person sees on a terminal: safe text and progress."""
