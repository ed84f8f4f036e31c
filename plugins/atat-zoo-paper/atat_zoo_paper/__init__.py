"""Tables and figures of a paper from studies and run folders, for LaTeX, and figures of importance.

`paper_file` reads a paper's TOML file, and `paper_studies` the results of studies. `study_tables` and `run_tables` fill
tables, made of `cells`, from studies and run folders. `figures` draws, `latex` typesets, `claims` states what the
intervals support, and `paper_folder` writes everything. Every number comes from a study's JSON or a run, or is cited
with its source. `papers/` contains the paper file that ships with the package.

`importance_tables` computes a run's importance, and `importance_figures` draws it, with `word_classes` for words.
Only `importance_tables` imports torch; `style` is the style of all figures.
"""
