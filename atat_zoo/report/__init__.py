"""The report: run folders or a study to one self-contained HTML page that people look at, keep and share.

`collect` and `studies` read what is recorded, without torch; `charts` has a function for each chart, data → Vega-Lite;
`page` puts both into a page. Every number is one that a command printed or recorded; nothing is computed anew.
"""
