"""Tables, figures and a self-contained page about runs. Reads their files and trains nothing."""
