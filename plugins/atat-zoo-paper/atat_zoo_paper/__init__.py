"""A paper's tables and figures, from studies and run folders to a folder for LaTeX, and figures of importance.

`manifest` reads what is wanted; `studies` reads results, from which `study_tables` fills tables by `cells`, as `runs`
does from run folders; `figures` draws; `latex` typesets; `claims` says what the intervals allow; `folder` writes
everything. No number is typed: each is of a study's JSON or of a run, or is cited with its source. `papers/` has the
manifest that ships.

`importance_tables` has the numbers of a run's importance, and `importance_figures` draws them, by `word_classes` too.
Only `importance_tables` imports torch; `style` is that of all figures.
"""
