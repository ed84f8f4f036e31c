"""LaTeX tables and figures for a paper, from studies and run folders, and figures of a run's importance.

`paper_file` reads a paper's TOML file, and `paper_studies` reads the results of studies. `study_tables` and
`run_tables` fill tables with `cells` from studies and run folders. `figures` draws, `latex` typesets, `claims` states
each difference and whether it is significant, and `paper_folder` writes everything. Every number comes from a study's
JSON or a run, or is cited with its source. `papers/` contains the paper file that ships with the package.

`importance_tables` computes a run's importance, and `importance_figures` draws it, with `word_classes` for words.
Only `importance_tables` imports torch; `style` is the style of all figures.
"""
