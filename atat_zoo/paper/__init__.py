"""A paper's tables and figures, from committed studies and run folders to a folder for LaTeX. Imports no torch.

`manifest` reads what is wanted; `studies` reads results, of which `arms`, `gaps` and `samplers` fill tables by
`cells`, as `runs` does of run folders; `figures` draws; `latex` escapes and typesets; `claims` says what the
intervals allow; `folder` writes everything. No number is typed: each is of a study's JSON or of a run, or is cited with
its source.
"""
